"""Reading ``dump.json``: real dumps of every writer, level and task, both ways of reading, and damage of every kind."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train_infer_consistency.dumps import reader
from train_infer_consistency.dumps.entries import COMMON, EntryReader
from train_infer_consistency.dumps.reader import peek, read_rank
from train_infer_consistency.dumps.records import Call, Leaf, RankDump
from train_infer_consistency.errors import EvidenceError

SLOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


def leaf(**changed: Any) -> dict[str, Any]:
    made = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1, 3], "Max": 1.5, "Min": -2, "Mean": 0.25}
    return {**made, "Norm": 2.5, "requires_grad": False, **changed}


def entry(**changed: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"input_args": [leaf()], "input_kwargs": {}, "output": [leaf()], "parameters": {}}
    return {**made, **changed}


def write(path: Path, data: dict[str, Any], **head: Any) -> Path:
    """Write a dump as msprobe does, with an indent of 1 and bare NaN and Infinity."""
    made = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None, **head, "data": data}
    path.write_text(json.dumps(made, indent=1))
    return path


def slowly(path: Path, monkeypatch: pytest.MonkeyPatch) -> RankDump:
    """Read with the JSON parser alone."""
    with monkeypatch.context() as patch:
        patch.setattr(EntryReader, "common", lambda *_: None)
        return read_rank(path)


def same(one: object, other: object) -> bool:
    """Equal, where NaN is equal to NaN and the order of everything counts."""
    return repr(one) == repr(other)


REAL = {
    "lookalike/vllm_fp32_stat/step0/rank0": ("statistics", "L0", 26),
    "lookalike/vllm_bf16_stat/step0/rank0": ("statistics", "L0", 26),
    "lookalike/vllm_packed_reqslice_prechigh_stat/step0/proc4416": ("statistics", "L0", 27),
    "lookalike/hf_mix_stat/step0/proc15746": ("statistics", "mix", 107),
    "lookalike/hf_train_fwd_bwd_L0_stat/step0/proc22595": ("statistics", "L0", 82),
    "lookalike/hf5_qwen3moe_stat/step0/proc25334": ("statistics", "L0", 33),
    "lookalike/msprobe_8.3.3_hf_bf16_stat/step0/rank": ("statistics", "L0", 52),
    "lookalike/msprobe_26.0.0_hf_bf16_stat/step0/proc7416": ("statistics", "L0", 31),
    "lookalike/slime_megatron_list_fp32_stat/step0/rank0": ("statistics", "L0", 28),
    "lookalike/tensor_pair/infer/step0/rank0": ("tensor", "L0", 26),
    "lookalike/verl_fsdp1_fp32_md5/step0/rank0": ("statistics", "L0", 30),
    "megatron/slime_tp1_n11_mix/old_log_prob/step0/rank0": ("statistics", "mix", 140),
}


@pytest.mark.parametrize("folder", REAL)
def test_real_dumps_are_read_whole(dumps: Path, folder: str) -> None:
    task, level, count = REAL[folder]
    dump = read_rank(dumps / folder)
    raw = json.loads((dumps / folder / "dump.json").read_text())["data"]
    assert (dump.task, dump.level, dump.problems, dump.complete) == (task, level, (), True)
    assert len(dump.calls) == len(raw) == count
    assert [call.name for call in dump.calls] == list(raw)
    assert [call.order for call in dump.calls] == list(range(count))
    for call in dump.calls:
        assert leaves(call) == Counter(values(raw[call.name])), call.name


def values(value: Any) -> list[tuple[object, ...]]:
    """Every tensor in a raw entry, by its own fields."""
    if isinstance(value, dict) and "dtype" in value:
        stats = [None if value.get(name) is None else float(value[name]) for name in ("Max", "Min", "Mean", "Norm")]
        return [(value["dtype"], tuple(value["shape"]), *stats, value.get("md5"), value.get("data_name"))]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for item in items for found in values(item)]


def leaves(call: Call) -> Counter[tuple[object, ...]]:
    found = [*call.inputs, *call.outputs, *call.parameters.values()]
    return Counter(tuple(item) for item in found if item is not None)


def test_all_real_dumps_are_the_same_both_ways(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(dumps.rglob("dump.json"))
    assert len(paths) > 200
    quick = 0
    for path in paths:
        dump = read_rank(path)
        assert same(dump, slowly(path, monkeypatch)), path
        quick += len(COMMON.findall(path.read_text()))
    assert quick > 2000


def test_names_of_every_form(dumps: Path) -> None:
    def find(folder: str, name: str) -> Call:
        return next(call for call in read_rank(dumps / folder).calls if call.name == name)

    mix = "lookalike/hf_mix_stat/step0/proc15746"
    api = find(mix, "Functional.embedding.0.forward")
    assert (api.kind, api.module, api.cls, api.call, api.direction) == (
        "Functional",
        "embedding",
        "embedding",
        0,
        "forward",
    )
    # Scalars and nulls keep their places.
    assert [item is None for item in api.inputs] == [False, False, True, True, True, True, True]
    listed = "lookalike/slime_megatron_list_fp32_stat/step0/rank0"
    name = "Module.0.module.module.embedding.word_embeddings.VocabParallelEmbedding.forward.0"
    call = find(listed, name)
    assert (call.list_index, call.module) == (0, "module.module.embedding.word_embeddings")
    assert (call.cls, call.direction, call.call) == ("VocabParallelEmbedding", "forward", 0)
    old = "lookalike/msprobe_8.3.3_hf_bf16_stat/step0/rank"
    gradient = find(old, "Module.model.embed_tokens.Embedding.parameters_grad")
    assert (gradient.module, gradient.direction, gradient.call) == ("model.embed_tokens", "parameters_grad", 0)
    assert gradient.parameters == {}
    train = "lookalike/hf_train_fwd_bwd_L0_stat/step0/proc22595"
    directions = Counter(call.direction for call in read_rank(dumps / train).calls)
    assert directions == {"forward": 31, "backward": 30, "parameters_grad": 21}
    grown = next(call for call in read_rank(dumps / train).calls if call.direction == "parameters_grad")
    assert list(grown.parameters) in (["weight"], ["weight", "bias"])


def test_nested_outputs_and_keyword_inputs(tmp_path: Path) -> None:
    nested = {
        "input_args": [[leaf(Max=1), leaf(Max=2)], {"type": "int", "value": 3}],
        "input_kwargs": {"position_embeddings": [leaf(Max=3), leaf(Max=4)], "mask": None, "ids": leaf(Max=5)},
        "output": [{"last_hidden_state": leaf(Max=6), "more": [leaf(Max=7), None]}],
        "parameters": {"weight": leaf(Max=8), "bias": None},
    }
    (call,) = read_rank(write(tmp_path / "dump.json", {"Module.m.C.forward.0": nested})).calls
    assert [item and item.max for item in call.inputs] == [1, 2, None, 3, 4, None, 5]
    assert {name: item.max for name, item in call.kwargs.items()} == {
        "position_embeddings.0": 3,
        "position_embeddings.1": 4,
        "ids": 5,
    }
    assert [item and item.max for item in call.outputs] == [6, 7, None]
    assert {name: item.max for name, item in call.parameters.items()} == {"weight": 8}


def test_null_and_non_finite_statistics_stay_what_they_are(tmp_path: Path, dumps: Path) -> None:
    data = {
        "Module.a.C.forward.0": entry(output=[leaf(Max=math.inf, Min=-math.inf, Mean=math.nan, Norm=None)]),
        "Module.b.C.forward.0": entry(input_kwargs={"x": leaf(Max=math.nan, Min=None, Mean=math.inf, Norm=True)}),
    }
    text = write(tmp_path / "dump.json", data).read_text()
    assert "NaN" in text
    assert "-Infinity" in text
    first, second = read_rank(tmp_path / "dump.json").calls
    (output,) = first.outputs
    assert output is not None
    assert (output.max, output.min, output.norm) == (math.inf, -math.inf, None)
    assert output.mean is not None
    assert math.isnan(output.mean)
    assert second.kwargs["x"].min is None
    assert second.kwargs["x"].norm == 1.0
    # msprobe 26.1 and later with precision: high
    high = read_rank(dumps / "lookalike" / "vllm_packed_reqslice_prechigh_stat" / "step0" / "proc4416")
    assert all(item.mean is None and item.norm is None for call in high.calls for item in call.outputs if item)


def test_checksums(dumps: Path) -> None:
    crcs = []
    for side in ("vllm_fp32_md5", "verl_fsdp1_fp32_md5"):
        dump = read_rank(dumps / "lookalike" / side / "step0" / "rank0")
        embedding = next(call for call in dump.calls if "embed_tokens" in call.module)
        crcs.append(
            (embedding.inputs[0] and embedding.inputs[0].crc, embedding.outputs[0] and embedding.outputs[0].crc)
        )
    assert crcs[0] == crcs[1]
    assert all(len(crc) == 8 for crc in crcs[0] if crc)


def test_a_process_that_was_killed_left_an_empty_dump(dumps: Path) -> None:
    dump = read_rank(dumps / "lookalike" / "killed_before_stop" / "step0" / "proc25227")
    assert dump.empty
    assert dump.complete
    assert (dump.step, dump.rank) == (0, None)


@pytest.mark.parametrize(
    ("folder", "step", "rank"),
    [
        ("step0/rank0", 0, 0),
        ("step_12/rank_3", 12, 3),
        ("step7/proc99", 7, None),
        ("step1/rank", 1, None),
        ("x/y", None, None),
    ],
)
def test_step_and_rank_come_from_the_folders(tmp_path: Path, folder: str, step: int | None, rank: int | None) -> None:
    (tmp_path / folder).mkdir(parents=True)
    write(tmp_path / folder / "dump.json", {})
    dump = read_rank(tmp_path / folder)
    assert (dump.step, dump.rank) == (step, rank)


def test_without_stack_and_construct(tmp_path: Path, dumps: Path) -> None:
    source = dumps / "lookalike" / "vllm_fp32_stat" / "step0" / "rank0" / "dump.json"
    alone = tmp_path / "dump.json"
    alone.write_bytes(source.read_bytes())
    assert read_rank(alone).calls == read_rank(source).calls


def test_peek_reads_the_beginning_only(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.json", {f"Module.m{n}.C.forward.0": entry() for n in range(50)})
    path.write_text(path.read_text()[:-40])
    assert [call.module for call in peek(path, 3).calls] == ["m0", "m1", "m2"]
    assert peek(path, 3).complete
    assert not read_rank(path).complete


PEAK = """
import sys
from pathlib import Path
from train_infer_consistency.dumps.reader import read_rank

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

