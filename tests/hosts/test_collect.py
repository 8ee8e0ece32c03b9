"""``consistency collect``: the same verdict as in place; whole or not at all; what it says where it cannot go on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.cli.main import main
from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.hosts import copying, survey
from train_infer_consistency.hosts.sources import here, labelled

from .runs import RUN, SIDES, comparable, two_hosts

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def hosts(dumps: Path, tmp_path: Path) -> list[Path]:
    return two_hosts(dumps, tmp_path)


@pytest.fixture
def arguments(hosts: list[Path], tmp_path: Path) -> list[str]:
    sides = [[str(host / side) for host in hosts] for side in SIDES]
    return ["collect", "-o", str(tmp_path / "out"), "--generate", *sides[0], "--train", *sides[1]]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verdict(capsys: Capture, *words: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["compare", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def check_same(capsys: Capture, roots: list[list[Path]], out: Path) -> tuple[int, dict[str, Any]]:
    """Compare in place and where it was collected: everything but the places and the rejected steps is the same."""
    more = [word for side, paths in zip(("--generate", "--train"), roots, strict=True) for p in paths[1:]
            for word in (side, str(p))]  # fmt: skip
    wanted = verdict(capsys, roots[0][0], roots[1][0], *more)
    found = verdict(capsys, out / "generate", out / "train")
    record = json.loads((out / "collected.json").read_text())
    places = {str(out / source["to"]): source["folder"] for source in record["sources"]}
    assert (found[0], comparable(found[1], places)) == (wanted[0], comparable(wanted[1], {}))
    return wanted


def test_two_hosts_with_the_same_process_ids(
    hosts: list[Path], arguments: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert main(arguments) == 0
    out = tmp_path / "out"
    assert capsys.readouterr().out.splitlines()[-1] == f"consistency compare {out}/generate {out}/train"
    status, found = check_same(capsys, [[host / side for host in hosts] for side in SIDES], out)
    assert (status, found["verdict"], len(found["pairs"]["used"])) == (0, "consistent", 4)
    record = json.loads((out / "collected.json").read_text())
    copied = files(out)
    del copied["collected.json"]
    assert {file["path"]: file["sha256"] for file in record["files"]} == {
        path: hashlib.sha256(content).hexdigest() for path, content in copied.items()
    }
    assert record["bytes"] == sum(map(len, copied.values()))
    assert record["pairs"] == 4
    for source in record["sources"]:
        for path in (out / source["to"]).rglob("*"):
            origin = Path(source["folder"]) / path.relative_to(out / source["to"])
            if path.is_file():
                assert path.read_bytes() == origin.read_bytes()
                assert path.stat().st_mtime_ns == origin.stat().st_mtime_ns
    assert {step["reason"] for step in record["left_out"]["steps"]} >= {"several-requests"}
    ranks = [path for host in hosts for path in host.rglob("rank*")]
    assert 8 == len(list(out.rglob("rank*"))) == len(ranks) - record["left_out"]["folders"]
    assert not (tmp_path / "out.part").exists()


@pytest.mark.parametrize("name", ["ascend_hybrid_qwen2_fsdp1", "hybrid_qwen2_fsdp2", "fully_async_qwen3_fsdp2", RUN,
                                  "hybrid_qwen2_fsdp1", "single_qwen3_fsdp1"])  # fmt: skip
@pytest.mark.parametrize("steps", ["used", "all"])
def test_every_run_has_the_same_verdict(dumps: Path, tmp_path: Path, capsys: Capture, name: str, steps: str) -> None:
    run = dumps / "loop" / name
    roots = [[run / side] for side in SIDES]
    words = ["collect", "-o", str(tmp_path / "out"), "--generate", str(roots[0][0]), "--train", str(roots[1][0])]
    status = main([*words, *(["--steps", "all"] if steps == "all" else [])])
    wanted, found = check_same(capsys, roots, tmp_path / "out")
    paired = bool(found["pairs"]["used"])
    assert status == (0 if paired or steps == "all" else 3)
    if steps == "all":
        for side, root in zip(("generate", "train"), roots, strict=True):
            (copy,) = (tmp_path / "out" / side).glob("*/*")
            originals = {path: content for path, content in files(root[0]).items() if "rank" in path or "_log" in path}
            assert files(copy) == originals
    elif not paired:
        assert wanted == 3
        assert not list((tmp_path / "out").rglob("dump.json"))


def test_logs_and_dumps_on_different_hosts(dumps: Path, tmp_path: Path, capsys: Capture) -> None:
    """The documents' layout without process folders, and logs that lie apart from the dumps."""
    run = dumps / "loop" / RUN
    for host, wanted in (("node-1", "jsonl"), ("node-2", "json")):
        for side in SIDES:
            shutil.copytree(run / side, tmp_path / host / side, ignore=lambda folder, names, wanted=wanted: [
                n for n in names if (Path(folder) / n).is_file() and not n.endswith("." + wanted)])  # fmt: skip
    roots = [[tmp_path / host / side for host in ("node-1", "node-2")] for side in SIDES]
    words = [str(path) for path in roots[0]], [str(path) for path in roots[1]]
    main(["collect", "-o", str(tmp_path / "out"), "--generate", *words[0], "--train", *words[1]])
    check_same(capsys, roots, tmp_path / "out")


