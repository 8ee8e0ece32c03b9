"""JUnit XML for CI: a suite per pair, a test case per module, and one for each verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import quoteattr

from ..comparing.judge import DIFFERS, NOT_COMPARED
from ..comparing.record import CONSISTENT, DIFFERENT, Comparison, ModuleResult, PairResult, RowResult
from ..pairing.plan import Plan
from .profile import error_of

# What XML 1.0 cannot hold at all.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
PACKAGE = "consistency"


def junit_lines(comparison: Comparison) -> Iterator[str]:
    """The document, in the form that Jenkins, GitLab and their like read.

    A module that differs is a failure; one that was not compared is skipped, with its reason. Too little evidence is an
    error of the verdict's case: skipped cases alone would leave a build green.
    """
    verdict = _verdict("all pairs", comparison.verdict, comparison.reason)
    suites = [_suite("verdict", [verdict], _plan(comparison.plan))]
    for index, pair in enumerate(comparison.wholes()):
        name = f"pair {index + 1}" + (f" {pair.request_id}" if pair.request_id else "")
        cases = [_verdict(name, pair.verdict, pair.reason), *(_module(name, module) for module in pair.modules)]
        suites.append(_suite(name, cases, _properties(pair)))
    totals = [sum(counts) for counts in zip(*(counts for _, counts in suites), strict=True)]
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuites name={_quote(PACKAGE)}{_counts(*totals[:3])}>\n"
    for lines, _ in suites:
        yield from lines
    yield "</testsuites>\n"


# A case: its lines, and which counter it raises ("" passed).
_Case = tuple[str, str]


def _suite(name: str, cases: list[_Case], properties: str = "") -> tuple[list[str], list[int]]:
    counts = [len(cases), *(sum(kind == word for _, kind in cases) for word in ("failure", "error", "skipped"))]
    head = f"<testsuite name={_quote(name)}{_counts(*counts)}>\n"
    return [head, properties, *(text for text, _ in cases), "</testsuite>\n"], counts


def _verdict(suite: str, verdict: str, reason: str) -> _Case:
    if verdict == CONSISTENT:
        return _case(suite, "verdict")
    return _case(suite, "verdict", "failure" if verdict == DIFFERENT else "error", reason, verdict)


def _module(suite: str, module: ModuleResult) -> _Case:
    if module.word == DIFFERS:
        rows = [row for row in module.rows if row.word == DIFFERS]
        lines = [_row(row) for row in rows]
        return _case(suite, module.module, "failure", lines[0].partition("\n")[0], DIFFERS, "\n".join(lines))
    if module.word == NOT_COMPARED:
        return _case(suite, module.module, "skipped", module.reason or NOT_COMPARED)
    return _case(suite, module.module)


def _row(row: RowResult) -> str:
    """A row's figures, and the place of each, as the text of a failure."""
    error = error_of(row)
    figures = "" if error is None else f"relative error {error:.3g}, bound {row.bound:.3g}"
    lines = [f"{row.kind}: " + "; ".join(part for part in (figures, row.reason) if part)]
    for label, quantity in (("inference", row.inference), ("training", row.training)):
        if quantity is None:
            continue
        stats = ", ".join(
            f"{name} {'not available' if value is None else format(value, '.7g')}"
            for name, value in zip(("max", "min", "mean", "norm"), quantity.summary, strict=True)
        )
        lines.append(f"  {label}: {quantity.dtype} {quantity.tokens} x {quantity.features}: {stats}")
        lines += [f"    {piece.dump.path} {piece.call.name} {piece.slot}" for piece in quantity.pieces]
    return "\n".join(lines)


def _case(suite: str, name: str, kind: str = "", message: str = "", type_: str = "", text: str = "") -> _Case:
    head = f"<testcase classname={_quote(f'{PACKAGE}.{suite}')} name={_quote(name)}"
    if not kind:
        return head + "/>\n", ""
    attributes = f" message={_quote(message)}" + (f" type={_quote(type_)}" if type_ else "")
    body = f">{_escape(text)}</{kind}>" if text else "/>"
    return f"{head}><{kind}{attributes}{body}</testcase>\n", kind


def _properties(pair: PairResult) -> str:
    values = {"verdict": pair.verdict, "coverage": f"{pair.coverage:.6f}", "tokens": pair.identity}
    for side in (pair.inference, pair.training):
        if side is not None:
            values |= {f"{side.label}.{n}": str(dump.path) for n, dump in enumerate(side.dumps)}
    return _as_properties(values)


def _plan(plan: Plan | None) -> str:
    """The plan of the run, for the verdict's suite; nothing where there is none."""
    if plan is None:
        return ""
    names = ("scenario", "stack", "run_id", "folder", "file", "note")
    return _as_properties({f"plan.{name}": value for name in names if (value := getattr(plan, name))})


def _as_properties(values: Mapping[str, str]) -> str:
    inner = "".join(f"<property name={_quote(name)} value={_quote(value)}/>" for name, value in values.items())
    return f"<properties>{inner}</properties>\n"


def _counts(*counts: int) -> str:
    names = ("tests", "failures", "errors", "skipped")  # the outermost element may not have the last one
    return "".join(f' {name}="{count}"' for name, count in zip(names, counts, strict=False))


def _quote(text: str) -> str:
    return quoteattr(_ILLEGAL.sub("?", text))


def _escape(text: str) -> str:
    return _ILLEGAL.sub("?", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