before = peak()
print(len(read_rank(Path(sys.argv[1])).calls), peak() - before)
"""


def test_a_large_dump_is_never_whole_in_memory(tmp_path: Path) -> None:
    """A mixture of experts: its records are far less than the text and the dictionaries that a JSON parser makes."""
    numbers, modules, path = random.Random(1), 42_000, tmp_path / "dump.json"

    def tensor(*shape: int) -> str:
        return one.replace('"FIGURE"', repr(numbers.random())).replace('"SHAPE"', str([*shape]))

    one = json.dumps(leaf(shape="SHAPE", Max="FIGURE", Norm="FIGURE"), indent=1)
    with path.open("w") as file:
        file.write('{"task": "statistics", "level": "L0", "data": {')
        for number in range(modules):
            name = f"Module.layers.{number // 600}.experts.{number % 600}.up.Linear.forward.0"
            file.write(
                f'{"," * bool(number)}\n "{name}": {{\n  "input_args": [{tensor(3, 2048)}],\n  "input_kwargs": {{}},'
            )
            file.write(f'\n  "output": [{tensor(3, 768)}],\n  "parameters": {{"weight": {tensor(768, 2048)}}}\n }}')
        file.write("}}")
    assert path.stat().st_size > 28e6
    command = [sys.executable, "-c", PEAK, str(path)]
    count, taken = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert count == modules
    assert taken < 100e6


@pytest.mark.parametrize("window", [16, 100, 1000, 9000])
def test_the_window_may_end_anywhere(dumps: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    path = dumps / "lookalike" / "hf_mix_stat" / "step0" / "proc15746" / "dump.json"
    whole = read_rank(path)
    monkeypatch.setattr(reader, "_WINDOW", window)
    monkeypatch.setattr(reader, "_LONG", window // 2)
    assert same(read_rank(path), whole)


def test_compact_json_is_read_too(tmp_path: Path) -> None:
    data = {"Module.a.C.forward.0": entry(parameters={"weight": leaf()}), "Module.b.C.forward.0": entry()}
    indented = read_rank(write(tmp_path / "dump.json", data))
    (tmp_path / "compact.json").write_text(json.dumps({"data": data, "task": "tensor", "level": "L1"}))
    compact = read_rank(tmp_path / "compact.json")
    assert compact.calls == indented.calls
    assert (compact.task, compact.level) == ("tensor", "L1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends too early"),
        ("[]", "'{' is missing"),
        ('{"task": "statistics"}', "it has no 'data'"),
        ('{"data": []}', "'{' is missing"),
        ("PK\x03\x04", "'{' is missing"),
        ('{"data"', "ends too early"),
    ],
)
def test_what_is_no_dump_is_an_error_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(EvidenceError, match="is no msprobe dump") as caught:
        read_rank(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_rank(tmp_path / "dump.json")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"Max": "big"}, "Max is no number"),
        ({"Norm": [1]}, "Norm is no number"),
        ({"Mean": 10**400}, "Mean is no number"),
        ({"shape": [1, -3]}, "no list of sizes"),
        ({"shape": [1, 2.0]}, "no list of sizes"),
        ({"shape": "1x3"}, "without dtype and shape"),
        ({"dtype": 3}, "without dtype and shape"),
        ({"md5": 7}, "md5 is no text"),
    ],
)
def test_a_field_of_a_wrong_kind_is_a_gap_not_a_number(tmp_path: Path, broken: dict[str, Any], words: str) -> None:
    data = {"Module.a.C.forward.0": entry(output=[leaf(**broken)]), "Module.b.C.forward.0": entry()}
    dump = read_rank(write(tmp_path / "dump.json", data))
    assert len(dump.calls) == 2
    assert not dump.complete
    (problem,) = dump.problems
    assert words in problem
    assert "Module.a.C.forward.0" in problem


def test_entries_that_msprobe_never_writes_are_gaps(tmp_path: Path) -> None:
    data = {
        "nonsense": entry(),
        "Module.a.C.sideward.0": entry(),
        "Module.b.C.forward.0": [],
        "Module.c.C.forward.0": {},
    }
    dump = read_rank(write(tmp_path / "dump.json", data))
    assert [call.module for call in dump.calls] == ["c"]
    assert len(dump.problems) == 4
    assert not dump.complete


def test_one_name_twice_is_a_gap(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.json", {"Module.a.C.forward.0": entry(), "Module.b.C.forward.0": entry()})
    path.write_text(path.read_text().replace("Module.b", "Module.a"))
    dump = read_rank(path)
    assert len(dump.calls) == 1
    assert "is there twice" in dump.problems[0]
    assert not dump.complete


@pytest.mark.parametrize(
    "text", ["01.5", "-01", "1.", "1.e5", "+1", ".5", "1_0", "nan", "inf", "1.5.5", "1-2", "e5", "--1"]
)
def test_a_number_that_json_does_not_know_is_damage_in_the_common_form_too(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "dump.json", {"Module.a.C.forward.0": entry(output=[leaf(Max=0.125)])})
    path.write_text(path.read_text().replace("0.125", text))
    dump = read_rank(path)
    assert not dump.complete
    assert not dump.calls


@pytest.mark.parametrize("text", ["[\n     1\n     3\n    ]", "[\n     01\n    ]", "[\n     1,,\n     3\n    ]", "[,]"])
def test_a_shape_that_json_does_not_know_is_damage_in_the_common_form_too(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "dump.json", {"Module.a.C.forward.0": entry(output=[leaf(shape=[77])])})
    old = path.read_text()
    path.write_text(old.replace("[\n      77\n     ]", text))
    assert path.read_text() != old
    assert not read_rank(path).complete


NUMBERS = st.one_of(st.none(), st.integers(-(10**20), 10**20), st.floats(), st.just(-0.0), st.booleans())
LEAVES = st.fixed_dictionaries(
    {
        "type": st.just("torch.Tensor"),
        "dtype": st.sampled_from(["torch.float32", "torch.bfloat16", "torch.int64"]),
        "shape": st.lists(st.integers(0, 10**6), max_size=4),
        **dict.fromkeys(("Max", "Min", "Mean", "Norm"), NUMBERS),
        "requires_grad": st.booleans(),
    }
)
NESTED = st.recursive(
    st.one_of(LEAVES, st.none(), st.just({"type": "int", "value": 3})),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3)
    ),
    max_leaves=4,
)
ENTRIES = st.fixed_dictionaries(
    {
        "input_args": st.one_of(st.tuples(LEAVES).map(list), st.lists(NESTED, max_size=2)),
        "input_kwargs": st.one_of(st.just({}), st.dictionaries(st.text("kw", min_size=1), NESTED, max_size=2)),
        "output": st.one_of(st.tuples(LEAVES).map(list), st.lists(NESTED, max_size=2)),
        "parameters": st.one_of(st.just({}), st.dictionaries(st.sampled_from(["weight", "bias"]), LEAVES, max_size=2)),
    }
)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
NAMES = st.one_of(
    st.lists(st.sampled_from(["model", "0", "12", "layers"]), min_size=1, max_size=3).map(
        lambda parts: "Module." + ".".join(parts) + ".C.forward.0"
    ),
    WORDS.map(lambda word: f"Module.{word}.C.forward.0"),
)


@given(st.dictionaries(NAMES, ENTRIES, max_size=6))
@SLOW
def test_both_ways_of_reading_agree_on_anything_msprobe_could_write(tmp_path: Path, data: dict[str, Any]) -> None:
    path = write(tmp_path / "dump.json", data)
    with pytest.MonkeyPatch.context() as patch:
        assert same(read_rank(path), slowly(path, patch))


@given(st.data())
@SLOW
def test_a_changed_byte_is_no_crash_and_hides_nothing(tmp_path: Path, dumps: Path, data: st.DataObject) -> None:
    source = dumps / "lookalike" / "vllm_fp32_md5" / "step0" / "rank0" / "dump.json"
    good, whole = bytearray(source.read_bytes()), read_rank(source)
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "dump.json").write_bytes(good)
    try:
        dump = read_rank(tmp_path / "dump.json")
    except EvidenceError:
        return
    with pytest.MonkeyPatch.context() as patch:
        assert same(dump, slowly(tmp_path / "dump.json", patch))
    if dump.complete:
        # A digit, a letter of a name or of a field: as many calls, and at most one of them is another.
        assert len(dump.calls) == len(whole.calls)
        assert sum(one != other for one, other in zip(dump.calls, whole.calls, strict=True)) <= 1
    else:
        assert dump.problems


@given(st.floats(0, 1, exclude_max=True))
@SLOW
def test_a_dump_cut_anywhere_says_so(tmp_path: Path, dumps: Path, share: float) -> None:
    source = dumps / "lookalike" / "vllm_fp32_stat" / "step0" / "rank0" / "dump.json"
    good, whole = source.read_bytes(), read_rank(source)
    (tmp_path / "dump.json").write_bytes(good[: int(len(good) * share)])
    try:
        dump = read_rank(tmp_path / "dump.json")
    except EvidenceError:
        return
    assert not dump.complete
    assert "ends too early" in dump.problems[-1]
    assert dump.calls == whole.calls[: len(dump.calls)]


def test_deep_nesting_and_trailing_data_are_gaps(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.json", {"Module.a.C.forward.0": entry()})
    text = path.read_text()
    path.write_text(text + text)
    assert "follows the end" in read_rank(path).problems[0]
    path.write_text(text.replace('"output": [', '"output": [' + "[" * 100_000))
    dump = read_rank(path)
    assert not dump.complete
    assert "nested too deeply" in dump.problems[0]


def test_leaf_counts_its_elements() -> None:
    assert Leaf("torch.float32", (2, 3, 4)).numel == 24
    assert Leaf("torch.float32", ()).numel == 1
