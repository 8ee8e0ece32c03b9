"""Faults planted in real dumps are found, and named at the module they are in."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from train_infer_consistency.comparing.record import Comparison

from .cases import Data, changed, direct, dump_of, find, leaves, scale

INFER = {"fp32": "vllm_fp32_stat", "bf16": "vllm_bf16_stat"}
TRAIN = {"fp32": "verl_fsdp1_fp32_stat", "bf16": "verl_fsdp1_bf16_stat"}
LAYER = "_fsdp_wrapped_module.model.layers.{}._fsdp_wrapped_module."
Plant = Callable[[Callable[[Data], None]], Comparison]


@pytest.fixture(params=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plant(dumps: Path, tmp_path: Path, dtype: str) -> Plant:
    """Plant a fault on the training side and compare."""

    def compare_with(change: Callable[[Data], None]) -> Comparison:
        look = dumps / "lookalike"
        return direct(dump_of(look / INFER[dtype]), changed(dump_of(look / TRAIN[dtype]), tmp_path / "rank0", change))

    return compare_with


def named(found: Comparison) -> tuple[str, str]:
    assert (found.verdict, found.status) == ("different", 1)
    assert found.first_difference is not None
    assert found.first_difference.module in found.reason
    return found.first_difference.module, found.first_difference.row.kind


def test_without_a_fault_nothing_is_found(plant: Plant) -> None:
    assert plant(lambda data: None).verdict == "consistent"


def test_a_uniform_drift_of_9_percent(plant: Plant) -> None:
    def drift(data: Data) -> None:
        for entry in data.values():
            for leaf in leaves([entry["input_args"], entry["input_kwargs"], entry["output"]]):
                if leaf["dtype"].startswith(("torch.float", "torch.bfloat")):
                    scale(leaf, 1.09)

    assert named(plant(drift)) == ("embed", "output")


@pytest.mark.parametrize(
    ("part", "module", "kind"),
    [
        ("input_layernorm", "layers.1.input_norm", "output"),
        ("self_attn.v_proj", "layers.1.attn.qkv", "v"),
        ("self_attn.o_proj", "layers.1.attn.o", "output"),
        ("mlp.down_proj", "layers.1.mlp.down", "output"),
        ("Qwen2DecoderLayer", "layers.1", "output"),
    ],
)
def test_one_module_that_is_off(plant: Plant, part: str, module: str, kind: str) -> None:
    def off(data: Data) -> None:
        for leaf in leaves(find(data, LAYER.format(1) + part)["output"]):
            scale(leaf, 1.09)

    assert named(plant(off)) == (module, kind)


def test_what_lies_between_two_modules_is_found_at_the_input_of_the_second(plant: Plant) -> None:
    """Attention itself is no module in transformers: what is wrong in it first shows in what o_proj gets."""

    def off(data: Data) -> None:
        for leaf in leaves(find(data, LAYER.format(0) + "self_attn.o_proj")["input_args"]):
            scale(leaf, 0.9)

    assert named(plant(off)) == ("layers.0.attn.o", "input")


def test_two_swapped_projections(plant: Plant) -> None:
    """k and v have one shape, so that a loader can swap them: qkv as a whole has the same statistics, v has not."""

    def swap(data: Data) -> None:
        key, value = (find(data, LAYER.format(0) + f"self_attn.{part}_proj") for part in "kv")
        key["output"], value["output"] = value["output"], key["output"]
        key["parameters"], value["parameters"] = value["parameters"], key["parameters"]

    assert named(plant(swap)) == ("layers.0.attn.qkv", "v")


def test_a_stale_layer(plant: Plant) -> None:
    """Layer 1 still has other weights: they are named, not what comes out of them."""

    def stale(data: Data) -> None:
        for name, entry in data.items():
            if LAYER.format(1) in name and "proj" in name:
                entry["parameters"]["weight"] = data[name.replace("layers.1.", "layers.0.")]["parameters"]["weight"]
                for leaf in leaves(entry["output"]):
                    scale(leaf, 1.3)

    assert named(plant(stale)) == ("layers.1.attn.qkv", "weight")


def test_shifted_positions(plant: Plant) -> None:
    def shift(data: Data) -> None:
        for leaf in leaves(find(data, "rotary_emb")["input_args"]):
            if leaf["dtype"] == "torch.int64":
                leaf["Max"], leaf["Min"] = leaf["Max"] + 1, leaf["Min"] + 1

    module, kind = named(plant(shift))
    assert (module, kind) == ("layers.0.attn.rope", "positions")


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_positions_that_are_null_are_no_difference_and_no_crash(plant: Plant, name: str) -> None:
    def null(data: Data) -> None:
        for leaf in leaves(find(data, "rotary_emb")["input_args"]):
            leaf[name] = None

    assert plant(null).verdict == "consistent"


@pytest.mark.parametrize("dtype", ["fp32"], indirect=True)
def test_another_epsilon(plant: Plant) -> None:
    """RMSNorm with 1e-5 in place of 1e-6: the first norm is off by 1.2 %, as its small input makes it."""

    def epsilon(data: Data) -> None:
        entry = find(data, LAYER.format(0) + "input_layernorm")
        (before,) = leaves(entry["input_args"])
        square = before["Norm"] ** 2 / (11 * 64)
        for leaf in leaves(entry["output"]):
            scale(leaf, ((square + 1e-6) / (square + 1e-5)) ** 0.5)

    assert named(plant(epsilon)) == ("layers.0.input_norm", "output")


@pytest.mark.parametrize("dtype", ["fp32"], indirect=True)
@pytest.mark.parametrize("labelled", [True, False])
def test_one_module_in_bf16(plant: Plant, labelled: bool) -> None:
    """Whether the dump says bf16 or the result was cast back to fp32: a lone coarser module is no rounding."""

    def coarse(data: Data) -> None:
        for leaf in leaves(find(data, LAYER.format(0) + "mlp.down_proj")["output"]):
            scale(leaf, 1 + 2**-9)
            if labelled:
                leaf["dtype"] = "torch.bfloat16"

    assert named(plant(coarse)) == ("layers.0.mlp.down", "output")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_a_difference_and_no_pass(plant: Plant, value: float) -> None:
    def poison(data: Data) -> None:
        for leaf in leaves(find(data, LAYER.format(0) + "mlp.down_proj")["output"]):
            leaf["Max"] = value

    found = plant(poison)
    assert named(found) == ("layers.0.mlp.down", "output")
    assert found.first_difference is not None
    assert found.first_difference.row.side == "training"
    assert "NaN or infinity on the training side only" in found.reason
    json.dumps(found.to_json(), allow_nan=False)


def test_not_finite_on_both_sides_is_no_pass(dumps: Path, tmp_path: Path) -> None:
    def poison(data: Data) -> None:
        for entry in data.values():
            for leaf in leaves([entry["input_args"], entry["output"], entry["parameters"]]):
                leaf["Norm"] = float("nan")

    look = dumps / "lookalike"
    sides = [
        changed(dump_of(look / name), tmp_path / name / "rank0", poison) for name in (INFER["fp32"], TRAIN["fp32"])
    ]
    found = direct(*sides)
    assert found.verdict == "insufficient"
    assert found.coverage == 0.0


def test_nulls_are_not_available_and_never_zero(plant: Plant) -> None:
    def null(data: Data) -> None:
        for name in ("Mean", "Norm"):
            for leaf in leaves(find(data, LAYER.format(1) + "self_attn.o_proj")["output"]):
                leaf[name] = None

    found = plant(null)
    assert found.verdict == "insufficient"
    assert "layers.1.attn.o" in found.reason


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_side_that_lacks_modules_is_never_consistent(plant: Plant, share: float) -> None:
    def cut(data: Data) -> None:
        for name in list(data)[: int(len(data) * share)]:
            del data[name]

    assert plant(cut).status == 3


def test_a_torn_file_is_never_consistent(dumps: Path, tmp_path: Path) -> None:
    """The process was killed while msprobe wrote: whatever is whole agrees, and what is not there is unknown."""
    look = dumps / "lookalike"
    text = dump_of(look / "verl_fsdp1_fp32_stat").read_text()
    torn = tmp_path / "rank0" / "dump.json"
    torn.parent.mkdir()
    torn.write_text(text[: text.index('"Module._fsdp_wrapped_module.model.norm.')])
    found = direct(dump_of(look / "vllm_fp32_stat"), torn, min_coverage=0.5)
    assert (found.verdict, found.status) == ("insufficient", 3)
    assert "the file ends too early" in found.reason
    assert found.coverage > 0.9


def test_a_torn_file_with_a_difference_is_different(dumps: Path, tmp_path: Path) -> None:
    look = dumps / "lookalike"

    def off(data: Data) -> None:
        for leaf in leaves(find(data, LAYER.format(0) + "mlp.down_proj")["output"]):
            scale(leaf, 1.5)

    path = changed(dump_of(look / "verl_fsdp1_fp32_stat"), tmp_path / "rank0", off)
    path.write_text(path.read_text()[:-3000])
    assert named(direct(dump_of(look / "vllm_fp32_stat"), path)) == ("layers.0.mlp.down", "output")


@pytest.mark.parametrize("layer", [0, 1])
def test_a_module_that_one_layer_lacks_on_both_sides(dumps: Path, tmp_path: Path, layer: int) -> None:
    """Nothing is one-sided then, and by coverage alone it would pass; the other layer tells."""
    paths = []
    for name in ("vllm_fp32_stat", "verl_fsdp1_fp32_stat"):

        def lose(data: Data) -> None:
            for key in [key for key in data if f"layers.{layer}." in key and "mlp.down_proj" in key]:
                del data[key]

        paths.append(changed(dump_of(dumps / "lookalike" / name), tmp_path / name, lose))
    found = direct(*paths)
    assert (found.verdict, found.coverage) == ("insufficient", 1.0)
    assert found.reason == f"both sides lack layers.{layer}.mlp.down, which the other layers have"


def test_layers_of_another_kind_lack_nothing(dumps: Path, tmp_path: Path) -> None:
    """The first layer dense, the second a mixture of experts: each has what the other has not."""

    def dense(data: Data) -> None:
        for key in [key for key in data if "layers.0.mlp." in key]:
            entry = data.pop(key)
            if key.endswith("mlp.gate.Qwen3MoeTopKRouter.forward.0"):
                data["Module.model.layers.0.mlp.down_proj.Linear.forward.0"] = entry

    path = changed(dump_of(dumps / "lookalike" / "hf5_qwen3moe_stat"), tmp_path / "rank0", dense)
    found = direct(path, path)
    names = {module.module for module in found.pairs[0].modules}
    assert {"layers.0.mlp.down", "layers.1.mlp.router"} <= names
    assert "layers.0.mlp.router" not in names
    assert found.verdict == "consistent", found.reason


def test_a_difference_counts_at_any_coverage(plant: Plant) -> None:
    def cut(data: Data) -> None:
        for name in [name for name in data if LAYER.format(1) in name]:
            del data[name]
        for leaf in leaves(find(data, LAYER.format(0) + "mlp.down_proj")["output"]):
            scale(leaf, 1.5)

    found = plant(cut)
    assert found.coverage < 0.9
    assert named(found) == ("layers.0.mlp.down", "output")


def test_other_tokens_of_one_range_are_no_difference(dumps: Path, tmp_path: Path) -> None:
    """Same count, same largest and smallest id, other ids: the embedding's output is another lookup of one table."""

    def other(data: Data) -> None:
        generator = random.Random(1)
        for name, entry in data.items():
            for leaf in leaves([entry["output"]]):
                if leaf["dtype"] == "torch.float32" and "rotary" not in name:
                    leaf["Norm"] *= generator.uniform(0.8, 1.25)
                    leaf["Mean"] += leaf["Norm"] / 500
                    leaf["Max"] *= generator.uniform(0.8, 1.25)

    look = dumps / "lookalike"
    found = direct(dump_of(look / INFER["fp32"]), changed(dump_of(look / TRAIN["fp32"]), tmp_path / "rank0", other))
    assert found.verdict == "insufficient"
    assert "different tokens" in found.reason


