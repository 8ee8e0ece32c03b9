"""Measure Dockerfiles on the points of docs/images.md: ``python build/dockerfile_points.py NAME=PATH[,SCRIPT]...``.

It prints a Markdown table with a column for each file. dockerfile-parse reads the instructions, hadolint gives the last
row; the commands inside a RUN are told apart by bash's separators, which is enough to count clones and installations. A
SCRIPT that a RUN starts is read as if it stood there.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dockerfile_parse import DockerfileParser

from train_infer_consistency.errors import ConsistencyError, EvidenceError, UsageError

_SEPARATOR = re.compile(r"&&|\|\||[;|()\n]")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_LINE_EDIT = re.compile(r"sed\s.*-i.*['\"\s]\d+(?:,\d+)?[sdaic]")
_NO_TLS = re.compile(
    r"GIT_SSL_NO_VERIFY|sslVerify[ =]+false|--trusted-host|--no-check-certificate|curl\s.*(?:-k\b|--insecure)"
)
_INDEX = re.compile(r"index[-_]url|extra-index|https?://[^\s\"']*/simple\b", re.IGNORECASE)
_COMPILE = re.compile(
    r"^(?:\w+=\S+\s+)*(?:make\b|cmake\b|ninja\b|python3?\s+setup\.py\b|bazel\b)|COMPILE_CUSTOM_KERNELS=1"
)


@dataclass(frozen=True)
class Points:
    """What is counted in one Dockerfile; every field but ``findings`` is read from its instructions alone.

    ``bases`` counts named bases that no digest pins (an argument without a default names none), ``clones`` all of git's
    clones and ``unpinned`` those that are not set to a commit, ``installs`` pip's installations and ``hashed`` those
    that demand hashes; ``findings`` are hadolint's, its ignore comments and configuration left out.
    """

    labels: int
    users: int
    health: int
    bases: int
    clones: int
    unpinned: int
    line_edits: int
    compiles: int
    installs: int
    hashed: int
    no_tls: int
    indexes: int
    findings: int


#: Row titles, in the order of the fields.
TITLES = (
    "`LABEL` instructions",
    "`USER` instructions",
    "`HEALTHCHECK` instructions",
    "bases named without a digest",
    "`git clone`",
    "of these, not at a commit",
    "edits of files by line number (`sed`)",
    "compilations",
    "`pip install`",
    "of these, with required hashes",
    "TLS checks switched off",
    "package indexes named",
    "hadolint findings",
)


def measure(text: str, scripts: Sequence[str] = ()) -> Points:
    """Count the points in a Dockerfile's text and in the scripts that it runs.

    Raises:
        EvidenceError: hadolint is not installed, or cannot read the text.
    """
    instructions = [
        (str(row["instruction"]).upper(), str(row["value"]))
        for row in _parser(text).structure
        if row["instruction"] != "COMMENT"
    ]
    instructions += [("RUN", _joined(script)) for script in scripts]
    values = _defaults(instructions)
    commands = [command for name, value in instructions if name == "RUN" for command in _commands(value, values)]
    settings = [value for name, value in instructions if name in ("ARG", "ENV")]
    names = [name for name, _ in instructions]
    clones = list(_clones(commands))
    installs = [command for command in commands if re.search(r"\bpip3?\s+install\b|-m pip .*\binstall\b", command)]
    return Points(
        labels=names.count("LABEL"),
        users=names.count("USER"),
        health=names.count("HEALTHCHECK"),
        bases=sum(_names_a_tag(value, values, instructions) for name, value in instructions if name == "FROM"),
        clones=len(clones),
        unpinned=clones.count(False),
        line_edits=sum(bool(_LINE_EDIT.search(command)) for command in commands),
        compiles=sum(bool(_COMPILE.search(command)) for command in commands),
        installs=len(installs),
        hashed=sum("--require-hashes" in command for command in installs),
        no_tls=sum(bool(_NO_TLS.search(line)) for line in [*commands, *settings]),
        indexes=sum(bool(_INDEX.search(line)) for line in [*commands, *settings]),
        findings=_hadolint(text),
    )


def _joined(script: str) -> str:
    """A script without its comments, each command on one line."""
    return re.sub(r"^\s*#.*\n", "", script, flags=re.MULTILINE).replace("\\\n", " ")


def _parser(text: str) -> DockerfileParser:
    return DockerfileParser(fileobj=io.BytesIO(text.encode()), env_replace=False)


def _defaults(instructions: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The defaults of the build arguments."""
    pairs = (value.partition("=") for name, value in instructions if name == "ARG")
    return {key.strip(): value.strip().strip("\"'") for key, equals, value in pairs if equals}


