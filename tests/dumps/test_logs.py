"""Reading the request logs: as documented, as our own loggers write them, and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.capture.test_vllm import new, scheduler_output
from train_infer_consistency.capture.log import JsonLines, identity, prompt_hash
from train_infer_consistency.capture.vllm import Requests, why_not_whole_prompt
from train_infer_consistency.dumps import logs
from train_infer_consistency.dumps.logs import read_dispatch, read_update_actor
from train_infer_consistency.dumps.steps import LogLine, Origin, Request

SLOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
DOCUMENTED = {
    "source": "dispatch_logger",
    "timestamp": "2026-05-13T10:00:00",
    "pid": 3680237,
    "rank": 0,
    "step": 0,
    "phase": "prefill",
    "total_num_scheduled_tokens": 95,
    "requests": [{"request_id": "f1f254c04e0c443b85ea1e7359e842dc", "type": "new", "tokens": 95}],
}
DECODE = {
    **DOCUMENTED,
    "step": 7,
    "phase": "decode",
    "requests": [
        {"request_id": "a", "type": "cached", "tokens": 1},
        {"request_id": "b", "type": "cached", "tokens": 1},
    ],
}
TRAINED = {
    "source": "update_actor",
    "timestamp": "2026-05-13T10:00:01",
    "pid": 3665398,
    "rank": 0,
    "step": 0,
    "request_ids": ["f1f254c04e0c443b85ea1e7359e842dc"],
    "num_requests": 1,
}


def write(path: Path, *records: object, compact: bool = False) -> Path:
    separators = (",", ":") if compact else None
    path.write_text("".join(json.dumps(record, separators=separators) + "\n" for record in records))
    return path


@pytest.mark.parametrize("compact", [False, True])
def test_documented_lines(tmp_path: Path, compact: bool) -> None:
    log = read_dispatch([write(tmp_path / "dispatch_log.jsonl", DOCUMENTED, DECODE, compact=compact)])
    assert log.problems == []
    (line,) = log.lines
    assert (line.number, line.step, line.phase, line.timestamp) == (1, 0, "prefill", "2026-05-13T10:00:00")
    assert line.origin == Origin(pid=3680237, rank=0)
    assert line.requests == (Request("f1f254c04e0c443b85ea1e7359e842dc", "new", 95),)
    assert (line.dump, line.skipped, line.invalid, line.weight_version) == (None, None, False, None)
    (decodes,) = log.decodes
    assert (list(decodes.numbers), list(decodes.steps), decodes.origin) == ([2], [7], Origin(pid=3680237, rank=0))
    (trained,) = read_update_actor([write(tmp_path / "update.jsonl", TRAINED, compact=compact)]).lines
    assert (trained.step, trained.phase, trained.origin) == (0, None, Origin(pid=3665398, rank=0))
    assert trained.requests == (Request("f1f254c04e0c443b85ea1e7359e842dc"),)


def test_a_new_request_in_a_decode_is_no_plain_decode(tmp_path: Path) -> None:
    one_token = {**DECODE, "requests": [{"request_id": "a", "type": "new", "tokens": 1}]}
    log = read_dispatch([write(tmp_path / "log.jsonl", one_token)])
    assert log.decodes == []
    assert log.lines[0].requests == (Request("a", "new", 1),)


def test_a_step_with_a_zero_in_front_is_no_json(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", *({**DECODE, "step": step} for step in (0, 6, 17, 8)))
    path.write_text(path.read_text().replace('"step": 17', '"step": 07'))
    log = read_dispatch([path])
    assert [list(run.steps) for run in log.decodes] == [[0, 6, 8]]
    assert [(problem.number, problem.kind) for problem in log.problems] == [(3, "damaged")]


def our_log(path: Path, lines: list[dict[str, Any]], **more: Any) -> Path:
    """Write lines with the logger of a collection run, below the fields that every line of a process has."""
    constants = identity("dispatch_logger", "vllm-ascend", 1, {"tp_size": 2, "tp_rank": 1}, **more)
    log = JsonLines(path, constants)
    for line in lines:
        log.write(line)
    log.close()
    return path


def test_our_dispatch_log(tmp_path: Path) -> None:
    requests = Requests()
    whole = requests.describe(scheduler_output([new("a-1234abcd", [5, 6, 7])], [], {"a-1234abcd": 3}))
    later = scheduler_output([], [("a-1234abcd", 3, 0)], {"a-1234abcd": 1})
    decode = requests.describe(later)
    drafts = requests.describe(
        scheduler_output([], [("a-1234abcd", 4, 1)], {"a-1234abcd": 3}, drafts={"a-1234abcd": [1, 2]})
    )
    resumed = requests.describe(scheduler_output([], [("a-1234abcd", 0, 2)], {"a-1234abcd": 5}, resumed={"a-1234abcd"}))
    dumped = {**whole, "weight_version": 2, "step": 0, "dump": "77/step0/rank1", "skipped": None}
    rest = [
        {**line, "weight_version": 2, "step": None, "dump": None, "skipped": why_not_whole_prompt(line)}
        for line in (decode, drafts, resumed)
    ]
    path = our_log(tmp_path / "dispatch_log.jsonl", [dumped, *rest], run_id="r1", msprobe="26.2.0", overlay="x")
    log = read_dispatch([path])
    assert log.problems == []
    first, drafted, back = log.lines
    assert first.origin == Origin(
        os.getpid(), 1, "vllm-ascend", first.origin.host, None, "r1", "26.2.0", {"tp_size": 2, "tp_rank": 1}
    )
    assert first.origin.host
    assert first.origin.size("tp_size") == 2
    assert first.origin.size("dp_size") is None
    expected = Request("a-1234abcd", "new", 3, "prefill", 0, 3, prompt_hash([5, 6, 7]))
    assert first.requests == (expected,)
    assert (first.step, first.dump, first.weight_version) == (0, "77/step0/rank1", 2)
    assert (drafted.skipped, drafted.requests[0].drafts) == ("speculative", 2)
    assert (back.skipped, back.requests[0].resumed) == ("resumed", True)
    (decodes,) = log.decodes
    assert (list(decodes.numbers), list(decodes.steps)) == ([2], [-1])
    assert decodes.origin is first.origin


def test_our_training_log(tmp_path: Path) -> None:
    sample = {
        "request_id": "a",
        "prompt_length": 3,
        "response_length": 4,
        "prompt_hash": prompt_hash([5, 6, 7]),
        "rollout_weight_versions": [1, 2],
    }
    line = {
        "request_ids": ["a"],
        "num_requests": 1,
        "requests": [
            sample,
            {**sample, "request_id": None, "rollout_weight_versions": [None, None], "sample_index": 9},
        ],
        "weight_version": 3,
        "trainer_step": 4,
        "phase": "log_prob",
        "prompt_only": True,
        "virtual_chunk": 1,
        "first_layer": 2,
        "step": 4,
        "dump": "step4/rank1",
        "skipped": None,
        "invalid": True,
    }
    (read,) = read_update_actor([our_log(tmp_path / "update_actor_log.jsonl", [line], run_id=None)]).lines
    first, second = read.requests
    assert (first.request_id, first.prompt_length, first.response_length, first.versions) == ("a", 3, 4, (1, 2))
    assert (second.request_id, second.versions, second.sample_index) == (None, (None, None), 9)
    assert (read.phase, read.dump, read.weight_version, read.invalid) == ("log_prob", "step4/rank1", 3, True)
    assert read.extra == {"prompt_only": True, "virtual_chunk": 1, "first_layer": 2, "trainer_step": 4}


@pytest.mark.parametrize("missing", [None, "None", "null", ""])
def test_ids_that_are_none(tmp_path: Path, missing: str | None) -> None:
    record = {**TRAINED, "request_ids": [missing, "b"]}
    (line,) = read_update_actor([write(tmp_path / "log.jsonl", record)]).lines
    assert [request.request_id for request in line.requests] == [None, "b"]
    record = {**DOCUMENTED, "requests": [{"request_id": missing, "type": "new", "tokens": 3}]}
    (line,) = read_dispatch([write(tmp_path / "log.jsonl", record)]).lines
    assert line.requests == (Request(None, "new", 3),)


def test_lost_ids_still_count_as_requests(tmp_path: Path) -> None:
    (line,) = read_update_actor(
        [write(tmp_path / "log.jsonl", {**TRAINED, "request_ids": [], "num_requests": 2})]
    ).lines
    assert line.requests == (Request(None), Request(None))


def test_numbers_as_ids(tmp_path: Path) -> None:
    (line,) = read_update_actor([write(tmp_path / "log.jsonl", {**TRAINED, "request_ids": [0]})]).lines
    assert line.requests == (Request("0"),)


@pytest.mark.parametrize("last", [DOCUMENTED, DECODE], ids=["prefill", "decode"])
def test_a_torn_last_line_is_said_and_the_others_are_read(tmp_path: Path, last: dict[str, Any]) -> None:
    path = write(tmp_path / "log.jsonl", DOCUMENTED, DECODE)
    whole = json.dumps(last)
    for length in range(1, len(whole)):
        path.write_text(json.dumps(DOCUMENTED) + "\n" + whole[:length])
        log = read_dispatch([path])
        assert (len(log.lines), len(log.decodes)) == (1, 0), length
        (problem,) = log.problems
        assert (problem.number, problem.kind) == (2, "torn")
        assert str(problem) == f"{path}:2: the last line ends too early"


def test_a_last_line_without_its_line_end_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(DOCUMENTED) + "\n" + json.dumps(DECODE))
    log = read_dispatch([path])
    assert (log.problems, [line.step for line in log.lines]) == ([], [0, 7])


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("\0\0\0\0", "damaged"),
        ("[1, 2]", "damaged"),
        ("7", "damaged"),
        ('{"step": 1} {"step": 2}', "damaged"),
        ("\xff\xfe", "damaged"),
        ('{"step": 1}', "unfit"),
        (json.dumps({**DOCUMENTED, "step": "1"}), "unfit"),
        (json.dumps({**DOCUMENTED, "step": -1}), "unfit"),
        (json.dumps({**DOCUMENTED, "step": True}), "unfit"),
        (json.dumps({**DOCUMENTED, "requests": "all"}), "unfit"),
        (json.dumps({**DOCUMENTED, "requests": [3]}), "unfit"),
        (json.dumps({**DOCUMENTED, "phase": ["prefill"]}), "unfit"),
        (json.dumps({**DOCUMENTED, "pid": {}}), "unfit"),
        (json.dumps({**DOCUMENTED, "requests": [{"request_id": "\ud800"}]}), "unfit"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_lines_that_are_no_records_are_problems(tmp_path: Path, line: str, kind: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n\n" + json.dumps(DOCUMENTED).encode() + b"\n")
    log = read_dispatch([path])
    assert [found.number for found in log.lines] == [3]
    assert [(problem.number, problem.kind) for problem in log.problems] == [(1, kind)]


def test_an_unreadable_log_is_a_problem(tmp_path: Path) -> None:
    log = read_dispatch([tmp_path / "gone.jsonl", write(tmp_path / "log.jsonl", DOCUMENTED)])
    assert len(log.lines) == 1
    (problem,) = log.problems
    assert (problem.number, problem.kind) == (0, "unreadable")


def test_several_processes_in_one_file(tmp_path: Path) -> None:
    others = [{**DOCUMENTED, "pid": pid, "rank": rank} for pid, rank in ((1, 0), (2, 1), (1, 0), (2, 1))]
    log = read_dispatch([write(tmp_path / "log.jsonl", *others, *({**DECODE, "pid": pid} for pid in (1, 2, 1)))])
    assert [(line.origin.pid, line.origin.rank) for line in log.lines] == [(1, 0), (2, 1), (1, 0), (2, 1)]
    assert log.lines[0].origin is log.lines[2].origin
    assert [(run.origin.pid, list(run.numbers)) for run in log.decodes] == [(1, [5, 7]), (2, [6])]


def by_content(lines: list[LogLine]) -> list[str]:
    return sorted(repr(line._replace(path=Path(), number=0)) for line in lines)


@given(st.data())
@SLOW
def test_the_order_of_lines_changes_only_their_order(tmp_path: Path, dumps: Path, data: st.DataObject) -> None:
    source = next((dumps / "loop" / "hybrid_qwen2_fsdp1").rglob("dispatch_log.jsonl"))
    lines = source.read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join(data.draw(st.permutations(lines))))
    one, other = read_dispatch([source]), read_dispatch([tmp_path / "log.jsonl"])
    assert by_content(one.lines) == by_content(other.lines)
    assert sorted(one.decodes[0].steps) == sorted(other.decodes[0].steps)


@given(st.data())
@SLOW
def test_a_changed_byte_is_a_problem_or_one_other_line(tmp_path: Path, data: st.DataObject) -> None:
    records = [DOCUMENTED, DECODE, {**DOCUMENTED, "step": 1}]
    good = bytearray(write(tmp_path / "log.jsonl", *records).read_bytes())
    whole = read_dispatch([tmp_path / "log.jsonl"])
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "log.jsonl").write_bytes(good)
    log = read_dispatch([tmp_path / "log.jsonl"])
    unchanged = set(by_content(whole.lines)) & set(by_content(log.lines))
    # A changed line end joins two lines, a new one cuts one in two.
    assert len(unchanged) >= len(whole.lines) - 2
    steps = len(log.lines) + sum(len(run.steps) for run in log.decodes)
    assert steps >= 3 or log.problems


def test_real_logs(dumps: Path) -> None:
    for path in sorted(dumps.rglob("*.jsonl")):
        read = (read_dispatch if "dispatch" in path.name else read_update_actor)([path])
        count = len(path.read_text().splitlines())
        assert read.problems == []
        assert len(read.lines) + sum(len(run.steps) for run in read.decodes) == count


def slowly(path: Path) -> tuple[list[LogLine], list[tuple[int, int | None]]]:
    """Read a log with the JSON parser alone: its lines, and number and step of those that are plain decodes."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_dispatched", "_trained"):
            patch.setattr(logs._LogReader, name, lambda *_: None)
        log = read_dispatch([path]) if "dispatch" in path.name else read_update_actor([path])
    plain = [
        line for line in log.lines if line.phase == "decode" and all(one.type == "cached" for one in line.requests)
    ]
    return [line for line in log.lines if line not in plain], [(line.number, line.step) for line in plain]