class TestTensors:
    """The same with elements: what statistics cannot see is seen."""

    @pytest.fixture
    def pair(self, dumps: Path, tmp_path: Path) -> tuple[Path, Path]:
        shutil.copytree(dumps / "lookalike" / "tensor_pair", tmp_path / "pair")
        return tmp_path / "pair/infer/step0/rank0", tmp_path / "pair/fsdp1/step0/rank0"

    def swap_files(self, folder: Path, one: str, two: str) -> None:
        data = folder / "dump_tensor_data"
        (first,), (second,) = list(data.glob(one)), list(data.glob(two))
        first.rename(data / "kept")
        second.rename(first)
        (data / "kept").rename(second)

    def test_swapped_gate_and_up(self, pair: tuple[Path, Path]) -> None:
        gate, up = (f"*layers.1.*mlp.{part}_proj.Linear.forward.0.output.0.pt" for part in ("gate", "up"))
        self.swap_files(pair[1], gate, up)
        found = direct(*pair)
        assert named(found) == ("layers.1.mlp.gate_up", "output")
        assert found.first_difference is not None
        assert found.first_difference.row.tensor is not None
        assert found.first_difference.row.tensor.cosine is not None
        assert found.first_difference.row.tensor.cosine < 0.9

    def test_swapped_weights_of_k_and_v(self, pair: tuple[Path, Path]) -> None:
        one, two = (f"*layers.0.*self_attn.{part}_proj.Linear.forward.0.parameters.weight.pt" for part in "kv")
        self.swap_files(pair[1], one, two)
        assert named(direct(*pair)) == ("layers.0.attn.qkv", "weight")

    def test_other_tokens_are_known_by_position(self, pair: tuple[Path, Path]) -> None:
        """Positions 0 to 10 in place of the ids: other tokens, of the same count."""
        ids = next((pair[1] / "dump_tensor_data").glob("*embed_tokens*input.0.pt"))
        positions = next((pair[1] / "dump_tensor_data").glob("*Qwen2Model*position_ids.pt"))
        shutil.copy(positions, ids)
        found = direct(*pair)
        assert found.verdict == "insufficient"
        assert "different tokens: from position 0 on" in found.reason

    def test_a_missing_or_damaged_file_is_a_reported_gap(self, pair: tuple[Path, Path]) -> None:
        (file,) = (pair[1] / "dump_tensor_data").glob("*layers.1.*o_proj.Linear.forward.0.output.0.pt")
        file.write_bytes(file.read_bytes()[:-200])
        found = direct(*pair)
        assert found.verdict == "insufficient"
        assert "layers.1.attn.o" in found.reason
        file.unlink()
        assert direct(*pair).verdict == "insufficient"
