"""The rollout engines that the demo knows, a module for each with the same names in it: see :class:`Rollout`."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
#: The driver's own, which has the training engine, and what most rollout engines need.
ENVIRONMENT = Path(sys.prefix)
ENGINES = ("ascend", "vllm", "sglang")
#: What every engine needs to be told where there is no accelerator and no network.
ON_A_CPU = {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


class Rollout(Protocol):
    """What each module here has.

    The driver, which has no torch, calls the first four; ``answer`` is for the process that they describe.

    Attributes:
        TITLE: what the engine is, for people.
        FOLDER: of the Python environment that it runs in.
        HEADS: of the model's attention, which is 64 wide.
    """

    TITLE: str
    FOLDER: Path
    HEADS: int

    def check(self) -> None:
        """Raise an EvidenceError if this machine lacks what no package brings."""

    def install(self, tree: Path) -> None:
        """Put the engine's woven files into a folder."""

    def environment(self, base: Mapping[str, str], tree: Path, config: Path) -> dict[str, str]:
        """Return the environment of the engine's process.

        Args:
            base: that of all processes of the demo.
            tree: what ``install`` filled.
            config: msprobe's file.
        """

    def answer(self, model: str, config: str, prompts: Mapping[str, list[int]], length: int) -> dict[str, list[int]]:
        """Let the engine answer the prompts, greedily and one at a time.

        Args:
            model: its folder.
            config: msprobe's file.
            prompts: token ids by request id.
            length: of each answer, in tokens.

        Returns:
            The answers' token ids, by the request id that the engine gave back.
        """


def unpack_woven(name: str, version: str, tree: Path, machine: str = "", suffixes: Iterable[str] = ("",)) -> None:
    """Fetch a pinned wheel and unpack it, woven.

    Args:
        name: of the upstream, as in ``overlays``.
        version: one of its pins.
        tree: where to.
        machine: that the wheel is for; empty for any.
        suffixes: of the files to take.

    Raises:
        EvidenceError: there is no such wheel, or it cannot be fetched.
    """
    from train_infer_consistency.errors import EvidenceError
    from train_infer_consistency.overlay.inspect import weave_upstream
    from train_infer_consistency.overlay.lock import load_lock
    from train_infer_consistency.overlay.reading import load_upstreams
    from train_infer_consistency.overlay.trees import open_tree
    from train_infer_consistency.wheels.registry import fetch_artifact

    lock, upstream = load_lock(), load_upstreams()[name]
    pin = lock.pin(name, version)
    artifact = next((one for one in pin.artifacts.values() if one.file.endswith(f"{machine}.whl")), None)
    if artifact is None or pin.requirement is None:
        raise EvidenceError(f"{name} {version} has no wheel for {machine}", "run the demo on x86-64 Linux")
    wheel = fetch_artifact(pin.requirement, artifact.file, artifact.sha256)
    endings = (*suffixes,)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree, [member for member in archive.namelist() if member.endswith(endings)])
    for file in weave_upstream(upstream, open_tree(wheel, upstream.package), lock).files:
        (tree / file.path).write_bytes(file.after)
