"""The folder that an image is built from: the Dockerfile, what it runs, the wheels with their digests, the SBOM.

It is made beside its place and renamed, so that it is there complete or not at all. It is all that a builder needs:
no network is used while the image is built. No vllm-ascend wheel is ever in it (the registry's serve an A2 alone).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from train_infer_consistency.errors import EvidenceError, UnfinishedError
from train_infer_consistency.overlay.lock import Lock, Stack
from train_infer_consistency.overlay.model import Upstream
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.checkouts import read_sources
from train_infer_consistency.wheels.folder import ALONE, SUMS, requirements_path
from train_infer_consistency.wheels.registry import cache_dir, run_pip
from train_infer_consistency.wheels.stacks import Factory, Target

from .image_sbom import image_sbom

#: Upstreams that a base does not have as the stack wants them: they come as woven wheels, all others are laid in place.
BY_WHEEL = {"verl-b7dabd83": ("verl", "mindstudio-probe")}
BY_WHEEL_ELSEWHERE = ("mindstudio-probe",)
#: manylinux tags of the tools' wheels, which the bases' C libraries serve: openEuler 24.03 and Ubuntu 22.04 have newer.
_GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


@dataclass(frozen=True)
class Order:
    """What an image is made for: a stack, a chip (a2 or a3), a machine (x86_64 or aarch64)."""

    stack: Stack
    chip: str
    machine: str

    @property
    def name(self) -> str:
        """The name of its folder and files: ``verl-0.8-a2-x86_64``."""
        return f"{self.stack.name}-{self.chip}-{self.machine}"

    @property
    def by_wheel(self) -> tuple[str, ...]:
        """The upstreams that are installed as woven wheels."""
        return BY_WHEEL.get(self.stack.name, BY_WHEEL_ELSEWHERE)

    @property
    def in_place(self) -> tuple[str, ...]:
        """The upstreams that are laid over the base's own."""
        return tuple(name for name in self.stack.pins if name not in self.by_wheel)


def make_context(
    root: Path,
    dest: Path,
    order: Order,
    arguments: Mapping[str, str],
    lock: Lock,
    upstreams: Mapping[str, Upstream],
    *,
    say: Callable[[str], None],
) -> Path:
    """Put the context together as ``<dest>/<name>``; beside it the SBOM, and bake's arguments.

    Args:
        root: the checkout.
        dest: the folder for all images, usually ``dist/image``.
        order, lock, upstreams: what for.
        arguments: the Dockerfile's arguments.
        say: told what is going on, one line at a time.

    Raises:
        EvidenceError: a wheel cannot be had.
        FoundError: an edit cannot be woven.
        OSError, UnfinishedError: it cannot be written.
    """
    place = dest / order.name
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{order.name}.", suffix=".part", dir=dest) as part:
        folder = Path(part, "context")
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        _stack_wheels(order, wheels, lock, upstreams, say)
        _tools_wheels(root / "requirements" / "tools.txt", order, wheels, say)
        for name in ("Dockerfile", "install.sh", "consistency"):
            shutil.copyfile(root / "docker" / name, folder / name)
        _write(folder / "python-version", f"{order.stack.python}\n")
        _write(folder / "in-place", "".join(f"{name}\n" for name in order.in_place))
        _write(folder / "by-wheel", "".join(f"{name}\n" for name in order.by_wheel))
        sbom = image_sbom(arguments, lock, order.stack, upstreams, sorted(wheels.glob("*.whl")))
        (folder / "sbom.cdx.json").write_bytes(sbom)
        bake = {"target": {order.name.replace(".", "_"): {"args": dict(arguments)}}}
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)
        (dest / f"{order.name}.cdx.json").write_bytes(sbom)
        _write(dest / f"{order.name}.bake.json", json.dumps(bake, indent=1, sort_keys=True) + "\n")
    return place


def _stack_wheels(
    order: Order, wheels: Path, lock: Lock, upstreams: Mapping[str, Upstream], say: Callable[[str], None]
) -> None:
    """This distribution's own wheel and the woven ones, with a requirements file that has their digests."""
    stack = replace(order.stack, pins={name: order.stack.pins[name] for name in order.by_wheel})
    known = dict(upstreams)
    target = Target.of(order.machine, stack.python)
    outcome = Factory(lock, known, wheels, target, sources=read_sources([], known), say=say).run([stack])
    if outcome.missing:
        raise outcome.missing[0].error
    (wheels / SUMS).unlink()  # the requirements files have the digests


def _tools_wheels(wanted: Path, order: Order, wheels: Path, say: Callable[[str], None]) -> None:
    """The wheels that the tools' own environment is made of, and their requirements file; downloads are kept."""
    alone = requirements_path(wheels, ALONE)
    own = [line for line in alone.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    alone.unlink()
    kept = cache_dir() / "tools" / f"{file_digest(wanted)[:16]}-{order.machine}-py{order.stack.python}"
    if not kept.is_dir():
        say(f"the tools' wheels for {order.machine}")
        _download(wanted, order, kept)
    for wheel in kept.glob("*.whl"):
        shutil.copyfile(wheel, wheels / wheel.name)
    _write(requirements_path(wheels, "tools"), "\n".join(own) + "\n" + wanted.read_text(encoding="utf-8"))


def _download(wanted: Path, order: Order, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    python = order.stack.python
    with tempfile.TemporaryDirectory(prefix=".download-", dir=kept.parent) as folder:
        target = Path(folder, "wheels")
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(target)]
        options += ["--implementation", "cp", "--python-version", python, "--abi", f"cp{python.replace('.', '')}"]
        options += [f"--platform={tag}_{order.machine}" for tag in _GLIBC]
        failure = run_pip(["download", *options, "--requirement", str(wanted)])
        if failure == "no space left on the disk":
            raise UnfinishedError(f"{kept}: not written: {failure}", "make room, or set XDG_CACHE_HOME")
        if failure is not None:
            raise EvidenceError(
                f"pip could not get what {wanted.name} names ({failure})", "configure pip with an index that has it"
            )
        target.rename(kept)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
