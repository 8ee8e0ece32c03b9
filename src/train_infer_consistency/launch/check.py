"""Run the rules that apply to a run, and report: what is broken, what was not checked, and the status."""

from __future__ import annotations

from .rule import ERROR, NOTE, WARNING, Found, NotChecked, Out
from .rules import rules_of
from .run import Origin, Run, UnknownValueError
from .words import Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .installed import Installed
    from .rule import Mend, Rule


class Finding:
    """A broken rule at a place; ``en`` and ``zh`` are filled."""

    __slots__ = ("en", "mends", "origin", "rule", "zh")

    def __init__(self, rule: Rule, found: Found) -> None:
        self.rule = rule
        self.origin: Origin = found.origin
        self.mends: tuple[Mend, ...] = found.mends
        self.en = rule.en.format(**found.values)
        self.zh = rule.zh.format(**found.values)


class Unchecked:
    """A rule that could not be judged, where, and why.

    ``target``: only the target machine can show it. ``word``: the unknown word that may set what the rule looks at.
    """

    __slots__ = ("en", "origin", "rule", "target", "word", "zh")

    def __init__(
        self, rule: Rule, origin: Origin | None, en: str, zh: str, target: bool = False, word: str = ""
    ) -> None:
        self.rule = rule
        self.origin = origin
        self.en = en
        self.zh = zh
        self.target = target
        self.word = word


class Report:
    """What checking gave for all runs that were read.

    Attributes:
        applied: the codes of the rules that applied.
        findings: broken rules and notes, the gravest first.
        unchecked: rules that could not be judged.
        unread: (where, what) of inputs that could not be read.
        target: what only the target machine can show.
        installed: what doctor finds in the packages that are installed here.
    """

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.applied: set[str] = set()
        self.findings: list[Finding] = []
        self.unchecked: list[Unchecked] = []
        self.unread: list[tuple[Origin, Said]] = []
        self.target: list[Said] = []
        self.installed: list[Installed] = []

    @property
    def broken(self) -> list[Finding]:
        """The findings that are more than a note."""
        return [finding for finding in self.findings if finding.rule.severity != NOTE]

    @property
    def status(self) -> int:
        """1: a broken rule; 3: something could not be read or judged, or no rule applied; 0: all rules hold."""
        if self.broken or any(one.level == "wrong" for one in self.installed):
            return 1
        judged = not self.unread and all(one.target for one in self.unchecked)
        return 0 if judged and self.applied else 3


def check(*runs: Run) -> Report:
    """Try every rule that applies to each run. What several runs have in common is said once."""
    report = Report(list(runs))
    for run in runs:
        for rule in rules_of(run.scenario):
            if rule.applies(run):
                _try(rule, run, report)
    report.unread = _once([one for run in runs for one in run.unread])
    seen: dict[str, Said] = {said.text(): said for run in runs for said in run.target_only}
    report.target = list(seen.values())
    order = (ERROR, WARNING, NOTE)
    report.findings.sort(key=lambda finding: (order.index(finding.rule.severity), finding.rule.code))
    return report


def _try(rule: Rule, run: Run, report: Report) -> None:
    try:
        answer = rule.check(run)
    except UnknownValueError as unknown:
        word = "" if unknown.given else unknown.why
        said = Said("unknown" if unknown.given else "maybe", name=unknown.key, why=unknown.why)
        _unchecked(report, Unchecked(rule, unknown.origin, said.text("en"), said.text("zh"), word=word))
        return
    if isinstance(answer, Out):
        return
    report.applied.add(rule.code)
    if isinstance(answer, NotChecked):
        _unchecked(report, Unchecked(rule, None, answer.en, answer.zh, answer.target))
    elif answer is not None:
        known = {(one.rule.code, str(one.origin), one.en) for one in report.findings}
        for found in [answer] if isinstance(answer, Found) else answer:
            finding = Finding(rule, found)
            if (rule.code, str(finding.origin), finding.en) not in known:
                report.findings.append(finding)


def _unchecked(report: Report, unchecked: Unchecked) -> None:
    report.applied.add(unchecked.rule.code)
    if all((one.rule.code, one.en) != (unchecked.rule.code, unchecked.en) for one in report.unchecked):
        report.unchecked.append(unchecked)


def _once(unread: list[tuple[Origin, Said]]) -> list[tuple[Origin, Said]]:
    return list({(str(origin), said.text()): (origin, said) for origin, said in unread}.values())
