"""``consistency check``: read a run's scripts and files, and say what would go wrong and what to write instead.

A check costs little more than an interpreter's start, so nothing is imported here that it can do without.
"""

from __future__ import annotations

import os
import sys

from ..errors import UsageError
from ..launch import inputs, installed, stacks
from ..launch.check import check
from ..launch.words import LANGUAGES, language_of, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from ..launch.check import Finding, Report, Unchecked
    from ..launch.installed import Installed
    from ..launch.rule import Mend

#: So many rules that one unknown word leaves open are said in one line.
_MANY = 4
_COLOURS = {"error": "31", "warning": "33", "note": "2"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="FILE",
        help="a launch script, a file of overrides or flags, msprobe JSON files, a runtime_env, a dumped Hydra "
        "configuration, a plan.toml or a plan's folder; after -- a command line",
    )
    parser.add_argument(
        "--stack",
        default="",
        metavar="NAME",
        help=f"{', '.join(stacks.STACKS)}, or pins: verl=0.9.1,vllm-ascend=0.23.0",
    )
    parser.add_argument("--diff", action="store_true", help="print the corrected lines as a unified diff")
    parser.add_argument("--lang", choices=LANGUAGES, help="language of the messages; default: the locale's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


class Options:
    """The verb's options, as argparse gives them too."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.behind: list[str] = []
        self.stack = ""
        self.lang: str | None = None
        self.diff = False
        self.json = False


def plain_options(words: list[str]) -> Options | None:
    """The options of a command line that is right; None where argparse shall say what is wrong, or help."""
    options = Options()
    rest = iter(words)
    for word in rest:
        if word == "--":
            options.behind = list(rest)
        elif word in ("--diff", "--json"):
            setattr(options, word[2:], True)
        elif word in ("--stack", "--lang"):
            setattr(options, word[2:], next(rest, "-"))
        elif word.startswith("-"):
            return None
        else:
            options.inputs.append(word)
    good = options.lang in (None, *LANGUAGES) and not options.stack.startswith("-")
    return options if good else None


def run(options: argparse.Namespace | Options) -> int:
    """Run the verb: 0 all rules hold, 1 a rule is broken, 3 something could not be read or judged.

    Raises:
        UsageError: nothing to check, or an unknown stack.
    """
    if not options.inputs and not options.behind:
        raise UsageError("nothing to check", "name a launch script or a plan's folder, or give a command after --")
    language = options.lang or language_of(dict(os.environ))
    try:
        report = check(*inputs.read(options.inputs, options.behind, options.stack))
    except KeyError:
        raise UsageError(f"no stack {options.stack!r}", f"use one of {', '.join(stacks.STACKS)}, or pins") from None
    installed.look(report)
    if options.json:
        from .output import print_json

        print_json(to_json(report, language))
    elif options.diff:
        from ..launch.diff import corrections

        print(corrections(report, language))
    else:
        print("\n".join(lines(report, language)))
    return report.status


def lines(report: Report, language: str) -> list[str]:
    """The report for a terminal."""
    found: list[str] = []
    for run_ in report.runs:
        if run_.scenario:
            versions = " ".join(f"{name} {version}" for name, version in run_.stack.items())
            found.append(say(language, "run", where=run_.entry, scenario=run_.scenario, versions=versions))
    rows = [_row(finding, language) for finding in report.findings]
    unjudged = [one for one in report.unchecked if not one.target]
    many = {one.word for one in unjudged if one.word and sum(one.word == other.word for other in unjudged) >= _MANY}
    alone = [one for one in unjudged if one.word not in many]
    rows += [(one.rule.code, "", str(one.origin or ""), _not_checked(one, language)) for one in alone]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    mends = [finding.mends for finding in report.findings] + [()] * len(alone)
    for row, offered in zip(rows, mends, strict=True):
        found.append("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
        found += [" " * (sum(widths) + 6) + _mend(mend, language) for mend in offered]
    found += [_maybe(word, unjudged, language) for word in sorted(many)]
    found += [f"{origin}: {say(language, 'unread', text=said.text(language))}" for origin, said in report.unread]
    found += [say(language, "target", text=said.text(language)) for said in report.target]
    found += [
        say(language, "target", text=f"{one.rule.code}: {_text(one, language)}")
        for one in report.unchecked
        if one.target
    ]
    for one in report.installed:
        what = ("；" if language == "zh" else "; ").join(filter(None, _installed(one, language)))
        level = say(language, "error" if one.level == "wrong" else one.level)
        found.append(say(language, "installed", level=level, subject=one.subject, what=what))
    found.append(
        say(
            language,
            "summary",
            applied=len(report.applied),
            broken=len(report.broken) + sum(one.level == "wrong" for one in report.installed),
            unchecked=len(unjudged),
            unread=len(report.unread),
        )
    )
    return found if report.applied else [*found, say(language, "nothing")]


def _row(finding: Finding, language: str) -> tuple[str, str, str, str]:
    severity = finding.rule.severity
    word = say(language, severity)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        word = f"\033[{_COLOURS[severity]}m{word}\033[0m"
    return finding.rule.code, word, str(finding.origin), _text(finding, language)


def _text(one: Finding | Unchecked, language: str) -> str:
    return one.zh if language == "zh" else one.en


def _installed(one: Installed, language: str) -> tuple[str, str | None]:
    """What is wrong with an installed package, and what to do."""
    if language != "zh":
        return one.what, one.mend
    from ..launch.installed_words import chinese

    return chinese(one.what), chinese(one.mend) if one.mend else None


def _not_checked(one: Unchecked, language: str) -> str:
    return say(language, "not-checked", text=_text(one, language))


def _maybe(word: str, unjudged: list[Unchecked], language: str) -> str:
    codes = [one.rule.code for one in unjudged if one.word == word]
    return say(language, "maybe-many", count=len(codes), why=word, codes=" ".join(codes))


def _mend(mend: Mend, language: str) -> str:
    key = "remove" if mend.value is None else "write-env" if mend.kind == "env" else "write"
    return say(language, key, text=mend.text)


def to_json(report: Report, language: str) -> dict[str, Any]:
    """The report as one JSON object."""
    return {
        "status": report.status,
        "runs": [
            {"scenario": one.scenario, "entry": str(one.entry or ""), "versions": one.stack} for one in report.runs
        ],
        "applied": sorted(report.applied),
        "findings": [
            {
                "code": finding.rule.code,
                "severity": finding.rule.severity,
                "file": finding.origin.file,
                "line": finding.origin.line,
                "what": _text(finding, language),
                "fact": finding.rule.fact,
                "mends": [
                    {"kind": mend.kind, "remove": mend.value is None, "text": mend.text} for mend in finding.mends
                ],
            }
            for finding in report.findings
        ],
        "not_checked": [
            {"code": one.rule.code, "where": str(one.origin or ""), "why": _text(one, language), "target": one.target}
            for one in report.unchecked
        ],
        "unread": [{"where": str(origin), "why": said.text(language)} for origin, said in report.unread],
        "installed": [
            {"level": one.level, "subject": one.subject, "what": what, "mend": mend}
            for one in report.installed
            for what, mend in [_installed(one, language)]
        ],
        "target_only": [said.text(language) for said in report.target],
    }
