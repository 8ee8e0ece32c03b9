"""The plan of a run: found beside its dumps or given, and whether the run's own logs name the same run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EvidenceError
from .model import Pairing

NAME = "plan.toml"
#: Folders between a dump and the root of its run: a rank, a step, a process, a side.
_LEVELS = 5
#: A plan has a few hundred bytes; what is larger is none, and is not read.
_MOST = 1_000_000
_MEND = f"name a plan's folder, or its {NAME}"


@dataclass(frozen=True)
class Plan:
    """What `consistency plan` wrote, as the report names it.

    Attributes:
        file: the plan.toml that was read.
        folder: where the plan was written; "" where the file does not say.
        scenario, stack, run_id: as planned.
        runs: the run ids of the logs, in order; empty where they have none.
        problem: why the file cannot be read; the fields before are empty then.
    """

    file: str
    folder: str = ""
    scenario: str = ""
    stack: str = ""
    run_id: str = ""
    runs: tuple[str, ...] = ()
    problem: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the logs are of the planned run; None where nothing tells."""
        return self.runs == (self.run_id,) if self.runs and not self.problem else None

    @property
    def note(self) -> str:
        """What a reader has to know; empty where the plan is this run's."""
        if self.problem:
            return self.problem
        if self.fits is None:
            return "the dumps carry no run id that would show that this plan is theirs"
        return "" if self.fits else f"NOT the plan of these dumps, which are of run {', '.join(self.runs)}"

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return {
            "file": self.file,
            "folder": self.folder,
            "scenario": self.scenario,
            "stack": self.stack,
            "run_id": self.run_id,
            "logs_run_ids": list(self.runs),
            "fits": self.fits,
            "note": self.note,
        }

    def __str__(self) -> str:
        where = f" ({self.file})" if self.folder and Path(self.folder, NAME) != Path(self.file) else ""
        return f"{self.scenario}, stack {self.stack}, run {self.run_id}, {self.folder or self.file}{where}"


def plan_of(given: Path | None, places: Iterable[Path], pairing: Pairing) -> Plan | None:
    """The plan of a run.

    Args:
        given: a plan's folder or its file; None to look for one.
        places: the dumps; the nearest plan.toml in one of them or a few folders above is the run's, as `run.sh` puts it
            there.
        pairing: whose logs tell the run.

    Returns:
        None where there is none. Of several, one whose run the logs name.

    Raises:
        EvidenceError: ``given`` is no plan.
    """
    if given is not None:
        plan = _read(given / NAME if given.is_dir() else given, pairing)
        if plan is None or plan.problem:
            raise EvidenceError(f"--plan {given}: {plan.problem if plan else 'this is no plan'}", _MEND)
        return plan
    files = dict.fromkeys(file for place in places if (file := _nearest(place)) is not None)
    plans = [plan for file in files if (plan := _read(file, pairing)) is not None]
    return min(plans, key=lambda plan: (plan.fits is not True, bool(plan.problem)), default=None)


def _nearest(place: Path) -> Path | None:
    path = place.absolute()
    return next((file for folder in (path, *path.parents[:_LEVELS]) if (file := folder / NAME).is_file()), None)


def _read(file: Path, pairing: Pairing) -> Plan | None:
    """The plan in a file; None where it is a plan.toml of something else."""
    import tomllib

    if file.exists() and not file.is_file():  # a pipe would be waited for
        return Plan(str(file), problem=f"{file} is no file")
    try:
        if file.stat().st_size > _MOST:
            return Plan(str(file), problem=f"{file} is too large for a plan")
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return Plan(str(file), problem=f"{file} cannot be read ({error.strerror})")
    except (ValueError, RecursionError) as error:
        return Plan(str(file), problem=f"{file} is no valid TOML ({error})")
    words = {name: content.get(name) for name in ("scenario", "stack", "run_id", "folder")}
    texts = {name: word for name, word in words.items() if isinstance(word, str) and word.isprintable()}
    if not texts.keys() >= {"scenario", "stack", "run_id"}:
        return None
    return Plan(str(file), **texts, runs=tuple(sorted(pairing.runs)))
