"""What a rule is, what it answers, and what mends it.

A rule is one :class:`Rule` in the tuple ``RULES`` of a module in ``rules/``; ``rules/__init__.py`` says for which
scenarios a module is read. For example::

    def _eager(run: Run) -> Answer:
        key = "actor_rollout_ref.rollout.enforce_eager"
        if run.override(key, False) is True:
            return None
        return Found(run.where(key), set_override(key, True))

    RULES = (
        Rule(
            "V101", ERROR, VERL, _eager,
            fact="vllm-ascend 0.18.0 worker/model_runner_v1.py: dump_config_path without enforce_eager raises",
            en="the rollout runs in graph mode, and its runner refuses a dump there",
            zh="rollout 以图模式运行，其 runner 在此模式下拒绝 dump",
            good="actor_rollout_ref.rollout.enforce_eager=True",
            bad="actor_rollout_ref.rollout.enforce_eager=False",
        ),
    )

- A rule asks a run for values (:meth:`Run.override`, :meth:`Run.flag`, :meth:`Run.variable`) and does not look whether
  they are unknown: that is raised and becomes "not checked".
- ``en`` and ``zh`` are one sentence each without a full stop, with ``{names}`` of ``Found(..., name=value)`` in both.
- Mends are what to paste, the same in both languages. ``--diff`` puts them into the file.
- ``needs`` maps an upstream to a version range such as ``">=0.18,<0.24"``; where the run's stack is another, the rule
  does not apply.
- ``good`` and ``bad`` are the arguments of the (first) scenario's command; or a whole script (it has a line with
  "python"); or a dictionary of file name -> text. A test runs each: ``bad`` must give this code, ``good`` must not.
- Nothing heavy is imported: a check of one script costs little more than an interpreter's start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from .run import Origin, Run

    #: None: the rule holds. Where the rule does not concern this run, :data:`OUT`.
    Answer: TypeAlias = "Found | list[Found] | NotChecked | Out | None"
    Example: TypeAlias = str | dict[str, str]

#: error and warning are broken rules (status 1); a note is not.
ERROR, WARNING, NOTE = "error", "warning", "note"


class Mend:
    """One change. ``kind``: "hydra", "flag", "env" or "msprobe"; ``value`` as it is written, None removes it."""

    __slots__ = ("file", "key", "kind", "value")

    def __init__(self, kind: str, key: str, value: str | None, file: str = "") -> None:
        self.kind = kind
        self.key = key
        self.value = value
        self.file = file

    @property
    def text(self) -> str:
        """What to paste, or, where ``value`` is None, what to take away."""
        if self.kind == "msprobe":
            return f'"{self.key}"' if self.value is None else f'"{self.key}": {self.value}'
        if self.value is None:
            return self.key
        if self.kind == "flag":
            return f"{self.key} {self.value}".rstrip()
        if self.kind == "hydra" and any(sign in self.value for sign in " {}[]\"'$"):
            quote = '"' if "'" in self.value and '"' not in self.value else "'"
            return f"{quote}{self.key}={self.value}{quote}"
        return f"{self.key}={self.value}"


def set_override(key: str, value: object) -> Mend:
    """Set a Hydra key. A string is written as it is; True, False, None and numbers as Hydra reads them.

    ``key`` begins with ``+`` where upstream's configuration does not have it.
    """
    return Mend("hydra", key, "null" if value is None else str(value))


def drop_override(key: str) -> Mend:
    """Take a Hydra override away."""
    return Mend("hydra", key, None)


def set_flag(flag: str, value: object = "") -> Mend:
    """Give a slime flag, as it is written: ``set_flag("--data-pad-size-multiplier", 1)``."""
    return Mend("flag", flag, str(value))


def drop_flag(flag: str) -> Mend:
    """Take a slime flag away: ``drop_flag("--balance-data")``."""
    return Mend("flag", flag, None)


def set_variable(name: str, value: str) -> Mend:
    """Set a variable for the workers: in the job's runtime_env, and for verl in its ray_kwargs."""
    return Mend("env", name, value)


def drop_variable(name: str) -> Mend:
    """Take a variable away."""
    return Mend("env", name, None)


def set_msprobe(file: str, key: str, value: str) -> Mend:
    """Set a key of an msprobe file; ``value`` is JSON, ``file`` the :attr:`Origin.file` of it."""
    return Mend("msprobe", key, value, file)


def drop_msprobe(file: str, key: str) -> Mend:
    """Take a key of an msprobe file away."""
    return Mend("msprobe", key, None, file)


class Found:
    """A rule is broken here. ``values`` fill the names in the rule's texts."""

    __slots__ = ("mends", "origin", "values")

    def __init__(self, origin: Origin, *mends: Mend, **values: object) -> None:
        self.origin = origin
        self.mends = mends
        self.values = values


class NotChecked:
    """The rule could not be judged; ``en`` and ``zh`` say why. ``target``: only the target machine can show it."""

    __slots__ = ("en", "target", "zh")

    def __init__(self, en: str, zh: str, target: bool = False) -> None:
        self.en = en
        self.zh = zh
        self.target = target


class Out:
    """The rule does not concern this run, and is not counted as applied."""

    __slots__ = ()


#: The one :class:`Out`.
OUT = Out()


class Rule:
    """One rule; the module's text says what each part is."""

    __slots__ = ("bad", "check", "code", "en", "fact", "good", "needs", "scenarios", "severity", "zh")

    def __init__(  # noqa: PLR0913 - a record, written by name
        self,
        code: str,
        severity: str,
        scenarios: tuple[str, ...],
        check: Callable[[Run], Answer],
        *,
        fact: str,
        en: str,
        zh: str,
        good: Example,
        bad: Example,
        needs: dict[str, str] | None = None,
    ) -> None:
        self.code = code
        self.severity = severity
        self.scenarios = scenarios
        self.check = check
        self.fact = fact
        self.en = en
        self.zh = zh
        self.good = good
        self.bad = bad
        self.needs = needs or {}

    def applies(self, run: Run) -> bool:
        """Whether the run's scenario and its stack's versions are this rule's. An unknown version is any."""
        if self.scenarios and run.scenario not in self.scenarios:
            return False
        return all(name not in run.stack or within(run.stack[name], wanted) for name, wanted in self.needs.items())


def within(version: str, wanted: str) -> bool:
    """Whether a version is in a range such as ``">=0.18,<0.24"`` (numbers alone are compared)."""
    numbers = release(version)
    for bound in wanted.split(","):
        sign = bound.rstrip("0123456789.")
        other = release(bound[len(sign) :])
        length = max(len(numbers), len(other))
        mine, theirs = ((*one, *(0,) * (length - len(one))) for one in (numbers, other))
        good = {
            ">=": mine >= theirs,
            ">": mine > theirs,
            "<=": mine <= theirs,
            "<": mine < theirs,
            "==": numbers[: len(other)] == other,
        }[sign.strip()]
        if not good:
            return False
    return True


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.8.0.dev0+g1" -> (0, 8, 0)."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = ""
        for sign in part:
            if not sign.isdigit():
                break
            digits += sign
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
