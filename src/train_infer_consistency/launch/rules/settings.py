"""What rules on settings have in common: values as truth or numbers, and checks that are one comparison."""

from __future__ import annotations

from .. import defaults
from ..rule import Found, drop_flag, release, set_flag, set_override, within
from ..run import Run, UnknownValueError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..rule import Answer

PHASES = ("log_prob", "update_actor", "all")
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
#: The short keys that a rule's examples and texts are easier to read with.
ROLLOUT, ACTOR, MODEL = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."


def on(value: Any) -> bool:
    """Whether a setting's value is true; a text counts as YAML and argparse read it."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def count(run: Run, key: str) -> int:
    """A verl setting that is a whole number.

    Raises:
        UnknownValueError: it is unknown, or none.
    """
    return _whole(run, key, defaults.verl(run, key))


def size(run: Run, dest: str) -> int:
    """A slime flag that is a whole number.

    Raises:
        UnknownValueError: as :func:`count`.
    """
    return _whole(run, dest, defaults.slime(run, dest))


def _whole(run: Run, key: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnknownValueError(key, f"{value}", run.where(key))
    return value


def switch(run: Run, name: str) -> bool | None:
    """An on/off variable as the capture reads it; None where it is not set, or spelt as neither.

    Raises:
        UnknownValueError: it is unknown.
    """
    text = run.variable(name)
    word = None if text is None else text.strip().lower()
    return True if word in _ON else False if word in _OFF else None


def phase(run: Run) -> str:
    """The phase to dump: ``DUMP_PHASE``, by default "log_prob".

    Raises:
        UnknownValueError: it is unknown.
    """
    return (run.variable("DUMP_PHASE") or "").strip() or PHASES[0]


def dumps_updates(run: Run) -> bool:
    """Whether the actor's updates are dumped."""
    return phase(run) in PHASES[1:]


def strategy(run: Run) -> str:
    """The actor's strategy: its own, else the model engine's, else the chosen configuration's; of MindSpeed's, which one.

    Raises:
        UnknownValueError: it cannot be known.
    """
    name, key = _package(run), ACTOR + "mindspeed.strategy"
    if name != "mindspeed":
        return name
    return str(run.override(key)) if key in run.hydra else "mindspeed_megatron"


def _package(run: Run) -> str:
    key = ACTOR + "strategy"
    if key in run.hydra:
        return str(run.override(key))
    if "model_engine" not in run.hydra and "megatron" in defaults.config_name(run):
        return "megatron"
    engine = str(defaults.verl(run, "model_engine"))
    return "fsdp" if engine == "dp" else engine


def covered(*names: str) -> Callable[[Run], Answer]:
    """A check that the capture has edits for the run's versions of some upstreams."""

    def check(run: Run) -> Answer:
        found: list[Found] = []
        for name in names:
            version = run.stack.get(name)
            if version is None or release(version) in ((), *defaults.COVERED[name]):
                continue  # a commit such as b7dabd83 has no number to judge
            if name == "sglang" and within(version, ">=0.5.11"):
                continue  # it has msprobe of its own
            known = ", ".join(".".join(map(str, one)) for one in defaults.COVERED[name])
            found.append(Found(run.entry or run.where(), name=name, version=version, known=known))
        return found or None

    return check


def override_must_be(key: str, wanted: Any, new: bool = False) -> Callable[[Run], Answer]:
    """A check that a verl setting has a value; ``new``: upstream's configuration does not have the key."""

    def check(run: Run) -> Answer:
        value = defaults.verl(run, key)
        if value == wanted or (isinstance(wanted, bool) and not isinstance(value, bool) and on(value) is wanted):
            return None
        return Found(run.where(key), set_override("+" * new + key, wanted), value=_written(value))

    return check


def flag_must_be(dest: str, wanted: Any) -> Callable[[Run], Answer]:
    """A check that a slime flag has a value; True: that it is given."""
    flag = "--" + dest.replace("_", "-")

    def check(run: Run) -> Answer:
        value = defaults.slime(run, dest)
        if value == wanted:
            return None
        mend = set_flag(flag) if wanted is True else set_flag(flag, wanted)
        return Found(run.where(dest), mend, value="not set" if value is None else value)

    return check


def flag_must_not_be(*dests: str) -> Callable[[Run], Answer]:
    """A check that none of some slime flags is given."""

    def check(run: Run) -> Answer:
        given = [dest for dest in dests if defaults.slime(run, dest) not in (None, False)]
        flags = ["--" + dest.replace("_", "-") for dest in given]
        if not given:
            return None
        return Found(run.where(given[0]), *map(drop_flag, flags), flags=", ".join(flags))

    return check


def _written(value: Any) -> str:
    return "null" if value is None else str(value)


def slime_example(stack: str, flags: str, **files: str) -> dict[str, str]:
    """An example for another stack than the first."""
    plan = f'scenario = "slime"\nstack = "{stack}"\n'
    named = {name.replace("_json", ".json"): text for name, text in files.items()}
    return {"plan.toml": plan, "run.sh": f"python3 train.py --num-rollout 1 {flags}", **named}
