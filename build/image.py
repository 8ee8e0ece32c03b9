"""Build the consistency image of a stack: ``python -m build.image --stack verl-0.8 --chip a2`` (`make image`).

The base is taken by digest: the lock's, or the one that its name has now, which is then printed. The exit statuses are
those of ``consistency``, and so is an error: one line. ``--inputs`` prints the hash of all that can change the image.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train_infer_consistency import __version__
from train_infer_consistency.errors import ConsistencyError, EvidenceError, UsageError
from train_infer_consistency.overlay.lock import Lock, Stack, load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.wheels.archive import source_date_epoch
from train_infer_consistency.wheels.stacks import Target

from .image_builder import choose
from .image_context import Order, make_context
from .image_inputs import inputs_digest, overlay_digest
from .image_sbom import created

ROOT = Path(__file__).resolve().parents[1]
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Base:
    """The image that is built upon; ``digest`` is empty where nobody has read it yet."""

    name: str
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Base:
        """Read ``NAME:TAG``, ``NAME@DIGEST`` or both.

        Raises:
            UsageError: it is neither, or has no fixed tag.
        """
        name, sign, digest = text.partition("@")
        if not name or re.search(r"\s", text) or (sign and not _DIGEST.fullmatch(digest)):
            raise UsageError(f"BASE={text} is no image", "write NAME:TAG or NAME@sha256:DIGEST")
        tag = name.rsplit("/", 1)[-1].partition(":")[2]
        if not digest and tag in ("", "latest"):
            raise UsageError(f"BASE={text} names no fixed image", "write NAME:TAG or NAME@sha256:DIGEST")
        return cls(name, digest)

    @property
    def reference(self) -> str:
        """The name to build from; with a digest the tag is left out, because builders take one of the two."""
        if not self.digest:
            return self.name
        path, slash, last = self.name.rpartition("/")
        return f"{path}{slash}{last.partition(':')[0]}@{self.digest}"


def choose_order(lock: Lock, stack: str, chip: str, machine: str | None) -> Order:
    """What is asked for, by name.

    Raises:
        UsageError: an unknown stack, chip or platform, or a stack without an image.
    """
    found = lock.stacks.get(stack)
    if found is None or not found.images:
        why = "is unknown" if found is None else "has no image"
        names = [name for name, other in lock.stacks.items() if other.images]
        raise UsageError(f"stack {stack!r} {why}", f"use one of {', '.join(names)}")
    if chip not in found.images:
        raise UsageError(f"chip {chip!r} is unknown", f"use one of {', '.join(found.images)}")
    return Order(found, chip, Target.of(machine, None).machine)


def choose_base(stack: Stack, chip: str, given: str | None) -> Base:
    """The base that was given, or else the lock's.

    Raises:
        UsageError: the lock has none, because nobody publishes one.
    """
    if given:
        return Base.parse(given)
    image = stack.images[chip]
    if not image.image:
        raise UsageError(f"stack {stack.name} has no published base for {chip}", "give your own: BASE=NAME:TAG")
    return Base(image.image, image.digest)


def refuse_release(base: Base) -> None:
    """A release can be built again by anyone, or it is none.

    Raises:
        EvidenceError: the base has no digest, or the checkout is no commit as it stands.
    """
    if not base.digest:
        raise EvidenceError(
            f"the base {base.name} has no digest, in VERSIONS.lock or given",
            "write the one that 'make image' prints into overlays/stacks.toml, or give BASE=NAME@sha256:DIGEST",
        )
    if _git("rev-parse", "HEAD") is None or _git("status", "--porcelain"):
        raise EvidenceError("the checkout is no commit as it stands", "commit or remove what was changed")


def arguments_for(order: Order, base: Base, lock: Lock) -> dict[str, str]:
    """The Dockerfile's arguments, all of them."""
    stack = order.stack
    version = f"{__version__}-{stack.name}-{order.chip}"
    epoch = source_date_epoch()
    if epoch is None:
        epoch = int(_git("log", "-1", "--format=%ct") or 0)
    return {
        "BASE": base.reference,
        "BASE_DIGEST": base.digest,
        "BASE_NAME": base.name,
        "CHIP": order.chip,
        "CREATED": created(epoch),
        "INPUTS": f"sha256:{inputs_of(order, base)}",
        "OVERLAY_DIGEST": f"sha256:{overlay_digest(lock, stack)}",
        "OVERLAY_REVISION": f"consistency.{lock.revision}",
        "REVISION": _revision(),
        "SOURCE": _source(),
        "SOURCE_DATE_EPOCH": str(epoch),
        "STACK": stack.name,
        "TITLE": stack.image_name,
        "VERSION": version,
    }


