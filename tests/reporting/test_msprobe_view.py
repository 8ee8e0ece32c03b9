"""The folders for msprobe's viewer; tests/engines/test_msprobe_view.py lets the real one open them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.comparing.cases import direct, dump_of, leaves
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.dumps.reader import read_rank
from train_infer_consistency.errors import EvidenceError, UsageError
from train_infer_consistency.reporting.msprobe_view import LayerMapping, entry_of, view, write_view

Files = dict[str, dict[str, Any]]


def sides(comparison: Comparison) -> tuple[Files, Files]:
    (pair,) = comparison.pairs
    found = view(pair)
    return found["inference"], found["training"]


def shapes(entry: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(leaf["dtype"], tuple(leaf["shape"])) for leaf in leaves(entry)]


def test_what_both_sides_have_is_written_alike(equal: Comparison) -> None:
    one, two = sides(equal)
    for module in equal.pairs[0].modules:
        key = entry_of(module.module)
        if module.rows:
            assert shapes(one["dump.json"]["data"][key]) == shapes(two["dump.json"]["data"][key]) != []
            assert one["construct.json"][key] == two["construct.json"][key]
        else:
            assert (key in one["construct.json"]) != (key in two["construct.json"])


def test_fused_parts_are_one_entry_with_the_statistics_of_the_whole(equal: Comparison) -> None:
    one, two = (side["dump.json"]["data"] for side in sides(equal))
    key = "Module.layers.0.attn.qkv.Qkv.forward.0"
    assert one[key]["output"][0]["Norm"] == pytest.approx(two[key]["output"][0]["Norm"], rel=1e-6)
    assert two[key]["output"][0]["shape"] == [11, 128]
    assert two[key]["parameters"]["weight"]["shape"] == [128, 64]
    assert "Module.layers.0.mlp.gate_up.GateUp.forward.0" in two
    assert not [name for name in two if "q_proj" in name or "gate_proj" in name]


def test_every_parent_is_there_and_has_its_children_on_both_sides(equal: Comparison) -> None:
    one, two = (side["construct.json"] for side in sides(equal))
    assert one["Module.layers.1.mlp.down.Down.forward.0"] == "Module.layers.1.mlp.Mlp.forward.0"
    assert one["Module.layers.1.mlp.Mlp.forward.0"] == "Module.layers.1.Layer.forward.0"
    assert one["Module.layers.1.Layer.forward.0"] is None
    for construct in (one, two):
        assert {parent for parent in construct.values() if parent} <= construct.keys()
        names = list(construct)
        assert names.index("Module.layers.0.Layer.forward.0") < names.index("Module.layers.1.Layer.forward.0")


def test_the_origin_of_every_number_stands_in_the_stack(planted: Comparison) -> None:
    (pair,) = planted.pairs
    for side, files in zip((pair.inference, pair.training), sides(planted), strict=True):
        assert side is not None
        lines = {names[0]: text for names, text in files["stack.json"].values()}
        assert lines.keys() == files["construct.json"].keys()
        entry = lines["Module.layers.1.mlp.down.Down.forward.0"]
        (piece,) = side.modules["layers.1.mlp.down"].rows["output"].pieces
        assert any(str(piece.dump.path) in line and piece.call.name in line for line in entry)
        assert "consistency: differs" in entry


def test_the_dumps_are_dumps(planted: Comparison, tmp_path: Path) -> None:
    paths = write_view(planted, tmp_path / "view")
    assert [path.name for path in paths] == ["generate", "train", "layer_mapping.yaml"]
    for side in paths[:2]:
        dump = read_rank(side / "step0" / "rank0")
        assert dump.complete
        assert dump.problems == ()
        assert len(dump.calls) == len(json.loads((side / "step0" / "rank0" / "dump.json").read_text())["data"])


def test_pairs_are_steps(run: Comparison, tmp_path: Path) -> None:
    write_view(run, tmp_path)
    assert sorted(path.name for path in (tmp_path / "generate").iterdir()) == ["step0", "step1"]


def test_the_mapping_names_whole_modules_alone(equal: Comparison, tmp_path: Path) -> None:
    text = write_view(equal, tmp_path)[2].read_text().splitlines()
    assert text[1] == "TopLayer:"
    rules = dict(json.loads(f"[{line.strip().replace(': ', ', ')}]") for line in text[2:])
    wrapped = "_fsdp_wrapped_module"
    assert rules["model.norm"] == f"{wrapped}.model.norm"
    assert rules["model.layers.1.mlp.down_proj"] == f"{wrapped}.model.layers.1.{wrapped}.mlp.down_proj"
    assert "model.layers.1.self_attn.qkv_proj" not in rules, "three modules there"


def test_nothing_to_show_is_said(nothing: Comparison, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no pair could be compared"):
        write_view(nothing, tmp_path / "view")
    assert not (tmp_path / "view").exists()


@pytest.mark.parametrize("name", ["has space", "a+b", "层"])
def test_paths_that_msprobe_refuses(planted: Comparison, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="refuses"):
        write_view(planted, tmp_path / name)


def test_one_dtype_and_nothing_that_was_not_compared(gaps: Comparison) -> None:
    for side in sides(gaps):
        data = side["dump.json"]["data"]
        key = "Module.layers.0.attn.o.O.forward.0"
        assert key not in data
        assert key in side["construct.json"]
        assert {leaf["dtype"] for leaf in leaves(data["Module.layers.1.attn.o.O.forward.0"])} == {"torch.bfloat16"}


def test_a_name_of_two_pipeline_stages_is_not_mapped(dumps: Path) -> None:
    folder = dumps / "megatron"
    found = direct(folder / "verl_pp2_n11" / "step0", folder / "hf_n11" / "step0")
    mapping = LayerMapping()
    for pair in found.pairs:
        mapping.add(pair)
    text = "".join(mapping.lines())
    assert '"module.decoder.final_layernorm": "model.norm"' in text
    # Each stage calls its own first layer layers.0; of linear_fc2 msprobe dumped the second stage's alone.
    assert [line for line in text.splitlines() if "layers" in line] == [
        '  "module.decoder.layers.0.mlp.linear_fc2": "model.layers.1.mlp.down_proj"'
    ]


def test_the_coarser_dtype_stands_for_both_whichever_side_has_it(dumps: Path) -> None:
    folder = dumps / "lookalike"
    found = direct(dump_of(folder / "vllm_fp32_stat"), dump_of(folder / "verl_fsdp1_bf16_stat"))
    for side in sides(found):
        entry = side["dump.json"]["data"]["Module.layers.1.attn.o.O.forward.0"]
        assert {leaf["dtype"] for leaf in leaves(entry)} == {"torch.bfloat16"}