def _filled(text: str, values: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], found[0]), text)


def _commands(run: str, values: dict[str, str]) -> list[str]:
    """The simple commands of a RUN, build arguments filled in."""
    return [piece.strip() for piece in _SEPARATOR.split(_filled(run, values)) if piece.strip()]


def _clones(commands: Sequence[str]) -> Iterator[bool]:
    """For each clone, whether a commit is checked out before the next one."""
    at_commit: bool | None = None
    for command in commands:
        if re.match(r"(?:\w+=\S+\s+)*git\s+(?:-\S+\s+\S+\s+)*clone\b", command):
            if at_commit is not None:
                yield at_commit
            at_commit = False
        elif at_commit is not None and re.match(r"git\s+(?:-C \S+\s+)?(?:checkout|reset)\b", command):
            at_commit = bool(_COMMIT.search(command))
    if at_commit is not None:
        yield at_commit


def _names_a_tag(value: str, values: dict[str, str], instructions: Sequence[tuple[str, str]]) -> bool:
    """Whether a FROM names an image of its own that no digest pins."""
    words = [word for word in value.split() if not word.startswith("--")]
    stages = {v.split()[-1] for name, v in instructions if name == "FROM" and " as " in v.lower()}
    base = _filled(words[0], values)
    return base not in stages and base != "scratch" and "@sha256:" not in base and not base.startswith("$")


def _hadolint(text: str) -> int:
    # Its ignore comments would hide what is counted here, in ours as in others.
    bare = "".join(line for line in text.splitlines(keepends=True) if not re.match(r"\s*#\s*hadolint\b", line))
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    try:
        done = subprocess.run(
            [str(program), "--no-fail", "--format", "json", "--config", "/dev/null", "-"],
            input=bare, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return len(json.loads(done.stdout))
    except FileNotFoundError:
        raise EvidenceError("hadolint is not installed here; run: make setup") from None
    except ValueError:
        raise EvidenceError(
            f"hadolint could not read a Dockerfile: {done.stderr.strip() or done.stdout[:200]}"
        ) from None


def table(columns: dict[str, Points]) -> str:
    """The points as a Markdown table."""
    lines = ["| point | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for title, field in zip(TITLES, Points.__dataclass_fields__, strict=True):
        lines.append(f"| {title} | " + " | ".join(str(getattr(points, field)) for points in columns.values()) + " |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Print the table of the files named on the command line."""
    try:
        columns = {}
        for word in words:
            name, equals, paths = word.partition("=")
            if not equals:
                raise UsageError(f"'{word}' is not NAME=PATH[,SCRIPT]")
            try:
                text, *scripts = [Path(path).read_text(encoding="utf-8") for path in paths.split(",")]
            except OSError as error:
                raise EvidenceError(f"{error.filename}: {error.strerror}") from None
            columns[name] = measure(text, scripts)
        if not columns:
            raise UsageError("no Dockerfile named", "give NAME=PATH[,SCRIPT]")
    except ConsistencyError as error:
        print(f"dockerfile_points: {error}", file=sys.stderr)
        return error.status
    print(table(columns), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