def quickly(path: Path) -> tuple[list[LogLine], list[tuple[int, int | None]]]:
    log = read_dispatch([path]) if "dispatch" in path.name else read_update_actor([path])
    runs = [zip(run.numbers, run.steps, strict=True) for run in log.decodes]
    return log.lines, sorted((number, None if step < 0 else step) for run in runs for number, step in run)


def test_both_ways_of_reading_agree_on_real_logs(dumps: Path) -> None:
    paths = sorted(dumps.rglob("*.jsonl"))
    assert sum(len(quickly(path)[1]) for path in paths) > 80
    for path in paths:
        assert quickly(path) == slowly(path), path


ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "request_id": st.sampled_from(["a", "b-1a2b3c4d", "None", "new", "wé", None, 3]),
            "type": st.sampled_from(["new", "cached"]),
            "tokens": st.integers(0, 99),
        }
    ),
    max_size=3,
)


@given(
    st.lists(st.tuples(st.sampled_from(["prefill", "decode"]), ENTRIES, st.integers(0, 2), st.booleans()), max_size=6),
    st.booleans(),
)
@SLOW
def test_both_ways_of_reading_agree_on_any_documented_log(
    tmp_path: Path, forwards: list[tuple[str, list[dict[str, Any]], int, bool]], compact: bool
) -> None:
    records = []
    for step, (phase, entries, pid, same_time) in enumerate(forwards):
        stamp = "2026-05-13T10:00:00" if same_time else f"2026-05-13T10:00:{step:02}.5"
        record = {**DOCUMENTED, "timestamp": stamp, "pid": pid, "step": step, "phase": phase, "requests": entries}
        records.append({**record, "total_num_scheduled_tokens": sum(entry["tokens"] for entry in entries)})
    path = write(tmp_path / "dispatch_log.jsonl", *records, compact=compact)
    lines, decodes = quickly(path)
    other, plain = slowly(path)
    # An odd decode, such as one without requests, may be read either way.
    together = sorted([(line.number, line.step) for line in lines] + decodes)
    assert together == sorted([(line.number, line.step) for line in other] + plain)
    assert [line for line in lines if line in other] == [line for line in other if line in lines]
    assert all(line in other or (line.number, line.step) in plain for line in lines)
    assert set(decodes) <= set(plain)


