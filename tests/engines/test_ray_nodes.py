"""All nodes of a Ray cluster or none: the order of work with stand-ins, and a real cluster with a tree per node."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency import __version__
from train_infer_consistency.errors import ConsistencyError, EvidenceError, FoundError, UnfinishedError
from train_infer_consistency.overlay.journal import FOLDER
from train_infer_consistency.overlay.ray_nodes import (
    Answer,
    Request,
    apply_on_nodes,
    connect,
    examine_nodes,
    work_on_node,
)

from ..overlay.in_place import OTHER, SKEL, install, snapshot, upstreams_and_lock

ONE = Request(None, revision=1)


class StandIn:
    """Nodes that are folders of this machine; the work itself is the real one, and so is its JSON."""

    def __init__(self, sites: dict[str, Path]) -> None:
        self.sites = sites
        self.log: list[tuple[str, str]] = []
        self.broken: dict[tuple[str, str], Answer] = {}

    def nodes(self) -> Sequence[str]:
        return list(self.sites)

    def run(self, nodes: Sequence[str], work: str, request: Request) -> list[Answer]:
        return [self._one(node, work, request) for node in nodes]

    def _one(self, node: str, work: str, request: Request) -> Answer:
        self.log.append((node, work))
        if (answer := self.broken.get((node, work))) is not None and not answer.lost:
            return answer
        sent = json.loads(json.dumps({**asdict(request), "site": str(self.sites[node])}))
        got = json.loads(json.dumps(work_on_node(work, sent)))
        if answer is not None:  # it did the work, and then was not heard of again
            return answer
        if "error" in got:
            return Answer(node, None, got["error"], got["status"])
        return Answer(node, got["value"])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    known = upstreams_and_lock(tmp_path / "overlays")
    monkeypatch.setattr("train_infer_consistency.overlay.reading.load_upstreams", lambda: known[0])
    monkeypatch.setattr("train_infer_consistency.overlay.lock.load_lock", lambda: known[1])
    sites = {name: tmp_path / name for name in ("head", "left", "right")}
    for site in sites.values():
        install(site, "skel", SKEL)
        install(site, "other", OTHER)
    return StandIn(sites)


def states(cluster: StandIn) -> dict[str, bool]:
    """Whether each node is woven."""
    return {name: (site / FOLDER).exists() for name, site in cluster.sites.items()}


def test_every_node_is_checked_before_any_is_touched(cluster: StandIn) -> None:
    answers = apply_on_nodes(cluster, ONE)
    assert cluster.log == [(node, work) for work in ("check", "apply") for node in ("head", "left", "right")]
    assert [answer.node for answer in answers] == ["head", "left", "right"]
    assert {outcome["action"] for answer in answers for outcome in answer.value} == {"applied"}
    assert states(cluster) == {"head": True, "left": True, "right": True}


def test_one_refusal_stops_all(cluster: StandIn) -> None:
    (cluster.sites["right"] / "skel/runner.py").write_text("class Runner: ...\n")
    before = {name: snapshot(site) for name, site in cluster.sites.items()}
    with pytest.raises(FoundError, match=r"1 of 3 nodes refuse, so none was touched: right: .*skel/runner\.py"):
        apply_on_nodes(cluster, ONE)
    assert {name: snapshot(site) for name, site in cluster.sites.items()} == before
    assert {work for _, work in cluster.log} == {"check"}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer("left", None, "gone", 4, lost=True), UnfinishedError),
        (Answer("left", None, "not here", 3), EvidenceError),
        (Answer("left", None, "changed", 1), FoundError),
    ],
)
def test_status_of_a_refusal(cluster: StandIn, answer: Answer, error: type[ConsistencyError]) -> None:
    cluster.broken["left", "check"] = answer
    with pytest.raises(error, match=f"left: {answer.error}"):
        apply_on_nodes(cluster, ONE)
    assert not any(states(cluster).values())


def test_nothing_anywhere_is_no_evidence(cluster: StandIn, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cluster.sites = dict.fromkeys(cluster.sites, tmp_path / "empty")
    with pytest.raises(EvidenceError, match="3 of 3 nodes refuse"):
        apply_on_nodes(cluster, ONE)


def test_failure_takes_it_off_the_nodes_done_before(cluster: StandIn) -> None:
    before = {name: snapshot(site) for name, site in cluster.sites.items()}
    cluster.broken["right", "apply"] = Answer("right", None, "No space left on device", 4)
    with pytest.raises(UnfinishedError, match=r"right: No space left.*taken off the other nodes again; mend that node"):
        apply_on_nodes(cluster, ONE)
    assert cluster.log[-2:] == [("left", "revert"), ("head", "revert")]
    assert {name: snapshot(site) for name, site in cluster.sites.items()} == before


def test_lost_node_is_reverted_as_well(cluster: StandIn) -> None:
    """It did apply the overlay, and died before it said so."""
    cluster.broken["left", "apply"] = Answer("left", None, "no answer (WorkerCrashedError)", 4, lost=True)
    with pytest.raises(UnfinishedError, match="left: no answer"):
        apply_on_nodes(cluster, ONE)
    assert cluster.log[-2:] == [("left", "revert"), ("head", "revert")]
    assert not any(states(cluster).values())


def test_what_was_woven_before_is_not_taken_off(cluster: StandIn) -> None:
    request = Request(["skel"], str(cluster.sites["head"]), revision=1)
    assert "value" in work_on_node("apply", asdict(request))
    cluster.broken["right", "apply"] = Answer("right", None, "broken", 4)
    with pytest.raises(UnfinishedError):
        apply_on_nodes(cluster, Request(["skel"], revision=1))
    assert ("head", "revert") not in cluster.log
    assert states(cluster) == {"head": True, "left": False, "right": False}


def test_node_that_cannot_be_reverted_is_named(cluster: StandIn) -> None:
    cluster.broken["right", "apply"] = Answer("right", None, "broken", 4)
    cluster.broken["head", "revert"] = Answer("head", None, "read-only", 1)
    with pytest.raises(
        UnfinishedError, match=r"still woven: head \(read-only\); run 'consistency overlay revert' there"
    ):
        apply_on_nodes(cluster, ONE)
    assert states(cluster) == {"head": True, "left": False, "right": False}


def test_nodes_that_share_a_folder(cluster: StandIn) -> None:
    cluster.sites = dict.fromkeys(cluster.sites, cluster.sites["head"])
    answers = apply_on_nodes(cluster, Request(["skel"], revision=1))
    assert [answer.value[0]["action"] for answer in answers] == ["applied", "already", "already"]


@pytest.mark.parametrize(("version", "revision"), [("0.0.0", 1), (__version__, 7)])
def test_another_version_on_a_node_is_refused(cluster: StandIn, version: str, revision: int) -> None:
    with pytest.raises(EvidenceError, match="install the same wheel on every node"):
        apply_on_nodes(cluster, Request(["skel"], version=version, revision=revision))
    assert not any(states(cluster).values())


def test_survey_says_where_nodes_differ(cluster: StandIn, tmp_path: Path) -> None:
    survey = examine_nodes(cluster)
    assert survey.differences == ()
    assert survey.status == 0
    apply_on_nodes(StandIn({"left": cluster.sites["left"]}), Request(["skel"], revision=1))
    for site in cluster.sites.values():  # or that would be wrong on the woven node
        install(site, "train_infer_consistency", {"train_infer_consistency/__init__.py": b""})
    survey = examine_nodes(cluster)
    assert survey.differences == (
        "skel is not the same on every node: 1.0, pristine on head, right but 1.0, woven by consistency.1 on left",
    )
    assert survey.status == 1
    assert json.loads(json.dumps(survey.to_json()))["nodes"][1]["report"]["upstreams"][1]["state"] == "woven"


def test_survey_with_a_silent_node(cluster: StandIn) -> None:
    cluster.broken["left", "examine"] = Answer("left", None, "no answer", 4, lost=True)
    survey = examine_nodes(cluster)
    assert survey.status == 3
    assert survey.to_json()["nodes"][1] == {"node": "left", "error": "no answer", "report": None}


def test_survey_status(cluster: StandIn, tmp_path: Path) -> None:
    (cluster.sites["left"] / "skel/runner.py").write_text("class Runner: ...\n")
    assert examine_nodes(StandIn({"left": cluster.sites["left"]})).status == 1
    (tmp_path / "empty").mkdir()
    assert examine_nodes(StandIn({"left": tmp_path / "empty"})).status == 3


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from train_infer_consistency.cli.main import main

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EvidenceError, match="--ray needs Ray"), connect():
        pass
    for verb in (["doctor", "--ray"], ["overlay", "apply", "--all", "--ray"]):
        assert main(verb) == 3
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_ray_is_imported_for_ray_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from train_infer_consistency.cli.main import main

    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "empty").mkdir()
    assert main(["doctor", "--site", str(tmp_path / "empty")]) == 3
    assert main(["overlay", "status", "--site", str(tmp_path / "empty")]) == 3


# ---- a real cluster ----

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def sites(release: Callable[..., Path], tmp_path: Path) -> dict[str, Path]:
    """A tree of verl 0.8.0 for each of three nodes."""
    made = {}
    for name in ("head", "left", "right"):
        made[name] = tmp_path / name
        with zipfile.ZipFile(release("verl", "0.8.0")) as archive:
            wanted = [
                n for n in archive.namelist() if n.startswith("verl") and n.endswith((".py", "METADATA", "RECORD"))
            ]
            archive.extractall(made[name], wanted)
    return made


@pytest.fixture
def real(sites: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine, whose workers each have a verl of their own."""
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    made = cluster_utils.Cluster()
    try:
        for site in sites.values():
            # No CPU is free: the work must run on a fully booked cluster.
            made.add_node(num_cpus=0, env_vars={"PYTHONPATH": os.pathsep.join([str(site), str(SOURCE)])})
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        made.shutdown()


