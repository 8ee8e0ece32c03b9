"""Order changes nothing, and damage never gives a better verdict."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from train_infer_consistency.comparing.compare import Options, compare_shards
from train_infer_consistency.comparing.rows import Shard
from train_infer_consistency.dumps.reader import read_rank
from train_infer_consistency.dumps.tensors import read_tensor
from train_infer_consistency.errors import EvidenceError

from ..dumps import pt_files
from .cases import Data, dump_of, find, leaves, scale, step0

QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
LAYER = "_fsdp_wrapped_module.model.layers.{}._fsdp_wrapped_module."


def verdicts(found: Any) -> Any:
    """A result without its file names."""
    modules = [(m.module, m.word, m.counted, [(r.kind, r.word, r.worst) for r in m.rows]) for m in found.modules]
    first = found.first_difference and (found.first_difference.module, found.first_difference.row.kind)
    return found.verdict, found.coverage, first, modules


@QUIET
@given(seed=st.integers(0, 2**32 - 1))
def test_shuffled_entries_ranks_and_files_change_nothing(dumps: Path, tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    ours, theirs = step0(dumps / "megatron" / "hf_n12"), step0(dumps / "megatron" / "slime_tp2_n12_sp")
    expected = compare_shards(
        [Shard(0, 0, read_rank(ours / "rank0"))],
        [Shard(r, 0, read_rank(theirs / f"rank{r}")) for r in (0, 1)],
        Options(),
    )
    members = []
    for name, folder in (("one", ours / "rank0"), ("two", theirs / "rank0"), ("three", theirs / "rank1")):
        content = json.loads((folder / "dump.json").read_text())
        entries = list(content["data"].items())
        generator.shuffle(entries)
        content["data"] = dict(entries)
        target = tmp_path / f"{name}.json"
        target.write_text(json.dumps(content))
        members.append(target)
    shards = [Shard(0, 0, read_rank(members[1])), Shard(1, 0, read_rank(members[2]))]
    generator.shuffle(shards)
    found = compare_shards([Shard(0, 0, read_rank(members[0]))], shards, Options())
    assert verdicts(found) == verdicts(expected)
    assert found.verdict == "consistent"


@pytest.fixture(scope="module", params=["stat", "md5"])
def lone_difference(dumps: Path, request: pytest.FixtureRequest) -> tuple[Path, bytes]:
    """A pair that differs in one row of one module only, so that losing this row would hide it; the second's bytes."""
    look = dumps / "lookalike"
    content = json.loads(dump_of(look / f"verl_fsdp1_fp32_{request.param}").read_text())

    def off(data: Data) -> None:
        for leaf in leaves(find(data, LAYER.format(1) + "mlp.down_proj")["output"]):
            scale(leaf, 1.2)
            if "md5" in leaf:
                leaf["md5"] = "0badcafe"

    off(content["data"])
    return dump_of(look / f"vllm_fp32_{request.param}"), json.dumps(content, indent=1).encode()


def judge(inference: Path, training: Path) -> str:
    try:
        dumps = [read_rank(path) for path in (inference, training)]
    except EvidenceError:
        return "insufficient"
    return compare_shards([Shard(0, 0, dumps[0])], [Shard(0, 0, dumps[1])], Options()).verdict


@settings(QUIET, max_examples=200)
@given(data=st.data())
def test_a_damaged_byte_never_hides_a_difference(
    lone_difference: tuple[Path, bytes], tmp_path: Path, data: st.DataObject
) -> None:
    inference, good = lone_difference
    # Half of the time in the entry that differs, where it could do harm.
    start = good.index(b"layers.1._fsdp_wrapped_module.mlp.down_proj.Linear") - 80
    place = data.draw(st.one_of(st.integers(start, start + 1700), st.integers(0, len(good) - 1)))
    damaged = bytearray(good)
    damaged[place] = data.draw(st.integers(0, 255))
    target = tmp_path / "dump.json"
    target.write_bytes(bytes(damaged))
    assert judge(inference, target) in ("different", "insufficient")


@settings(QUIET, max_examples=60)
@given(data=st.data())
def test_a_cut_or_patched_file_is_never_better(
    lone_difference: tuple[Path, bytes], tmp_path: Path, data: st.DataObject
) -> None:
    inference, good = lone_difference
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 4000)))
    target = tmp_path / "dump.json"
    target.write_bytes(
        good[:start] + data.draw(st.binary(max_size=30)) + (good[end:] if data.draw(st.booleans()) else b"")
    )
    assert judge(inference, target) in ("different", "insufficient")


LOSSES = st.lists(
    st.tuples(st.integers(0, 999), st.sampled_from(["entry", "Max", "Min", "Mean", "Norm"])), min_size=1, max_size=3
)


@settings(QUIET, max_examples=60)
@given(losses=LOSSES)
def test_a_lost_entry_or_number_is_never_better(
    lone_difference: tuple[Path, bytes], tmp_path: Path, losses: list[tuple[int, str]]
) -> None:
    """Whole entries and single statistics that are gone."""
    inference, good = lone_difference
    content = json.loads(good)
    names = sorted(content["data"])
    lost = {names[number % len(names)] for number, _ in losses}
    # A module that is gone from every layer is a matter of --min-coverage: of two layers' twenty modules it is a tenth.
    assume(not all(any(LAYER.format(layer) + "mlp.down_proj" in name for name in lost) for layer in (0, 1)))
    for number, what in losses:
        name = names[number % len(names)]
        if what == "entry":
            content["data"].pop(name, None)
        elif name in content["data"]:
            for leaf in leaves([content["data"][name]["output"], content["data"][name]["input_args"]]):
                leaf[what] = None
    target = tmp_path / "dump.json"
    target.write_text(json.dumps(content, indent=1))
    assert judge(inference, target) in ("different", "insufficient")


@pytest.fixture(scope="module")
def lone_tensor(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The same with elements: the inference side's dump, the training side's rank folder, and the file that differs."""
    pair = dumps / "lookalike" / "tensor_pair"
    rank = tmp_path_factory.mktemp("tensors") / "rank0"
    shutil.copytree(dump_of(pair / "fsdp1").parent, rank)
    (path,) = (rank / "dump_tensor_data").glob("*layers.1.*mlp.down_proj.Linear.forward.0.output.0.pt")
    whole = read_tensor(path).array
    path.chmod(0o644)
    off = (whole * 1.2).astype("<f4")
    pt_files.write(path, pt_files.pickled(pt_files.tensor("FloatStorage", off.size, off.shape)), {"0": off.tobytes()})
    return dump_of(pair / "infer"), rank, path


@settings(QUIET, max_examples=60)
@given(data=st.data())
def test_a_damaged_byte_of_a_tensor_never_hides_a_difference(
    lone_tensor: tuple[Path, Path, Path], data: st.DataObject
) -> None:
    inference, rank, path = lone_tensor
    damaged = data.draw(st.sampled_from([path, rank / "dump.json"]))
    good = damaged.read_bytes()
    assert judge(inference, rank) == "different"
    start = good.index(b"layers.1._fsdp_wrapped_module.mlp.down_proj.Linear") - 80 if damaged != path else 0
    place = data.draw(st.integers(start, min(start + 2500, len(good) - 1)))
    damaged.chmod(0o644)
    try:
        changed = bytearray(good)
        changed[place] = data.draw(st.integers(0, 255))
        damaged.write_bytes(bytes(changed))
        assert judge(inference, rank) in ("different", "insufficient")
    finally:
        damaged.write_bytes(good)