NUMBERS = st.integers(0, 99)
EXTRAS = st.dictionaries(
    st.sampled_from([*["trainer_step", "prompt_only", "virtual_chunk"] * 4, "step", "other"]),
    st.one_of(st.integers(1, 99), st.booleans(), st.just("all"), st.none()),
    max_size=3,
)
NAMES = st.sampled_from([*["a", "b-1a2b3c4d"] * 5, "None", "wé", "w x", None, 3])


@given(st.booleans(), NAMES, st.tuples(*[NUMBERS] * 5), st.tuples(*[st.none() | NUMBERS] * 3), EXTRAS, EXTRAS)
@SLOW
def test_both_ways_of_reading_agree_on_any_line_of_our_own_loggers(
    tmp_path: Path,
    training: bool,
    name: str | int | None,
    counts: tuple[int, ...],
    weights: tuple[int | None, ...],
    more: dict[str, Any],
    rest: dict[str, Any],
) -> None:
    tokens, computed, length, response, step = counts
    entry: dict[str, Any]
    if training:
        entry = {"request_id": name, "prompt_length": length, "response_length": response, "prompt_hash": "5ef"}
        entry["rollout_weight_versions"] = list(weights[:2])
        line = {"request_ids": [name], "num_requests": 1, "requests": [entry], "weight_version": weights[2]}
        line.update({**more, "phase": "log_prob", **rest})
    else:
        entry = {"request_id": name, "type": "new", "tokens": tokens, "phase": "prefill", "computed_tokens": computed}
        entry.update({"prompt_length": length, "prompt_hash": "5ef"})
        line = {"phase": "prefill", "total_num_scheduled_tokens": tokens, "requests": [entry]}
        line["weight_version"] = weights[2]
    path = tmp_path / ("update_actor_log.jsonl" if training else "dispatch_log.jsonl")
    path.unlink(missing_ok=True)
    our_log(path, [{**line, "step": step, "dump": f"step{step}/rank1", "skipped": None}] * 2, run_id="r1")
    assert quickly(path) == slowly(path)


