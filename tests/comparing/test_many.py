"""Many pairs: beside each other or one after the other, kept whole or bare: the same result; and how it fails."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pytest

from train_infer_consistency.comparing import many
from train_infer_consistency.comparing.compare import Options
from train_infer_consistency.comparing.many import How, Runner, Severity, Task, compare_many, compare_task, workers_for
from train_infer_consistency.comparing.pairs import compare
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.comparing.stored import Packed, Store, pack, unpack
from train_infer_consistency.comparing.workers import in_processes
from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.errors import EvidenceError, UnfinishedError, UsageError
from train_infer_consistency.pairing.direct import given
from train_infer_consistency.pairing.join import pair
from train_infer_consistency.pairing.model import Pair, Pairing
from train_infer_consistency.reporting.write import write

from .cases import Data, changed, dump_of, find, leaves, scale

OPTIONS = Options()


@pytest.fixture(scope="module")
def pairing(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Pairing:
    """A run's two pairs, one that differs, one with an empty dump, one in another dtype; and what was rejected."""
    folder, look = dumps / "loop" / "fully_async_qwen3_fsdp2_ids", dumps / "lookalike"
    found = pair(scan(folder / "generate_sequence"), scan(folder / "update_actor"))

    def off(data: Data) -> None:
        for leaf in leaves(find(data, "layers.1._fsdp_wrapped_module.mlp.down_proj")["output"]):
            scale(leaf, 1.09)

    target = tmp_path_factory.mktemp("differs") / "step0" / "rank0"
    infer = dump_of(look / "vllm_fp32_stat")
    differs = changed(dump_of(look / "verl_fsdp1_fp32_stat"), target, off)
    others = [differs, dump_of(look / "killed_before_stop"), dump_of(look / "verl_fsdp1_bf16_stat")]
    more = [found_pair for path in others for found_pair in given(infer, path).pairs]
    return Pairing([*found.pairs, more[1], more[2], more[0], *found.pairs], found.folders, found.logged, found.problems)


def text(comparison: Comparison) -> str:
    return json.dumps(comparison.to_json(), ensure_ascii=False)


def shuffled(seed: int) -> Runner:
    """A runner that works in any order."""

    def run(pairs: Sequence[Pair], how: How, beaten: Callable[[], Severity | None]) -> Generator[Packed, None, None]:
        order = list(range(len(pairs)))
        random.Random(seed).shuffle(order)
        for index in order:
            yield compare_task(Task(index, pairs[index], beaten()), how)

    return run


@pytest.mark.parametrize("some", [slice(None), slice(0, 4), slice(0, 2), slice(2, 3)], ids=str)
@pytest.mark.parametrize("runner", [None, in_processes(3), *map(shuffled, range(4))])
def test_the_result_is_the_same(pairing: Pairing, some: slice, runner: Runner | None) -> None:
    part = Pairing(pairing.pairs[some], pairing.folders, pairing.logged, pairing.problems)
    whole = compare(part, OPTIONS)
    told: list[tuple[int, int]] = []
    with Store() as store:
        found = compare_many(
            part, How(OPTIONS), store, runner=runner, progress=lambda done, total: told.append((done, total))
        )
        assert text(found) == text(whole)
        assert found.worst is not None
    assert told == [(done, len(part.pairs)) for done in range(1, len(part.pairs) + 1)]


