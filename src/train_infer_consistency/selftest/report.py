"""The report of a self-test as Markdown, to be pasted into an issue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from .. import __version__
from ..overlay.status import describe
from .run import Result, Step, Verdict


def render(result: Result) -> str:
    """Return the whole report."""
    return "\n".join(_lines(result)) + "\n"


def headline(result: Result) -> str:
    """Return the verdict in one line."""
    if not result.verdicts:
        return f"consistency selftest: nothing was compared, status {result.status}"
    words = ", ".join(f"{one.engine} {one.verdict}" for one in result.verdicts)
    return f"consistency selftest: {words}, status {result.status}"


def to_json(result: Result) -> dict[str, Any]:
    """Return the report as one object that JSON can hold."""
    return {
        "schema": 1,
        "status": result.status,
        "folder": str(result.folder),
        "dtype": result.dtype,
        **result.found,
        "doctor": result.doctor.to_json(),
        "steps": [asdict(step) for step in result.steps],
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
    }


def _lines(result: Result) -> Iterator[str]:
    found, device = result.found, result.found["device"]
    yield f"## {headline(result)}"
    yield ""
    for verdict in result.verdicts:
        yield f"- {_verdict(verdict, result.dtype)}"
    for step in result.steps:
        if step.outcome != "done":
            yield f"- {step.name}: {step.outcome}: {step.detail}"
    yield ""
    yield "| what | version |"
    yield "|---|---|"
    yield f"| train-infer-consistency | {__version__}, overlay revision {result.doctor.revision} |"
    yield f"| Python, platform | {found['python']}, {_cell(found['platform'])} |"
    yield f"| device | {device['kind']}, {device['count']} x {_cell(device['name'])} |"
    for name, version in (found["drivers"] | found["versions"]).items():
        if name != "train-infer-consistency":
            yield f"| {name} | {_cell(version)} |"
    yield ""
    yield from _table(("overlay", "version", "state"), _overlays(result))
    for finding in result.doctor.findings:
        if finding.level in ("wrong", "warning"):
            mend = f"; {finding.mend}" if finding.mend else ""
            yield f"- {finding.level}: {finding.subject}: {finding.what}{mend}"
    yield ""
    yield from _table(("step", "outcome", "seconds"), _steps(result.steps))
    yield f"Logs and dumps: `{result.folder}`"
    for step in result.steps:
        if step.tail:
            yield from ("", f"The end of {step.name}'s output:", "```", *step.tail, "```")


def _verdict(verdict: Verdict, dtype: str) -> str:
    said = f"{verdict.engine} against verl (FSDP2, {dtype}): **{verdict.verdict}**"
    if verdict.coverage is None:
        return f"{said}: {verdict.reason}"
    return f"{said}: {verdict.reason}; {verdict.pairs} prompts, coverage {verdict.coverage:.3f}"


def _overlays(result: Result) -> Iterator[Sequence[str]]:
    for row in result.doctor.upstreams:
        yield row.upstream, row.version or "?", describe(row)


def _steps(steps: Iterable[Step]) -> Iterator[Sequence[str]]:
    for step in steps:
        yield step.name, step.outcome, f"{step.seconds:.0f}" if step.outcome != "not run" else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
