"""Comparing and collecting on nodes, with stand-ins for Ray: a node is this machine, and all is sent as bytes."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train_infer_consistency import __version__
from train_infer_consistency.comparing.compare import Options
from train_infer_consistency.comparing.many import How, compare_many
from train_infer_consistency.comparing.pairs import compare
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.comparing.stored import Store
from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.errors import EvidenceError, UnfinishedError
from train_infer_consistency.hosts import nodes, on_node
from train_infer_consistency.hosts.compare import on_nodes
from train_infer_consistency.hosts.copying import bring_logs
from train_infer_consistency.hosts.nodes import Node, batches_of
from train_infer_consistency.hosts.sources import Found, Together, labelled
from train_infer_consistency.hosts.survey import File
from train_infer_consistency.pairing.join import pair

from .runs import SIDES, comparable, places, two_hosts


class Ray:
    """What a runner asks of Ray itself; the newest answer is ready first."""

    def __init__(self) -> None:
        self.cancelled: list[Any] = []
        self.exceptions = SimpleNamespace(RayError=RuntimeError, RayTaskError=RuntimeWarning)

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[-num_returns:], references[:-num_returns]

    def cancel(self, reference: Any, force: bool) -> None:
        self.cancelled.append(reference)

    def get(self, reference: Reference, timeout: float) -> Any:
        return reference.answer


class Reference:
    def __init__(self, answer: Any) -> None:
        self.answer = answer


class StandIn(Node):
    """A node that is this machine; it sees the folder ``root`` alone."""

    def __init__(self, ray: Any, name: str, root: Path) -> None:
        super().__init__(ray, f"{name} (10.0.0.1, abc)", name)
        self.root, self.log = root, list[str]()

    def submit(self, work: str, arguments: tuple[Any, ...], batches: Sequence[Any] = ()) -> Any:
        self.log.append(work)
        for batch in batches:
            assert isinstance(batch, Reference)
        answer = on_node.work(work, pickle.dumps(arguments), [batch.answer for batch in batches])
        return Reference(answer)


def on_hosts(hosts: dict[str, Path], generate: list[str], train: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-ins and what they have."""
    ray = Ray()
    found: list[Found] = []
    made = []
    for name, root in hosts.items():
        monkeypatch.setenv("NODE_DUMPS", str(root))
        node = StandIn(ray, name, root)
        here, _ = node.surveyed(node.submit("look", ({"generate": generate, "train": train},)))
        found += here
        made.append(node)
    return ray, made, found


def compared(found: list[Found], base: Path, workers: int | None = None, store: Store | None = None) -> Comparison:
    sources = labelled(found)
    bring_logs(sources, base)
    together = Together(sources, base)
    pairing = together.pairing(None, None)
    return compare_many(pairing, How(Options()), store or Store(), runner=on_nodes(together, workers))


def same(found: Comparison, wanted: Comparison) -> None:
    one, two = (json.loads(json.dumps(item.to_json())) for item in (found, wanted))
    assert comparable(one, places(one)) == comparable(two, {})


@pytest.fixture
def divided(dumps: Path, tmp_path: Path) -> dict[str, Path]:
    """Two runs: the one of ``left`` lies there; of the other one side lies on ``right`` and one on ``left``."""
    left, right = two_hosts(dumps, tmp_path)
    shutil.move(right / SIDES[1], left / "more" / SIDES[1])
    return {"left": left, "right": right}


GENERATE, TRAIN = ["$NODE_DUMPS/generate_sequence"], ["$NODE_DUMPS/update_actor", "$NODE_DUMPS/more/update_actor"]


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_pairs_are_compared_where_they_lie(
    divided: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None
) -> None:
    left, right = divided.values()
    wanted = compare(
        pair(scan(left / SIDES[0], right / SIDES[0]), scan(left / SIDES[1], left / "more" / SIDES[1])), Options()
    )
    _, (one, two), found = on_hosts(divided, GENERATE, TRAIN, monkeypatch)
    with Store() as store:
        same(compared(found, tmp_path / "logs", workers, store), wanted)
    done = [node.log.count("compare") for node in (one, two)]
    assert sum(done) == 4
    assert done[0] >= 2
    assert (one.log + two.log).count("read") >= 4  # two logs or more, and the two pairs that are divided