def inputs_of(order: Order, base: Base) -> str:
    """The hash of :mod:`.image_inputs` for an order."""
    choices = {"stack": order.stack.name, "chip": order.chip, "platform": order.machine}
    return inputs_digest(ROOT, {**choices, "base": base.name, "base digest": base.digest})


def _revision() -> str:
    commit = _git("rev-parse", "HEAD")
    return f"{commit or 'unknown'}{'+changed' if commit and _git('status', '--porcelain') else ''}"


def _source() -> str:
    """Where the source is: IMAGE_SOURCE, else the remote that was cloned, if that is a public address."""
    remote = os.environ.get("IMAGE_SOURCE") or _git("remote", "get-url", "origin") or ""
    public = re.fullmatch(r"https://(?:[^/@]*@)?([^/@]+/.+?)(?:\.git)?", remote)
    return f"https://{public[1]}" if public else "unknown"


def _git(*arguments: str) -> str | None:
    """What git says of the checkout; None where there is no git or no repository."""
    try:
        answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def say(text: str) -> None:
    """Tell what is going on, on standard error."""
    print(text, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks for; what was made is printed to standard output."""
    lock = load_lock()
    order = choose_order(lock, options.stack, options.chip, options.platform)
    base = choose_base(order.stack, order.chip, options.base)
    if options.release:
        refuse_release(base)
    if options.inputs:
        if not base.digest:
            say(f"note: {base.name} has no digest in the lock; the hash holds its name alone")
        print(f"{inputs_of(order, base)}  {order.name}")
        return 0
    builder = None if options.context_only else choose(options.builder)
    if builder is not None and not base.digest:
        base = Base(base.name, builder.resolve(base.name))
    print(f"base: {base.name} {base.digest or '(digest not resolved)'}", flush=True)
    arguments = arguments_for(order, base, lock)
    os.environ["SOURCE_DATE_EPOCH"] = arguments["SOURCE_DATE_EPOCH"]  # the wheels' and their SBOMs' too
    context = make_context(ROOT, options.dest, order, arguments, lock, load_upstreams(), say=say)
    print(f"inputs: {arguments['INPUTS']}")
    print(f"context: {context}")
    print(f"sbom: {context}.cdx.json", flush=True)
    if builder is not None:
        tag = f"{order.stack.image_name}:{arguments['VERSION']}-{order.machine}"
        digest = builder.build(context, arguments, tag, order.machine)
        print(f"image: {tag}\ndigest: {digest}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="image", description="Build the consistency image of a stack.")
    parser.add_argument("--stack", default="verl-0.8", metavar="NAME", help="the lock's name of it (verl-0.8)")
    parser.add_argument("--chip", default="a2", metavar="CHIP", help="a2 (910b) or a3")
    parser.add_argument("--platform", metavar="MACHINE", help="x86_64 or aarch64 (this machine's)")
    parser.add_argument("--base", metavar="IMAGE", help="NAME:TAG or NAME@DIGEST (the lock's)")
    parser.add_argument("--builder", metavar="NAME", help="docker or buildah (the first that is installed)")
    parser.add_argument("--dest", type=Path, default=Path("dist/image"), metavar="DIR", help="where to (dist/image)")
    parser.add_argument("--release", action="store_true", help="stop unless anyone can build it again")
    parser.add_argument("--context-only", action="store_true", help="make the context, and build nothing")
    parser.add_argument("--inputs", action="store_true", help="print the hash of all inputs, and do nothing")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except ConsistencyError as error:
        say(f"image: {error}")
        return error.status
    except KeyboardInterrupt:
        say("image: interrupted; nothing half-written was left")
        return 4
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        say(f"image: {error.strerror or error}{where}; mend that and run it again")
        return 4


if __name__ == "__main__":
    sys.exit(main())
