"""Run the rules that apply to a run, and report: what is broken, what was not checked, and the status."""

from __future__ import annotations

from .rule import ERROR, NOTE, WARNING, Found, NotChecked, Out
from .rules import rules_of
from .run import Origin, UnknownValueError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .rule import Mend, Rule
    from .run import Run


class Finding:
    """A broken rule at a place; ``en`` and ``zh`` are filled."""

    __slots__ = ("en", "mends", "origin", "rule", "zh")

    def __init__(self, rule: Rule, found: Found) -> None:
        self.rule = rule
        self.origin: Origin = found.origin
        self.mends: tuple[Mend, ...] = found.mends
        self.en = rule.en.format(**found.values)
        self.zh = rule.zh.format(**found.values)


class Report:
    """What checking gave.

    ``not_checked`` are (rule's code, where, en, zh); ``target`` the same, for what only the target can show.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.applied = 0
        self.findings: list[Finding] = []
        self.not_checked: list[tuple[str, Origin | None, str, str]] = []
        self.target: list[tuple[str, Origin | None, str, str]] = []

    @property
    def broken(self) -> list[Finding]:
        """The findings that are more than a note."""
        return [finding for finding in self.findings if finding.rule.severity != NOTE]

    @property
    def status(self) -> int:
        """1: a broken rule; 3: something could not be read or judged, or no rule applied; 0: all rules hold."""
        if self.broken:
            return 1
        return 3 if self.run.unread or self.not_checked or not self.applied else 0


def check(run: Run) -> Report:
    """Try every rule that applies to a run."""
    report = Report(run)
    for rule in rules_of(run.scenario):
        if rule.applies(run):
            _try(rule, run, report)
    order = (ERROR, WARNING, NOTE)
    report.findings.sort(key=lambda finding: (order.index(finding.rule.severity), finding.rule.code))
    return report


def _try(rule: Rule, run: Run, report: Report) -> None:
    try:
        answer = rule.check(run)
    except UnknownValueError as unknown:
        text = f"{unknown.key} is unknown here: {unknown.why}", f"{unknown.key} 的值在此无法得知：{unknown.why}"
        report.applied += 1
        report.not_checked.append((rule.code, unknown.origin, *text))
        return
    if isinstance(answer, Out):
        return
    report.applied += 1
    if isinstance(answer, NotChecked):
        (report.target if answer.target else report.not_checked).append((rule.code, None, answer.en, answer.zh))
    elif answer is not None:
        found = [answer] if isinstance(answer, Found) else answer
        report.findings += [Finding(rule, one) for one in found]
