"""The switches of a collection run: one parser, read once per process.

Off means upstream's behaviour. A value that is neither clearly on nor clearly off is an error, because a run
that silently dumps nothing costs a night.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: What msprobe's own ``seed_all`` takes when no seed is given, and what both published procedures therefore
#: use.
DEFAULT_SEED = 1234
#: The path the published verl procedure hard-codes.
DOCUMENTED_ACTOR_CONFIG = "/home/config_actor.json"
PHASES = ("log_prob", "update_actor", "all")

_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"", "0", "false", "no", "off"})


class CaptureError(RuntimeError):
    """A collection run cannot go on; the message is one line: what is wrong, and how to mend it."""

    def __init__(self, what: str, mend: str | None = None) -> None:
        text = what if mend is None else f"{what}; {mend}"
        super().__init__(" ".join(f"train-infer-consistency: {text}".split()))


@contextmanager
def as_capture_error(what: str, mend: str | None = None) -> Iterator[None]:
    """Turn any failure of another library in the block into one line; its own error stays as the cause."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"{what}: {error}", mend) from error


def parse_switch(name: str, value: str | None) -> bool:
    """Read an on/off variable: 1/true/yes/on, 0/false/no/off or empty; case and outer spaces do not matter.

    Raises:
        CaptureError: anything else.
    """
    word = (value or "").strip().lower()
    if word in _ON:
        return True
    if word in _OFF:
        return False
    raise CaptureError(
        f"{name}={value!r} is neither on nor off", "use 1, true, yes, on, 0, false, no, off or leave it empty"
    )


def parse_integer(name: str, value: str | None, default: int | None, lowest: int, highest: int) -> int | None:
    """Read a whole number between ``lowest`` and ``highest``; empty or unset means ``default``.

    Raises:
        CaptureError: no whole number, or outside the range.
    """
    word = (value or "").strip()
    if not word:
        return default
    # int() alone would also take "1_000" and digits of other scripts, which no shell script means.
    if not (word.isascii() and word.isdigit() and lowest <= int(word) <= highest):
        raise CaptureError(f"{name}={value!r} is no whole number from {lowest} to {highest}")
    return int(word)


def parse_phase(name: str, value: str | None) -> str:
    """Read the phase to dump: ``log_prob`` (the default), ``update_actor`` or ``all``.

    Raises:
        CaptureError: anything else.
    """
    word = (value or "").strip() or PHASES[0]
    if word not in PHASES:
        raise CaptureError(f"{name}={value!r} is not a phase", f"use one of {', '.join(PHASES)}")
    return word


@dataclass(frozen=True)
class Switches:
    """All variables of a collection run, parsed.

    Attributes:
        dump_on: DUMP_ON, the training side's main switch.
        prompts_only: PROMPTS_ONLY, dump an added pass over the prompts alone.
        dump_phase: DUMP_PHASE, which of upstream's own training forwards are meant.
        config_path: MSPROBE_CONFIG_PATH, the training side's msprobe file; None when unset.
        seed: MSPROBE_SEED; None when unset.
        sglang_dump: SGLANG_MSPROBE_DUMP, SGLang's main switch.
        generate_config: MSPROBE_GENERATE_CONFIG, SGLang's msprobe file; None when unset.
        min_dump_tokens: MSPROBE_MIN_DUMP_TOKENS, shorter SGLang prefills are not dumped.
        run_id: CONSISTENCY_RUN_ID; None when unset.
        rollout_id: CONSISTENCY_ROLLOUT_ID, the slime rollout to dump; None means the first one seen.
        dump_all: CONSISTENCY_DUMP_ALL, also dump inference forwards that are no whole prompt.
    """

    dump_on: bool = False
    prompts_only: bool = False
    dump_phase: str = PHASES[0]
    config_path: str | None = None
    seed: int | None = None
    sglang_dump: bool = False
    generate_config: str | None = None
    min_dump_tokens: int = 2
    run_id: str | None = None
    rollout_id: int | None = None
    dump_all: bool = False

    @classmethod
    def parse(cls, environment: Mapping[str, str]) -> Switches:
        """Parse every variable of a collection run.

        Raises:
            CaptureError: a variable has a value that cannot be meant.
        """
        get = environment.get
        biggest = 2**31 - 1
        shortest = parse_integer("MSPROBE_MIN_DUMP_TOKENS", get("MSPROBE_MIN_DUMP_TOKENS"), 2, 0, biggest)
        assert shortest is not None
        return cls(
            dump_on=parse_switch("DUMP_ON", get("DUMP_ON")),
            prompts_only=parse_switch("PROMPTS_ONLY", get("PROMPTS_ONLY")),
            dump_phase=parse_phase("DUMP_PHASE", get("DUMP_PHASE")),
            config_path=_text(get("MSPROBE_CONFIG_PATH")),
            # The range msprobe's seed_all accepts.
            seed=parse_integer("MSPROBE_SEED", get("MSPROBE_SEED"), None, 0, 2**32 - 1),
            sglang_dump=parse_switch("SGLANG_MSPROBE_DUMP", get("SGLANG_MSPROBE_DUMP")),
            generate_config=_text(get("MSPROBE_GENERATE_CONFIG")),
            min_dump_tokens=shortest,
            run_id=_text(get("CONSISTENCY_RUN_ID")),
            rollout_id=parse_integer("CONSISTENCY_ROLLOUT_ID", get("CONSISTENCY_ROLLOUT_ID"), None, 0, biggest),
            dump_all=parse_switch("CONSISTENCY_DUMP_ALL", get("CONSISTENCY_DUMP_ALL")),
        )

    def wants(self, phase: str) -> bool:
        """Whether upstream's own forward of ``phase`` is among those DUMP_PHASE names."""
        return self.dump_phase in ("all", phase)

    def seed_or_default(self) -> int:
        """The given seed, or the one both procedures use."""
        return DEFAULT_SEED if self.seed is None else self.seed

    def actor_config(self) -> str:
        """The training side's msprobe file: MSPROBE_CONFIG_PATH, or the documented path if that file exists.

        Raises:
            CaptureError: neither is there.
        """
        if self.config_path is not None:
            return self.config_path
        if Path(DOCUMENTED_ACTOR_CONFIG).exists():
            return DOCUMENTED_ACTOR_CONFIG
        raise CaptureError(
            f"DUMP_ON is set, MSPROBE_CONFIG_PATH is not, and {DOCUMENTED_ACTOR_CONFIG} does not exist",
            "set MSPROBE_CONFIG_PATH to the training side's msprobe JSON file, on every node",
        )


@functools.cache
def switches() -> Switches:
    """The switches of this process, read from its environment the first time and never again."""
    return Switches.parse(os.environ)


def _text(value: str | None) -> str | None:
    return (value or "").strip() or None
