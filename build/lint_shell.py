"""Lint the shell of scripts, Makefile recipes and workflow steps with shellcheck: ``python build/lint_shell.py``.

A recipe is looked at as make would run it (``make --dry-run``), a line at a time, with and without the variables that
switch parts of it on. The shell in Dockerfiles is hadolint's, which holds shellcheck too. Status 1: there is a finding.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from train_infer_consistency.errors import ConsistencyError, EvidenceError

ROOT = Path(__file__).resolve().parents[1]
_SHEBANG = re.compile(rb"^#!.*\b(?:ba|da)?sh\b")
_TARGET = re.compile(r"^([A-Za-z.][\w./-]*):(?![=:])(?!.*:=)", re.MULTILINE)
#: With what recipes are looked at: as they are, and with every variable set that switches a part of one on.
_VARIABLES: tuple[Mapping[str, str], ...] = (
    {},
    {
        "ARGS": "-x",
        "BASE": "base",
        "CHIP": "a3",
        "ENGINE": "vllm",
        "FAULT": "x",
        "PLATFORM": "aarch64",
        "PYTHON": "3.11",
        "RELEASE": "1",
        "STACK": "slime-0.2.2",
        "STRATEGY": "fsdp",
        "TASK": "tensor",
        "TIMEOUT": "9",
    },
)


@dataclass(frozen=True)
class Piece:
    """A piece of shell: where it stands, in which shell it runs, and what it says."""

    place: str
    shell: str
    text: str


def scripts(root: Path) -> Iterator[Piece]:
    """Every tracked or new file whose first line says that a shell runs it.

    Raises:
        EvidenceError: git cannot list the files.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise EvidenceError(f"git cannot list the files of {root}", "run it in a checkout")
    for name in sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name}):
        path = root / name
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if _SHEBANG.match(data):
            shell = "bash" if b"bash" in data.splitlines()[0] else "sh"
            yield Piece(name, shell, data.decode())


def recipes(makefile: Path) -> Iterator[Piece]:
    """Every line of every recipe, as make would give it to the shell; the same line once.

    Raises:
        EvidenceError: make cannot say what it would run.
    """
    seen = set()
    for target in dict.fromkeys(_TARGET.findall(makefile.read_text(encoding="utf-8"))):
        if target.startswith(".") and target.isupper():  # .PHONY and its like
            continue
        for variables in _VARIABLES:
            for line in _dry_run(makefile, target, variables):
                if line not in seen:
                    seen.add(line)
                    yield Piece(f"{makefile.name} ({target})", "sh", line + "\n")


def _dry_run(makefile: Path, target: str, variables: Mapping[str, str]) -> list[str]:
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", "-f", makefile.name]
    command += [f"{name}={value}" for name, value in variables.items()]
    # What an outer make hands on would count as said on this command line.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    done = subprocess.run(
        [*command, target], cwd=makefile.parent, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EvidenceError(f"make cannot say what {target} would run: {reason}", "mend the Makefile")
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if lines and lines[-1].endswith("\\"):
            lines[-1] += "\n" + line
        else:
            lines.append(line)
    return [line for line in lines if not line.startswith("make: ")]


def steps(workflow: Path) -> Iterator[Piece]:
    """Every ``run:`` of a workflow.

    Raises:
        EvidenceError: the file cannot be read.
    """
    jobs = YAML(typ="safe").load(workflow.read_text(encoding="utf-8")).get("jobs", {})
    for job, content in jobs.items():
        for number, step in enumerate(content.get("steps", []), 1):
            if "run" in step:
                yield Piece(f"{workflow.name} ({job}: {step.get('name', number)})", "bash", step["run"])


def shellcheck() -> Path | None:
    """The program: requirements/dev.txt brings it for x86-64, a system's package (shellcheck) elsewhere."""
    beside = Path(sysconfig.get_path("scripts")) / "shellcheck"
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    return Path(found) if found else None


def findings(pieces: Sequence[Piece]) -> list[str]:
    """What shellcheck says of these, one line each.

    Raises:
        EvidenceError: shellcheck is not there.
    """
    program = shellcheck()
    if program is None:
        raise EvidenceError("shellcheck is not there", "run 'make setup', or on this machine: apt install shellcheck")
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, piece in enumerate(pieces):
            path = Path(folder, str(number))
            path.write_text(piece.text, encoding="utf-8")
            files[str(path)] = piece
        found = []
        for shell in sorted({piece.shell for piece in pieces}):
            names = [name for name, piece in files.items() if piece.shell == shell]
            done = subprocess.run(
                [str(program), f"--shell={shell}", "--format=json", "--norc", *names],
                capture_output=True,
                text=True,
                check=False,
            )
            found += json.loads(done.stdout)
    found.sort(key=lambda item: (int(Path(item["file"]).name), item["line"], item["column"]))
    return [_said(item, files[item["file"]]) for item in found]


def _said(item: Mapping[str, object], piece: Piece) -> str:
    line = piece.text.splitlines()[int(str(item["line"])) - 1].strip()
    return f"{piece.place}:{item['line']}: SC{item['code']} {item['message']}: {line[:100]}"


def main() -> int:
    """Print every finding."""
    try:
        pieces = list(scripts(ROOT))
        pieces += recipes(ROOT / "Makefile")
        for workflow in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
            pieces += steps(workflow)
        found = findings(pieces)
    except ConsistencyError as error:
        print(f"lint_shell: {error}", file=sys.stderr)
        return error.status
    print("\n".join([*found, f"{len(found)} findings of shellcheck in {len(pieces)} pieces of shell"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
