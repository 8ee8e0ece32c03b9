"""What the verbs share in printing: progress on a terminal and without one."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from train_infer_consistency.cli.output import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.01, 0.5, 0.6])
    monkeypatch.setattr("train_infer_consistency.cli.output.time", SimpleNamespace(monotonic=lambda: next(times)))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("pairs compared") as tell:
        for done in (1, 2, 3):
            tell(done, 3)
    assert terminal.getvalue() == (
        "\r\033[Kconsistency: 2 of 3 pairs compared\r\033[Kconsistency: 3 of 3 pairs compared\r\033[K"
    )


def test_progress_elsewhere_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 1.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr("train_infer_consistency.cli.output.time", SimpleNamespace(monotonic=lambda: next(times)))
    with progress("pairs compared") as tell:
        for done in (1, 2, 3, 4):
            tell(done, 4)
    assert capsys.readouterr().err == "consistency: 2 of 4 pairs compared\n"
