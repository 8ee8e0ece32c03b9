"""JSON Lines and CSV: everything is in them, as numbers that read back, with the place of each."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.reporting.lines import HEADER, csv_lines, json_lines


def read(comparison: Comparison) -> list[dict[str, str]]:
    text = "".join(csv_lines(comparison))
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def no_constants(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_one_line_of_strict_json_per_module_of_every_pair(run: Comparison) -> None:
    found = [json.loads(line, parse_constant=no_constants) for line in json_lines(run)]
    wanted = [(index, module.to_json()) for index, pair in enumerate(run.pairs) for module in pair.modules]
    assert [(line.pop("pair"), line) for line in found] == [
        (index, {"request_id": run.pairs[index].request_id, **module}) for index, module in wanted
    ]
    assert len({line["request_id"] for line in found}) == 2


def test_csv_has_a_line_per_row_with_figures_and_places(planted: Comparison) -> None:
    (pair,) = planted.pairs
    lines = read(planted)
    assert len(lines) == sum(max(1, len(module.rows)) for module in pair.modules)
    assert {line["module"] for line in lines} == {module.module for module in pair.modules}
    (line,) = [line for line in lines if line["word"] == "differs"]
    assert (line["module"], line["layer"], line["kind"]) == ("layers.1.mlp.down", "1", "output")
    difference = planted.first_difference
    assert difference is not None
    for side, quantity in (("inference", difference.row.inference), ("training", difference.row.training)):
        assert quantity is not None
        (piece,) = quantity.pieces
        assert [float(line[f"{side}_{name}"]) for name in ("max", "min", "mean", "norm")] == list(quantity.summary)
        assert line[f"{side}_file"] == str(piece.dump.path)
        assert (line[f"{side}_step"], line[f"{side}_rank"]) == ("0", "0")
        assert (line[f"{side}_entry"], line[f"{side}_slot"]) == (piece.call.name, piece.slot)
    assert float(line["error"]) == pytest.approx(0.09 / 1.09, rel=1e-3)
    assert float(line["of_bound"]) > 1


def test_csv_names_all_tensors_of_a_whole(equal: Comparison) -> None:
    (line,) = [line for line in read(equal) if line["module"] == "layers.0.attn.qkv" and line["kind"] == "output"]
    assert [entry.split(".")[-4] for entry in line["training_entry"].split(" + ")] == ["q_proj", "k_proj", "v_proj"]
    assert "+" not in line["inference_entry"]


def test_csv_has_the_elements_figures(tensors: Comparison) -> None:
    rows = [row.tensor for module in tensors.pairs[0].modules for row in module.rows if row.tensor is not None]
    lines = [line for line in read(tensors) if line["evidence"] == "tensors"]
    assert len(lines) == len(rows) > 20
    for row, line in zip(rows, lines, strict=True):
        assert line["tensor_cosine"] == ("" if row.cosine is None else str(row.cosine))
        assert (line["tensor_ulp"], line["tensor_exact"]) == (str(row.ulp), str(row.exact))


def test_csv_is_no_formula(run: Comparison) -> None:
    pair = replace(run.pairs[0], request_id="=HYPERLINK(1)")
    lines = read(replace(run, pairs=[pair]))
    assert {line["request_id"] for line in lines} == {"'=HYPERLINK(1)"}
    assert any(line["inference_min"].startswith("-") for line in lines), "a negative number is no formula"


def test_csv_of_nothing_is_a_header(nothing: Comparison) -> None:
    assert "".join(csv_lines(nothing)) == ",".join(HEADER) + "\r\n"
