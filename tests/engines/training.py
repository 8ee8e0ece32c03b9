"""What the tests of training engines share: woven trees, process groups of workers, and reading what they left."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import open_tree

DEMO = ROOT / "demo"
#: Switches that must not leak in from the shell.
SWITCHES = ("DUMP_ON", "PROMPTS_ONLY", "DUMP_PHASE", "MSPROBE_CONFIG_PATH", "MSPROBE_SEED", "VERL_REPLICA_RANK")


def unpack(wheel: Path, package: str, folder: Path) -> Path:
    """Put a wheel's package into a folder, and return the folder."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{package}/")])
    return folder


def check_out(source: Path, revision: str, package: str, folder: Path) -> bool:
    """Put a package of a clone's revision into a folder; False where there is no such revision."""
    packed = folder / f"{package}.tar"
    command = ["git", "-C", str(source), "archive", "--format=tar", "-o", str(packed), revision, package]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return True


def weave_into(folder: Path, name: str) -> Path:
    """Weave an upstream's files in place of the ones in a tree, and return the tree."""
    upstream = load_upstreams()[name]
    woven = weave_upstream(upstream, open_tree(folder, upstream.package), load_lock())
    assert woven.files
    for file in woven.files:
        (folder / file.path).write_bytes(file.after)
    return folder


def copy_package(package: Path, folder: Path) -> Path:
    """Copy an installed package into a folder, and return the folder."""
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def write_config(folder: Path, **changes: Any) -> Path:
    """Write an msprobe file whose dump_path is ``folder/dump``."""
    settings = {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    content = {"task": "statistics", "dump_path": str(folder / "dump"), "rank": [], "step": [], "level": "L0"}
    path = folder / "config_actor.json"
    path.write_text(json.dumps({**content, "async_dump": False, "statistics": settings, **changes}))
    return path


def run_group(
    command: Sequence[str],
    folder: Path,
    paths: Sequence[Path],
    world: int,
    env: Mapping[str, str],
    timeout: int = 900,
    check: bool = True,
) -> None:
    """Run a worker script once for each rank of a process group, to its end.

    Args:
        command: the script and its arguments.
        folder: where its logs, and the file through which the ranks meet, go.
        paths: what comes first on the module path.
        world: how many ranks.
        env: variables of the run.
        timeout: seconds.
        check: whether a failed rank is an error.

    Raises:
        AssertionError: a rank failed; the message has the end of its output.
        subprocess.TimeoutExpired: a rank did not end.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    inherited = {name: value for name, value in inherited.items() if not name.startswith("CONSISTENCY_")}
    found = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread, so that sums are made in one order; gloo on the loopback, so that no host name has to resolve.
    common = {"PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "DIST_INIT_METHOD": f"file://{folder / 'store'}"}
    common |= {"WORLD_SIZE": str(world), "LOCAL_RANK": "0", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        ranks = []
        for rank in range(world):
            log = stack.enter_context((folder / f"log{rank}").open("wb"))
            full = {**inherited, **common, "RANK": str(rank), **env}
            ranks.append(
                subprocess.Popen([sys.executable, *command], env=full, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
            )
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        for number, process in enumerate(ranks):
            status = process.wait(timeout=timeout)
            tail = (folder / f"log{number}").read_text(errors="replace")[-4000:]
            assert status == 0 or not check, f"{command}, rank {number} of {world}:\n{tail}"


class Dumps:
    """The dumps and the log of one run, below an msprobe file's dump_path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def lines(self, name: str = "update_actor_log.jsonl") -> list[dict[str, Any]]:
        """The log's lines in order; of all ranks, one rank after the other."""
        files = sorted(self.root.glob(f"*/{name}"), key=_first_rank)
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def folders(self) -> list[str]:
        """Every folder with a dump, below the root."""
        return sorted(str(path.parent.relative_to(self.root)) for path in self.root.glob("**/dump.json"))

    def data(self, dump: str) -> dict[str, Any]:
        """The rows of one dump."""
        return dict(json.loads((self.root / dump / "dump.json").read_text())["data"])


def rows(data: Mapping[str, Any]) -> list[str]:
    """The modules whose forward a dump has, by their names in the Hugging Face or Megatron model, in order."""
    found = (re.fullmatch(r"Module\.(.+)\.\w+\.forward\.\d+", key) for key in data)
    return [
        re.sub(r"\._fsdp_wrapped_module|^(?:(?:module|\d+|_fsdp_wrapped_module)\.)+", "", match[1])
        for match in found
        if match
    ]


def backward_rows(data: Mapping[str, Any]) -> list[str]:
    """The keys of a dump's backward rows."""
    return [key for key in data if ".backward." in key or ".parameters_grad" in key]


def calls(data: Mapping[str, Any], module: str) -> Iterator[dict[str, Any]]:
    """The forward records of one module."""
    for key, record in data.items():
        if re.search(rf"(?:^|\.){re.escape(module)}\.\w+\.forward\.", key):
            yield record


def tokens_seen(data: Mapping[str, Any], module: str) -> int:
    """How many token ids the one call of an embedding saw."""
    (call,) = calls(data, module)
    inputs: list[dict[str, Any]] = [*call["input_args"], *call["input_kwargs"].values()]
    return math.prod(inputs[0]["shape"])


def _first_rank(file: Path) -> int:
    text = file.read_text()
    return int(json.loads(text.splitlines()[0])["rank"]) if text else 0