def test_steps_without_logs_on_two_hosts(dumps: Path, tmp_path: Path, capsys: Capture) -> None:
    """Ranks of one step on two hosts are one step, though no log says so."""
    two = dumps / "megatron" / "slime_tp2_n11_sp"
    for rank in (0, 1):
        (source,) = two.rglob(f"rank{rank}")
        shutil.copytree(source, tmp_path / f"node-{rank}" / "train" / "step0" / f"rank{rank}")
    (source,) = (dumps / "megatron" / "hf_n11").rglob("step0")
    shutil.copytree(source, tmp_path / "one" / "generate" / "step0")
    (name,) = (path.name for path in (tmp_path / "one/generate/step0").iterdir())
    roots = [[tmp_path / "one" / "generate"], [tmp_path / f"node-{rank}" / "train" for rank in (0, 1)]]
    mapping = ["--map", f"{name.removeprefix('rank') or name}:0+1"]
    words = ["--generate", *map(str, roots[0]), "--train", *map(str, roots[1]), *mapping]
    assert main(["collect", "-o", str(tmp_path / "out"), *words]) == 0
    more = ["--train", str(roots[1][1])]
    wanted = verdict(capsys, roots[0][0], roots[1][0], *more, *mapping)
    found = verdict(capsys, tmp_path / "out/generate", tmp_path / "out/train", *mapping)
    assert (found[0], found[1]["verdict"], found[1]["coverage"]) == (
        wanted[0],
        wanted[1]["verdict"],
        wanted[1]["coverage"],
    )
    assert len(found[1]["pairs"]["used"]) == len(wanted[1]["pairs"]["used"]) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_one_request_or_some_steps(arguments: list[str], tmp_path: Path, capsys: Capture, count: int) -> None:
    assert main([*arguments, "--dry-run", "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert (everything["pairs"], everything["dry_run"]) == (4, True)
    assert not list(tmp_path.glob("out*"))
    main(["pairs", arguments[4], arguments[7], "--json"])
    first = json.loads(capsys.readouterr().out)["pairs"][0]
    which = ["--request", first["request_id"]] if count == 1 else ["--steps", str(first["inference"]["step"])]
    assert main([*arguments, *which]) == 0
    record = json.loads((tmp_path / "out/collected.json").read_text())
    assert record["pairs"] == count  # the other host has this step as well, and another request in it
    _, found = verdict(capsys, tmp_path / "out/generate", tmp_path / "out/train")
    assert first["request_id"] in {pair["request_id"] for pair in found["pairs"]["used"]}
    assert len(found["pairs"]["used"]) == count


def test_it_goes_on_where_it_ended(
    arguments: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    real = copying._Writer.write

    def full(self: copying._Writer, piece: bytes) -> None:
        if len(written) == 12:
            raise OSError(28, "No space left on device")
        real(self, piece)
        written.append(self._path.name)

    monkeypatch.setattr(copying._Writer, "write", full)
    assert main(arguments) == 4
    (line,) = capsys.readouterr().err.splitlines()
    part = tmp_path / "out.part"
    assert line == (
        f"consistency: {part}: No space left on device; mend that and run it again: what is there whole is not copied "
        f"twice; {part} has what was copied so far"
    )
    assert not (tmp_path / "out").exists()
    before = files(part)
    assert len(before) == 12
    assert not [name for name in before if name.endswith(".new")]
    (part / "generate" / "left.by.another").write_text("")
    again: list[Path] = []

    def counted(self: copying._Writer, piece: bytes) -> None:
        again.append(self._path)
        real(self, piece)

    monkeypatch.setattr(copying._Writer, "write", counted)
    assert main(arguments) == 0
    monkeypatch.undo()
    assert not {str(path.relative_to(part)) for path in again} & before.keys()
    whole = files(tmp_path / "out")
    assert "generate/left.by.another" not in whole
    arguments[2] = str(tmp_path / "other")
    assert main(arguments) == 0
    assert {**files(tmp_path / "other"), "collected.json": b""} == {**whole, "collected.json": b""}
    assert json.loads(whole["collected.json"])["files"].sort(key=str) == json.loads(
        (tmp_path / "other/collected.json").read_text()
    )["files"].sort(key=str)


def test_ctrl_c(arguments: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(self: copying._Writer, piece: bytes) -> None:
        self._open.write(piece[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(copying._Writer, "write", pressed)
    assert main(arguments) == 4
    assert capsys.readouterr().err == "consistency: interrupted; run it again to go on\n"
    assert not list(tmp_path.glob("out*"))
    real = copying._file_record

    def later(item: copying.Item, digest: str) -> dict[str, Any]:
        if item.place.name == "dump.json":
            raise KeyboardInterrupt
        return real(item, digest)

    monkeypatch.undo()
    monkeypatch.setattr(copying, "_file_record", later)
    assert main(arguments) == 4
    assert capsys.readouterr().err == (
        f"consistency: interrupted; run it again to go on; {tmp_path}/out.part has what was copied so far\n"
    )


def test_too_little_room_is_said_before(
    arguments: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert main(arguments) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "MB more and 0.0 MB are free; make room, or choose fewer steps" in line
    assert not list(tmp_path.rglob("out.part/**/dump.json"))


def test_what_cannot_be_begun(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    (out / "something").mkdir(parents=True)
    assert main(arguments) == 2
    assert "is there already" in capsys.readouterr().err
    (out / "something").rmdir()
    part = tmp_path / "out.part"
    part.mkdir()
    handle = os.open(part, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert main(arguments) == 4
    assert "another run is at work" in capsys.readouterr().err
    os.close(handle)
    assert main([*arguments, "--steps", "3-"]) == 2
    assert main([*arguments, "--generate", str(tmp_path / "none")]) == 3
    assert "is no folder" in capsys.readouterr().err
    assert main(arguments) == 0


def test_a_file_that_shrinks_meanwhile(
    hosts: list[Path], arguments: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = survey.files_in

    def then_shrink(folders: list[Path]) -> list[survey.File]:
        found = real(folders)
        os.truncate(next(file.path for file in found if file.path.name == "dump.json"), 10)
        return found

    monkeypatch.setattr("train_infer_consistency.hosts.sources.files_in", then_shrink)
    assert main(arguments) == 3
    assert "became shorter while it was copied; wait for the run to end" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_copy_that_pairs_otherwise_gets_no_name(
    arguments: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run goes on and empties a dump after it was chosen and before it is listed."""
    real = survey.files_in

    def emptied(folders: list[Path]) -> list[survey.File]:
        (folders[0] / "dump.json").write_text('{"task": "statistics", "level": "L0", "data": {}}')
        return real(folders)

    monkeypatch.setattr("train_infer_consistency.hosts.sources.files_in", emptied)
    assert main(arguments) == 4
    assert "does not pair as it did where it was" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("collected.json"))


def test_names_of_sources(hosts: list[Path], tmp_path: Path) -> None:
    for host in hosts:
        for log in host.rglob("dispatch_log.jsonl"):
            lines = [json.dumps({**json.loads(line), "host": "node 7"}) for line in log.read_text().splitlines()]
            log.write_text("\n".join(lines) + "\n")
    sources = labelled(here([host / SIDES[0] for host in hosts], [host / SIDES[1] for host in hosts]))
    assert [str(source.to) for source in sources] == [
        "generate/node_7/generate_sequence", "generate/node_7/2/generate_sequence",
        "train/source-1/update_actor", "train/source-2/update_actor",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", '{"roots": 1}', '{"roots": {"generate": 1}}', "{}"])
def test_a_damaged_record_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "generate").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "collected.json").write_text('{"roots": {"generate": []}}')
    assert scan(tmp_path / "other").roots == (tmp_path / "other",)
    (tmp_path / "collected.json").write_text(text)
    with pytest.raises(EvidenceError, match=r"collected\.json is damaged; collect the dumps again"):
        scan(tmp_path / "generate")


def test_the_same_folder_seen_twice_has_one_fingerprint(hosts: list[Path], tmp_path: Path) -> None:
    """And a copy of it, times and all, has another."""

    def prints() -> Iterator[str]:
        for host in (hosts[0], hosts[0], shutil.copytree(hosts[0], tmp_path / "copy")):
            yield survey.survey(host / SIDES[0]).fingerprint

    one, again, other = prints()
    assert one == again != other
