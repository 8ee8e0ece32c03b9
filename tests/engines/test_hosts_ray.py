"""Collecting and comparing on a real Ray cluster of three nodes on this machine, each with dumps of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency import __version__
from train_infer_consistency.cli.main import main
from train_infer_consistency.comparing.compare import Options
from train_infer_consistency.comparing.many import How, compare_many
from train_infer_consistency.comparing.stored import Store
from train_infer_consistency.errors import UnfinishedError
from train_infer_consistency.hosts.compare import on_nodes
from train_infer_consistency.hosts.copying import bring_logs
from train_infer_consistency.hosts.nodes import on_cluster
from train_infer_consistency.hosts.sources import Together, labelled

from ..conftest import ROOT
from ..hosts.runs import SIDES, comparable, places, two_hosts

pytestmark = pytest.mark.engines
Capture = pytest.CaptureFixture[str]
GENERATE = "$NODE_DUMPS/generate_sequence"
TRAIN = ["$NODE_DUMPS/update_actor", "$NODE_DUMPS/more/update_actor"]
COMPARE = ["compare", GENERATE, TRAIN[0], "--train", TRAIN[1], "--ray"]


@pytest.fixture(scope="module")
def base(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: the one of ``left`` lies there; of the other one side lies on ``right`` and one on ``left``."""
    folder = tmp_path_factory.mktemp("nodes")
    left, right = two_hosts(dumps, folder)
    shutil.move(right / SIDES[1], left / "more" / SIDES[1])
    tensors = dumps / "lookalike" / "tensor_pair"
    for host, name in ((left, "infer"), (right, "fsdp1")):
        (step,) = (tensors / name).rglob("step0")
        shutil.copytree(step, host / name / "step0")
    (folder / "head").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster(base: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        made = cluster_utils.Cluster()
        try:
            for name in ("head", "left", "right"):
                add(made, base / name, ROOT / "src")
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()


def add(cluster: Any, dumps: Path, package: Path) -> Any:
    # No CPU is free: the work must run on a fully booked cluster.
    return cluster.add_node(num_cpus=0, env_vars={"PYTHONPATH": str(package), "NODE_DUMPS": str(dumps)})


def in_place(base: Path, capsys: Capture) -> dict[str, Any]:
    left, right = base / "left", base / "right"
    more = ["--generate", str(right / SIDES[0]), "--train", str(left / "more" / SIDES[1])]
    assert main(["compare", str(left / SIDES[0]), str(left / SIDES[1]), *more, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(found["pairs"]["used"]) == 4
    return found


def test_each_pair_is_compared_where_it_lies(cluster: Any, base: Path, capsys: Capture) -> None:
    wanted = in_place(base, capsys)
    assert main([*COMPARE, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    names = places(found)
    assert len({name.partition(":")[0] for name in names}) == 2
    assert comparable(found, names) == comparable(wanted, {})
    assert "consistency-" not in captured.out  # the folder that a side was moved to
    lacking = [line for line in captured.err.splitlines() if f" has no {base}/head/generate_sequence" in line]
    assert len(lacking) == 1


def test_collected_it_is_the_same(cluster: Any, base: Path, tmp_path: Path, capsys: Capture) -> None:
    wanted = in_place(base, capsys)
    words = ["collect", "--ray", "-o", str(tmp_path / "out"), "--generate", GENERATE, "--train", *TRAIN]
    assert main([*words, "--dry-run"]) == 0
    assert not list(tmp_path.iterdir())
    assert main(words) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "out/generate"), str(tmp_path / "out/train"), "--json"]) == 0
    record = json.loads((tmp_path / "out/collected.json").read_text())
    folders = {str(tmp_path / "out" / source["to"]): source["folder"] for source in record["sources"]}
    assert comparable(json.loads(capsys.readouterr().out), folders) == comparable(wanted, {})
    for file in record["files"]:
        copy = tmp_path / "out" / file["path"]
        (origin,) = [s for s in record["sources"] if copy.is_relative_to(tmp_path / "out" / s["to"])]
        source = Path(origin["folder"]) / copy.relative_to(tmp_path / "out" / origin["to"])
        assert copy.read_bytes() == source.read_bytes()


def test_tensors_are_moved_and_nothing_is_left(cluster: Any, base: Path, tmp_path: Path, capsys: Capture) -> None:
    left, right = base / "left/infer", base / "right/fsdp1"
    status = main(["compare", str(left), str(right), "--json"])
    wanted = json.loads(capsys.readouterr().out)
    assert main(["compare", "$NODE_DUMPS/infer", "$NODE_DUMPS/fsdp1", "--ray", "--json"]) == status == 0
    found = json.loads(capsys.readouterr().out)
    for module in (*found["modules"], *wanted["modules"]):
        for row in module["rows"]:
            if row["tensor"] is not None:  # its last digit is a matter of how many threads the sum was divided among
                row["tensor"]["cosine"] = round(row["tensor"]["cosine"] or 0.0, 9)
    assert comparable(found, places(found)) == comparable(wanted, {})
    assert any(row["evidence"] == "tensors" for module in found["modules"] for row in module["rows"])


def test_a_folder_that_all_nodes_share_is_read_once(cluster: Any, base: Path, capsys: Capture) -> None:
    run = base / "left"
    assert main(["compare", str(run / SIDES[0]), str(run / SIDES[1]), "--ray", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["pairs"]["used"]) == 2
    assert captured.err.count("is the same as on") == 4


def test_what_cannot_be_done(cluster: Any, base: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main([*COMPARE, "--noise", str(base)]) == 2
    assert main(["compare", "$NODE_DUMPS/none", "$NODE_DUMPS/update_actor", "--ray"]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("consistency: no node has $NODE_DUMPS/none; ")
    old = tmp_path / "train_infer_consistency"
    old.mkdir()
    (old / "__init__.py").write_text('__version__ = "0.0.1"\n')
    node = add(cluster, base / "head", tmp_path)
    assert main(COMPARE) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        f"train-infer-consistency is 0.0.1 there, and {__version__} where this was started; install the same wheel"
        in last
    )
    assert main([*COMPARE, "--ship"]) == 0
    cluster.remove_node(node)


def test_a_node_that_is_lost(cluster: Any, base: Path, tmp_path: Path) -> None:
    """It is there when asked what it has, and gone when asked to compare."""
    with on_cluster([GENERATE], TRAIN, lambda _: None) as found:
        sources = labelled(found)
        bring_logs(sources, tmp_path)
        together = Together(sources, tmp_path)
        pairing = together.pairing(None, None)
        assert len(pairing.pairs) == 4
        (right,) = [node for node in cluster.list_all_nodes() if node.node_id in lost_id(found)]
        cluster.remove_node(right, allow_graceful=False)
        with (
            Store() as store,
            pytest.raises(UnfinishedError, match=r"no answer \(\w+\); see whether that node is alive"),
        ):
            compare_many(pairing, How(Options()), store, runner=on_nodes(together))


def lost_id(found: list[Any]) -> list[str]:
    """The id of the node that has the second rollout."""
    return [item.host._id for item in found if "right" in item.survey.root.parts]