@pytest.mark.parametrize("form", ["documented", "ours"])
@pytest.mark.parametrize("training", [False, True])
def test_both_ways_of_reading_agree_on_any_changed_byte(tmp_path: Path, form: str, training: bool) -> None:
    """Of a line that is no decode: a zero in front of a number, for one, is no JSON."""
    path = tmp_path / ("update_actor_log.jsonl" if training else "dispatch_log.jsonl")
    numbers = {"pid": 10, "rank": 10, "step": 10}
    if form == "documented":
        more = TRAINED if training else {**DOCUMENTED, "total_num_scheduled_tokens": 10}
        write(path, {**more, **numbers})
    elif training:
        entry = {"request_id": "a", "prompt_length": 10, "response_length": 10, "prompt_hash": "5ef"}
        entry["rollout_weight_versions"] = [10, 10]
        line = {"request_ids": ["a"], "num_requests": 1, "requests": [entry], "weight_version": 10, "trainer_step": 10}
        our_log(path, [{**line, "phase": "log_prob", "step": 10, "dump": "step10/rank1", "skipped": None}])
    else:
        entry = {"request_id": "a", "type": "new", "tokens": 10, "phase": "prefill", "computed_tokens": 10}
        entry.update({"prompt_length": 10, "prompt_hash": "5ef"})
        line = {"phase": "prefill", "total_num_scheduled_tokens": 10, "requests": [entry], "weight_version": 10}
        our_log(path, [{**line, "step": 10, "dump": "step10/rank1", "skipped": None}])
    good = path.read_bytes()
    changed = [good[:at] + bytes([byte]) + good[at + 1 :] for at in range(len(good) - 1) for byte in b'0-.x" ,\n\xff']
    path.write_bytes(b"".join(changed))
    assert quickly(path) == slowly(path)