def test_reports_are_the_same(pairing: Pairing, tmp_path: Path) -> None:
    whole = compare(pairing, OPTIONS)
    with Store() as store:
        found = compare_many(pairing, How(OPTIONS, every=True), store, runner=in_processes(2))
        for name, comparison in (("one", whole), ("two", found)):
            folder = tmp_path / name
            list(
                write(
                    comparison, page=folder, csv=folder / "rows.csv", junit=folder / "junit.xml", view=folder / "view"
                )
            )
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) > 10
    for file in files:
        assert (tmp_path / "two" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file


def test_what_is_kept_of_a_pair_is_small(pairing: Pairing) -> None:
    how = How(OPTIONS, every=True)
    packed = compare_task(Task(0, pairing.pairs[0], None), how)
    assert packed.whole is not None
    assert len(packed.bare) * 4 < len(packed.whole)
    bare, whole = unpack(packed.bare), unpack(packed.whole)
    assert bare.inference is not None
    assert (bare.modules, bare.inference.modules, bare.inference.dumps[0].calls) == ([], {}, ())
    assert bare.to_json() == whole.to_json()
    assert pack(0, whole, whole=False) == (0, pack(0, bare, whole=False).bare, None)


def test_only_what_may_speak_for_the_whole_is_sent_whole(pairing: Pairing) -> None:
    consistent, different = pairing.pairs[0], pairing.pairs[4]
    how = How(OPTIONS)
    assert compare_task(Task(1, consistent, (2, 1.0, 0)), how).whole is None
    assert compare_task(Task(1, consistent, (2, 1.0, 2)), how).whole is not None
    assert compare_task(Task(1, different, (1, 0.0, 0)), how).whole is not None
    assert compare_task(Task(1, different, (0, 0.0, 0)), how).whole is None


@pytest.mark.parametrize("runner", [None, in_processes(3)])
def test_an_error_is_the_first_pairs(pairing: Pairing, dumps: Path, runner: Runner | None) -> None:
    look = dumps / "lookalike"
    noise = dump_of(look / "vllm_packed_7p11_stat")
    with pytest.raises(EvidenceError) as alone:
        compare(pairing, OPTIONS, noise)
    with Store() as store, pytest.raises(EvidenceError) as found:
        compare_many(pairing, How(OPTIONS, noise), store, runner=runner)
    assert str(found.value) == str(alone.value)
    with Store() as store, pytest.raises(UsageError, match="is a whole tree"):
        compare_many(pairing, How(OPTIONS, look), store, runner=runner)
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed(pairing: Pairing) -> None:
    def kill(done: int, total: int) -> None:
        for child in multiprocessing.active_children():
            child.kill()
            child.join()

    many_pairs = Pairing(pairing.pairs * 3)
    with Store() as store, pytest.raises(UnfinishedError, match=r"was ended by SIGKILL; .* fewer --workers"):
        compare_many(many_pairs, How(OPTIONS), store, runner=in_processes(2), progress=kill)
    assert multiprocessing.active_children() == []


class Full(io.BytesIO):
    """A file on a full disk."""

    def __init__(self, max_size: int) -> None:
        super().__init__()

    def write(self, _: object) -> int:
        raise OSError(28, "No space left on device")


def test_no_room_for_the_results(pairing: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.SpooledTemporaryFile", Full)
    with Store() as store, pytest.raises(UnfinishedError, match=r"No space left on device.*TMPDIR"):
        compare_many(pairing, How(OPTIONS), store, runner=in_processes(2))
    assert multiprocessing.active_children() == []


def test_processes_are_started_where_they_are_worth_it(pairing: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert workers_for(pairing.pairs) == 1
    monkeypatch.setattr(many, "WORTH_IT", 1000)
    assert workers_for(pairing.pairs) == 4
    assert workers_for(pairing.pairs[:2]) == 2
    assert workers_for(pairing.pairs[:1]) == 1


def children(pid: int) -> list[int]:
    """Processes that compare; multiprocessing's own bookkeeper is none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it never came to be")


@pytest.fixture
def running(dumps: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A comparison whose processes are stopped, so that it waits for them."""
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    command = [sys.executable, "-m", "train_infer_consistency.cli.main", "compare", "--workers", "2"]
    command += [str(folder / "generate_sequence"), str(folder / "update_actor")]
    # What a shell starts in the background ignores an interrupt, and so would all that this starts; env resets it.
    command = ["env", "--default-signal=INT", *command]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            until(lambda: len(children(child.pid)) == 2)
            started = children(child.pid)
            for pid in started:
                os.kill(pid, signal.SIGSTOP)
            yield child, started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_ctrl_c_leaves_no_process(running: tuple[subprocess.Popen[str], list[int]]) -> None:
    child, started = running
    for pid in started:  # it is for the process that started them alone
        (blocked,) = re.findall(r"SigBlk:\s(\w+)", Path(f"/proc/{pid}/status").read_text())
        assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (4, "")
    assert err.splitlines() == ["consistency: interrupted; nothing half-written was left"]
    assert all(map(gone, started))


def test_processes_end_with_the_one_that_started_them(running: tuple[subprocess.Popen[str], list[int]]) -> None:
    child, started = running
    child.kill()
    child.wait(timeout=60)
    for pid in started:
        os.kill(pid, signal.SIGCONT)
    until(lambda: all(map(gone, started)))
