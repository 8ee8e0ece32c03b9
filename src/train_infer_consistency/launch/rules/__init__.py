"""The rules, one module for each part of a run; a module is imported for the scenarios that need it."""

from __future__ import annotations

from ..run import SCENARIOS, SLIME, VERL_FULLY_ASYNC, VERL_HYBRID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Rule

#: Scenario -> the modules with its rules; "" is any run, and parts of one.
MODULES: dict[str, tuple[str, ...]] = {
    "": ("msprobe", "msprobe_run", "environment"),
    VERL_HYBRID: ("verl", "verl_training", "verl_capture", "npu"),
    VERL_FULLY_ASYNC: ("verl", "verl_training", "verl_capture", "verl_async", "npu"),
    SLIME: ("slime", "slime_sglang", "slime_switch", "slime_training"),
}


def rules_of(scenario: str) -> list[Rule]:
    """The rules of a scenario, and those of any run, by code."""
    names = dict.fromkeys(MODULES[""] + (MODULES[scenario] if scenario else ()))
    # __import__, because importlib itself takes longer to import than all rules do.
    found: list[Rule] = [rule for name in names for rule in __import__(f"{__name__}.{name}", fromlist=["RULES"]).RULES]
    return sorted(found, key=lambda rule: rule.code)


def all_rules() -> list[Rule]:
    """Every rule once, by code."""
    found = {rule.code: rule for scenario in SCENARIOS for rule in rules_of(scenario)}
    return sorted(found.values(), key=lambda rule: rule.code)
