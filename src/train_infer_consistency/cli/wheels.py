"""``consistency wheels``: build a stack's wheels with the edits in them."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .output import note, paint, print_json, table

if TYPE_CHECKING:
    from ..wheels.stacks import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--stack", default="verl-0.8", metavar="NAME", help="a stack, or all (verl-0.8)")
    parser.add_argument("--platform", metavar="MACHINE", help="x86_64 or aarch64 (this machine's)")
    parser.add_argument("--python", metavar="3.N", help="the Python that the wheels are for (the stack's)")
    parser.add_argument("--dest", type=Path, default=Path("dist/wheels"), metavar="DIR", help="where to (dist/wheels)")
    parser.add_argument(
        "--artifact", type=Path, action="append", default=[], metavar="PATH", help="a registry wheel you have"
    )
    parser.add_argument(
        "--source", metavar="NAME=PATH", action="append", default=[], help="a checkout (or set SOURCE_<name>)"
    )
    parser.add_argument("--bundle", action="store_true", help="make an archive too, in the folder above DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Build; the closing table goes to standard output, everything else to standard error."""
    from ..overlay.lock import load_lock
    from ..overlay.reading import load_upstreams
    from ..wheels.checkouts import read_sources
    from ..wheels.stacks import Factory, Target, choose_stacks

    _end_on_sigterm()
    lock = load_lock()
    target = Target.of(options.platform, options.python)
    stacks = choose_stacks(lock, options.stack)
    upstreams = load_upstreams()
    sources = read_sources(options.source, upstreams)
    factory = Factory(lock, upstreams, options.dest, target, given=options.artifact, sources=sources, say=note)
    outcome = factory.run(stacks)
    bundles = []
    if options.bundle:
        from ..wheels.bundle import write_bundle

        for stack in stacks:
            if stack.name in outcome.requirements:
                label = f"{target.machine}-py{target.python or stack.python}"
                bundles.append(write_bundle(stack.name, outcome.wheels[stack.name], label, options.dest.parent))
    if options.json:
        print_json(_as_json(outcome, bundles))
    else:
        _print(outcome, bundles, options.dest)
    for missing in outcome.missing:
        note(f"consistency: {missing.error}")
    return outcome.status


def _end_on_sigterm() -> None:
    """Let a polite kill unwind as Ctrl-C does, so that temporary files go."""

    def stop(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _print(outcome: Outcome, bundles: list[Path], dest: Path) -> None:
    rows = [
        [
            item.wheel.path.name,
            item.origin,
            item.wheel.sha256[:12],
            _size(item.wheel.size),
            f"{item.seconds:.1f}",
        ]
        for item in outcome.built
    ]
    print(table(["built", "from", "sha256", "size", "seconds"], rows))
    for item in outcome.built:
        for caution in item.cautions:
            print(paint(f"note: {caution}", "warn"))
    for name, path in outcome.requirements.items():
        print(f"install {name}: pip install --no-deps --require-hashes -r {path}")
    for path in bundles:
        print(f"bundle: {path} ({_size(path.stat().st_size)})")
    for missing in outcome.missing:
        where = f"stack {missing.stack}" if missing.stack else "every stack"
        print(paint(f"not built: {missing.upstream} {missing.version} ({where})", "bad"))
    print(f"digests: {dest / 'SHA256SUMS'}")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _as_json(outcome: Outcome, bundles: list[Path]) -> dict[str, Any]:
    return {
        "wheels": [
            {
                "file": str(item.wheel.path),
                "upstream": item.upstream,
                "version": item.wheel.version,
                "from": item.origin,
                "sha256": item.wheel.sha256,
                "size": item.wheel.size,
                "seconds": round(item.seconds, 3),
                "notes": list(item.cautions),
            }
            for item in outcome.built
        ],
        "requirements": {name: str(path) for name, path in outcome.requirements.items()},
        "bundles": [str(path) for path in bundles],
        "missing": [
            {
                "stack": item.stack,
                "upstream": item.upstream,
                "version": item.version,
                "error": str(item.error),
            }
            for item in outcome.missing
        ],
        "status": outcome.status,
    }