def woven(sites: dict[str, Path]) -> dict[str, bool]:
    return {name: (site / FOLDER).exists() for name, site in sites.items()}


@pytest.mark.engines
@pytest.mark.download
def test_real_cluster(real: Any, sites: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from train_infer_consistency.cli.main import main

    before = {name: snapshot(site) for name, site in sites.items()}
    assert main(["doctor", "--ray", "--json"]) in (0, 1)
    survey = json.loads(capsys.readouterr().out)
    rows = [row for node in survey["nodes"] for row in node["report"]["upstreams"] if row["upstream"] == "verl"]
    roots = {row["root"] for row in rows}
    assert roots == {str(site) for site in sites.values()}  # each node looked at its own tree
    assert survey["differences"] == []

    # One node refuses: nothing is touched anywhere.
    target = sites["right"] / "verl/trainer/ppo/ray_trainer.py"
    original = target.read_bytes()
    target.write_bytes(original.replace(b"bypass_recomputing_logprobs", b"bypass_recomputing"))
    assert main(["overlay", "apply", "verl", "--ray"]) == 1
    assert "1 of 3 nodes refuse, so none was touched" in capsys.readouterr().err
    assert woven(sites) == {"head": False, "left": False, "right": False}
    target.write_bytes(original)

    # All nodes.
    assert main(["overlay", "apply", "verl", "--ray", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [node["value"][0]["action"] for node in nodes] == ["applied"] * 3
    assert woven(sites) == {"head": True, "left": True, "right": True}

    # One node is taken off by hand: doctor says where the nodes differ, apply mends it.
    assert main(["overlay", "revert", "verl", "--site", str(sites["left"])]) == 0
    capsys.readouterr()
    assert main(["doctor", "--ray"]) == 1
    assert "verl is not the same on every node" in capsys.readouterr().out
    assert main(["overlay", "apply", "verl", "--ray", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert sorted(node["value"][0]["action"] for node in nodes) == ["already", "already", "applied"]
    for site in sites.values():
        assert main(["overlay", "revert", "verl", "--site", str(site)]) == 0
    assert {name: snapshot(site) for name, site in sites.items()} == before


@pytest.mark.engines
@pytest.mark.download
def test_real_node_without_this_package(
    real: Any, sites: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from train_infer_consistency.cli.main import main

    broken = tmp_path / "broken/train_infer_consistency"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not here')\n")
    real.add_node(num_cpus=0, env_vars={"PYTHONPATH": os.pathsep.join([str(broken.parent), str(sites["head"])])})
    assert main(["overlay", "apply", "verl", "--ray"]) == 3
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "1 of 4 nodes refuse, so none was touched" in error
    assert "train-infer-consistency cannot be imported by" in error
    assert "install its wheel on that node" in error
    assert woven(sites) == {"head": False, "left": False, "right": False}


@pytest.mark.engines
@pytest.mark.download
def test_real_failure_on_a_node_rolls_the_others_back(
    real: Any, sites: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the apply a file of the last node changes: the nodes done before are reverted."""
    before = {name: snapshot(site) for name, site in sites.items()}
    with connect() as cluster:

        class Meddled:
            def __init__(self) -> None:
                self.applied: list[str] = []

            def nodes(self) -> Sequence[str]:
                return cluster.nodes()

            def run(self, nodes: Sequence[str], work: str, request: Request) -> list[Answer]:
                if work == "apply" and len(self.applied) == 2:
                    for site in sites.values():
                        if not (site / FOLDER).exists():
                            (site / "verl/workers/rollout/llm_server.py").unlink()
                if work == "apply":
                    self.applied.append(nodes[0])
                return cluster.run(nodes, work, request)

        with pytest.raises(UnfinishedError, match=r"llm_server\.py.*taken off the other nodes again"):
            apply_on_nodes(Meddled(), Request(["verl"], revision=1))
    after = {name: snapshot(site) for name, site in sites.items()}
    changed = [name for name in sites if after[name] != before[name]]
    assert len(changed) == 1
    assert woven(sites) == {"head": False, "left": False, "right": False}


@pytest.mark.engines
@pytest.mark.download
def test_real_node_that_dies(real: Any, sites: dict[str, Path]) -> None:
    """It is alive when asked who is there, and gone when asked to work."""
    with connect() as cluster:
        nodes = cluster.nodes()
        assert len(nodes) == 3
        real.remove_node(next(iter(real.worker_nodes)), allow_graceful=False)
        with pytest.raises(UnfinishedError, match=r"1 of 3 nodes refuse.*no answer \(\w+\)"):
            apply_on_nodes(cluster, Request(["verl"], revision=1))
    assert woven(sites) == {"head": False, "left": False, "right": False}


@pytest.mark.engines
def test_no_cluster_is_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    from train_infer_consistency.cli.main import main

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert main(["doctor", "--ray"]) == 3
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("consistency: no running Ray cluster was found")
