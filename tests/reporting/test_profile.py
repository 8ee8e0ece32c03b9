"""The error curve and the map of layers x modules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train_infer_consistency.comparing.record import Comparison, PairResult
from train_infer_consistency.reporting.profile import VIEWS, curve, error_of, heat_map, row_of


def only(comparison: Comparison) -> PairResult:
    (pair,) = comparison.pairs
    return pair


def test_the_curve_follows_the_forward_pass_and_names_the_worst_of_each_layer(planted: Comparison) -> None:
    points = curve(only(planted))
    assert [point.column for point in points] == ["embed", "0", "1", "final_norm"]
    embed, first, second, last = points
    assert (embed.word, first.word, second.word, last.word) == ("equal", "equal", "differs", "equal")
    assert second.worst is not None
    assert (second.worst.module, second.worst.kind) == ("layers.1.mlp.down", "output")
    assert second.worst.error is not None
    assert second.worst.error == pytest.approx(0.09 / 1.09, rel=1e-3)
    assert second.worst.error > second.worst.bound > 0
    assert first.output == second.output == 0.0, "the planted fault is in a branch, not in what the layer gives on"


def test_the_map_has_every_module_in_its_place(planted: Comparison) -> None:
    pair = only(planted)
    heat = heat_map(pair)
    assert heat.columns == ["embed", "0", "1", "final_norm", "model", "rotary_tables"]
    assert heat.rows[0] == "(outside the layers)"
    assert heat.rows.index("input_norm") < heat.rows.index("attn.qkv") < heat.rows.index("mlp.down")
    assert heat.rows[-1] == "(layer output)"
    assert {(row_of(module.module), module.module) for module in pair.modules} == {
        (row, cell.module) for (row, _), cell in heat.cells.items()
    }
    assert heat.cells["mlp.down", "1"].word == "differs"
    assert heat.cells["mlp.down", "1"].worst > 1
    assert heat.cells["attn.o", "0"].word == "missing"
    assert heat.cells["attn.core", "0"].word == "partnerless"
    assert heat.cells["mlp.gate_up", "0"].word == "equal"


def test_views_show_their_rows_alone(planted: Comparison) -> None:
    maps = {view: heat_map(only(planted), view) for view in VIEWS}
    words = {view: heat.cells["mlp.down", "1"].word for view, heat in maps.items()}
    assert words == {"all": "differs", "output": "differs", "input": "equal", "parameter": "equal"}
    assert maps["parameter"].cells["mlp.down", "1"].kind == "weight"
    assert ("(layer output)", "1") not in maps["parameter"].cells


def test_experts_share_a_row_and_the_worst_speaks() -> None:
    assert row_of("layers.3.mlp.experts.7.down") == row_of("layers.0.mlp.experts.12.down") == "mlp.experts.#.down"
    assert row_of("layers.3") == "(layer output)"
    assert row_of("lm_head") == "(outside the layers)"


def test_the_error_of_a_row_is_that_of_its_elements_where_there_are_any(
    tensors: Comparison, planted: Comparison
) -> None:
    rows = [row for module in only(tensors).modules for row in module.rows if row.tensor is not None]
    assert rows
    assert all(row.tensor is not None and error_of(row) == row.tensor.relative for row in rows)
    difference = planted.first_difference
    assert difference is not None
    assert difference.row.errors is not None
    assert error_of(difference.row) == max(value for value in difference.row.errors if value is not None)


def test_what_was_not_compared_has_no_error(nothing: Comparison) -> None:
    assert curve(only(nothing)) == []
    assert heat_map(only(nothing)).cells == {}


def test_what_both_sides_have_is_not_missing_and_has_no_error(gaps: Comparison) -> None:
    pair = only(gaps)
    heat = heat_map(pair)
    assert heat.cells["attn.o", "0"].word == heat.cells["mlp.down", "0"].word == "not compared"
    assert heat.cells["attn.o", "1"].word == "within rounding"
    rows = [row for module in pair.modules for row in module.rows if module.module == "layers.0.attn.o"]
    assert rows
    assert [error_of(row) for row in rows] == [None] * len(rows)


@pytest.mark.parametrize("bad", [0, 1])
def test_the_worst_expert_stands_for_all(planted: Comparison, bad: int) -> None:
    pair = only(planted)
    by_name = {module.module: module for module in pair.modules}
    found = [by_name["layers.0.mlp.down"], by_name["layers.1.mlp.down"]]  # equal, differs
    experts = [
        replace(module, module=f"layers.0.mlp.experts.{number}.down")
        for number, module in enumerate(found if bad else found[::-1])
    ]
    cell = heat_map(replace(pair, modules=experts)).cells["mlp.experts.#.down", "0"]
    assert (cell.word, cell.module) == ("differs", f"layers.0.mlp.experts.{bad}.down")
