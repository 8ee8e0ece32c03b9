"""The screen: what must be on it, that it is one screen, and colour only where it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from train_infer_consistency.cli.main import main
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.reporting.terminal import render


def plain(text: str, _colour: str) -> str:
    return text


def test_a_difference_with_its_numbers_and_their_places(planted: Comparison) -> None:
    text = render(planted, plain)
    lines = text.splitlines()
    assert lines[0].startswith("different: layers.1.mlp.down: output differs (relative error of ")
    difference = planted.first_difference
    assert difference is not None
    for quantity in (difference.row.inference, difference.row.training):
        assert quantity is not None
        for value in quantity.summary:
            assert value is not None
            assert f"{value:.7g}" in text
        for piece in quantity.pieces:
            assert str(piece.dump.path) in text
            assert f"{piece.call.name} {piece.slot}" in text
    assert "0.950: 19 of 20 modules (18 equal, 1 differs); 10 more not comparable by construction" in text
    assert "not compared: layers.0.attn.o: only the inference side has it" in text
    assert "0 =! 1" in text
    assert "largest: layers.1.mlp.down output 0.083" in text


def test_a_run_with_pairs_and_reasons(run: Comparison) -> None:
    text = render(run, plain)
    assert text.splitlines()[0] == "consistent: all 2 pairs agree"
    assert "2 compared (2 consistent); 8 steps not used" in text
    assert "inference: 2 x several requests in one forward [several-requests]" in text
    assert "training: 6 x several requests in one forward [several-requests]" in text
    assert "dispatch_log.jsonl:2" not in text
    assert "dispatch_log.jsonl:2" in render(run, plain, verbose=True)


@pytest.mark.parametrize("name", ["equal", "planted", "run", "tensors", "nothing"])
def test_it_is_one_screen(name: str, request: pytest.FixtureRequest) -> None:
    assert len(render(request.getfixturevalue(name), plain).splitlines()) <= 30


def test_too_little_evidence_is_said_first(nothing: Comparison) -> None:
    lines = render(nothing, plain).splitlines()
    assert lines[0].startswith("insufficient: ")
    assert "has no data" in lines[0]


def test_colour_is_what_paint_makes_of_it(planted: Comparison) -> None:
    text = render(planted, lambda text, colour: f"<{colour}>{text}</{colour}>")
    assert text.startswith("<bad>different</bad>: ")
    assert "=<bad>!</bad> 1" in text
    assert "<warn>not compared: layers.0.attn.o" in text


def test_no_colour_but_on_a_terminal(planted_dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, planted_dumps)]) == 1
    assert "\033" not in capsys.readouterr().out


def test_verbose_lists_every_module(planted: Comparison) -> None:
    text = render(planted, plain, verbose=True)
    for module in planted.pairs[0].modules:
        assert f"\n{module.module} " in text