@pytest.mark.parametrize("here", ["infer", "fsdp1"])
def test_tensors_are_moved(dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    hosts = {}
    for name in ("infer", "fsdp1"):
        hosts[name] = tmp_path / name
        (step,) = (dumps / "lookalike" / "tensor_pair" / name).rglob("step0")
        shutil.copytree(step, hosts[name] / name / "step0")
    (hosts[here] / here / "step0" / "rank0" / "dump_tensor_data" / "large.pt").write_bytes(bytes(9 << 20))
    wanted = compare(pair(scan(hosts["infer"] / "infer"), scan(hosts["fsdp1"] / "fsdp1")), Options())
    _, made, found = on_hosts(hosts, ["$NODE_DUMPS/infer"], ["$NODE_DUMPS/fsdp1"], monkeypatch)
    with Store() as store:
        result = compared(found, tmp_path / "logs", store=store)
        assert result.worst is not None
        assert any(row.evidence == "tensors" for module in result.worst.modules for row in module.rows)
        same(result, wanted)
    assert [node.name.split()[0] for node in made if "compare" in node.log] == [here]


def test_what_a_result_says_of_folders_has_their_host(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words as well: a dump that is cut short is named as it lies on its node, and not where it was moved to."""
    hosts = {}
    for name, source in (("infer", "vllm_fp32_stat"), ("train", "verl_fsdp1_fp32_stat")):
        hosts[name] = tmp_path / name
        (dump,) = (dumps / "lookalike" / source).rglob("dump.json")
        text = dump.read_text()
        target = hosts[name] / name / "step0" / "rank0" / "dump.json"
        target.parent.mkdir(parents=True)
        target.write_text(text if name == "infer" else text[: len(text) // 2])
    _, _, found = on_hosts(hosts, ["$NODE_DUMPS/infer"], ["$NODE_DUMPS/train"], monkeypatch)
    with Store() as store:
        result = compared(found, tmp_path / "logs", store=store)
        assert result.verdict == "insufficient"
        place = f"train:{tmp_path}/train/train/step0/rank0/dump.json"
        (found_pair,) = result.pairs
        assert found_pair.training is not None
        assert f"{place} is incomplete: what is missing is unknown" in found_pair.training.problems


def test_an_error_on_a_node_has_its_name_and_stops_the_rest(
    divided: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, _, found = on_hosts(divided, GENERATE, TRAIN, monkeypatch)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr(on_node, "_unpack", full)
    with (
        Store() as store,
        pytest.raises(UnfinishedError, match=r"^(left|right) \(10\.0\.0\.1, abc\): /tmp/x: No space"),
    ):
        compared(found, tmp_path / "logs", 4, store)
    assert ray.cancelled


def test_a_dump_that_is_gone_meanwhile(
    divided: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, found = on_hosts(divided, GENERATE, TRAIN, monkeypatch)
    monkeypatch.setattr(on_node, "read_part", lambda path, *_: (_ for _ in ()).throw(EvidenceError(f"{path} is gone")))
    with Store() as store, pytest.raises(EvidenceError, match=r"is gone"):
        compared(found, tmp_path / "logs", None, store)


def test_batches() -> None:
    sizes = [0, 1, (8 << 20) + 1, 40 << 20, 5]
    files = [File(Path(str(number)), size, 0) for number, size in enumerate(sizes)]
    batches = list(batches_of(files))
    assert all(sum(piece.size for _, piece in batch) <= nodes.BATCH for batch in batches)
    pieces = [(int(file.path.name), piece.offset, piece.size) for batch in batches for file, piece in batch]
    for number, size in enumerate(sizes):
        own = [(offset, length) for found, offset, length in pieces if found == number]
        assert own[0][0] == 0
        assert sum(length for _, length in own) == size
        assert all(one[0] + one[1] == two[0] for one, two in pairwise(own))
    many = list(batches_of([File(Path("x"), 1, 0)] * 1100))
    assert [len(batch) for batch in many] == [512, 512, 76]


def test_one_folder_seen_by_two_nodes(divided: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    left = divided["left"]
    _, _, found = on_hosts({"one": left, "two": left}, GENERATE, TRAIN[:1], monkeypatch)
    told: list[str] = []
    once = nodes._once(found, {"generate": GENERATE, "train": TRAIN}, told.append)
    assert [(item.side, item.host.name.split()[0]) for item in once] == [("generate", "one"), ("train", "one")]
    assert told[0] == f"{left / SIDES[0]} on two (10.0.0.1, abc) is the same as on one (10.0.0.1, abc): read there"
    with pytest.raises(EvidenceError, match=r"no node has \$A or \$B; name the folders as the nodes have them"):
        nodes._once(found, {"other": ["$A", "$B"]}, told.append)


def test_another_version_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    on = nodes._by_value()
    answer = on("0.0.1", "look", b"", [])
    assert answer["status"] == 3
    assert "and 0.0.1 where this was started; install the same wheel on every node" in answer["error"]
    monkeypatch.setitem(sys.modules, "train_infer_consistency.hosts.on_node", None)
    answer = on(__version__, "look", b"", [])
    assert "or this version of it, cannot be imported by" in answer["error"]


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from train_infer_consistency.cli.main import main

    monkeypatch.setitem(sys.modules, "ray", None)
    for verb in (
        ["compare", "a", "b", "--ray"],
        ["collect", "--ray", "-o", str(tmp_path / "o"), "--generate", "a", "--train", "b"],
    ):
        assert main(verb) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("consistency: --ray needs Ray, which cannot be imported here")
    assert main(["compare", "a", "b", "--ray", "--noise", "c"]) == 2
    assert main(["compare", "a", "b", "--ship"]) == 2
    assert main(["collect", "-o", str(tmp_path / "o"), "--generate", "a", "--train", "b", "--ship"]) == 2
    assert not list(tmp_path.iterdir())


def test_hosts_of_one_name_are_told_apart(divided: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    found: list[Found] = []
    for root in divided.values():
        monkeypatch.setenv("NODE_DUMPS", str(root))
        node = StandIn(ray, "vm", root)
        here, _ = node.surveyed(node.submit("look", ({"generate": GENERATE, "train": TRAIN},)))
        found += here
    assert [(source.label, str(source.to)) for source in labelled(found)] == [
        ("vm", "generate/vm/generate_sequence"),
        ("vm", "train/vm/update_actor"),
        ("vm", "train/vm/2/update_actor"),
        ("vm-2", "generate/vm-2/generate_sequence"),
    ]
