"""One session around msprobe's process-wide debugger: what is dumped, where, and a line for each forward.

msprobe's ``PrecisionDebugger`` is a singleton whose second construction silently returns the first one, whose
step counter freezes at the end of its step filter, and whose folder can be lost; a session holds it alone,
asks it for the step, and reports what breaks its order of calls.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from train_infer_consistency.capture.folders import claim_rank, join_run, process_folder
from train_infer_consistency.capture.log import JsonLines, distributed_rank, identity, world_size
from train_infer_consistency.capture.preflight import (
    check_config,
    check_rank_filter,
    msprobe_version,
    overlay_version,
)
from train_infer_consistency.capture.randomness import kept_determinism, kept_random_state, seed_everything
from train_infer_consistency.capture.switches import CaptureError, as_capture_error, switches

Make = Callable[[], Any]


class State(Enum):
    """How far a forward has come."""

    ARMED = "armed"
    RECORDED = "recorded"
    STOPPED = "stopped"
    STEPPED = "stepped"


class Session:
    """The only user of msprobe in this process; stands in for the debugger where upstream code calls one.

    A forward is ``begin``, ``stop``, ``step``, and its line is written between the last two; one that fails
    is ``fail`` in place of both. Skipped forwards take the same way without touching msprobe.

    Args:
        debugger: msprobe's PrecisionDebugger.
        engine: the engine's name in the log.
    """

    def __init__(self, debugger: Any, engine: str) -> None:
        self.engine = engine
        self.state = State.ARMED
        self.root = Path(debugger.service.config.dump_path)
        self.log: JsonLines | None = None
        self._debugger = debugger
        self._path = self.root
        self._pid = os.getpid()
        self._loop = debugger.service.loop
        self._skipped: str | None = None
        self._filtered: str | None = None
        self._line: dict[str, Any] = {}

    @property
    def config(self) -> Any:
        """The debugger's own configuration; its dump_path is the one in the msprobe file."""
        return self._debugger.config

    @property
    def service(self) -> Any:
        """The debugger's service, which knows the current step."""
        return self._debugger.service

    def open_log(
        self,
        name: str,
        source: str,
        parallel: Mapping[str, Any],
        dumps: Path | None = None,
        rank_id: int | None = None,
    ) -> JsonLines:
        """Make this process's log file, once its rank can be known, and settle where its dumps go.

        Args:
            name: the file's name.
            source: the documented source field.
            parallel: the engine's own sizes and ranks.
            dumps: the folder whose ``step{N}/rank{M}`` this process dumps alone; None for the log's own
                folder.
            rank_id: the rank that msprobe will be given; None for the distributed rank.

        Raises:
            CaptureError: another run or process dumps there, no rank passes the filter, or the file cannot be
                made.
        """
        rank = distributed_rank()
        seen = rank if rank_id is None else rank_id
        check_rank_filter(list(self.service.config.rank), seen, max(world_size(), (seen or 0) + 1))
        join_run(self.root, switches().run_id)
        self._path = self._log_folder() if dumps is None else dumps
        name_of_rank = f"rank{seen}"
        if dumps is not None and seen is not None and not claim_rank(dumps, name_of_rank):
            if rank_id is None:
                raise CaptureError(f"{dumps} holds dumps of {name_of_rank} already", "use an empty dump_path")
            # A rank_id is a card's number on its node, so another node's engine may rightly have the same.
            self._path = self._log_folder()
        constants = identity(
            source,
            self.engine,
            rank,
            parallel,
            run_id=switches().run_id,
            msprobe=msprobe_version(),
            overlay=overlay_version(),
        )
        self.log = JsonLines(self._log_folder() / name, constants)
        return self.log

    def begin(self, line: Mapping[str, Any], skipped: str | None = None, **start: Any) -> None:
        """Start one forward.

        Args:
            line: what its log line says besides the outcome.
            skipped: why it shall not be dumped; None to dump it.
            start: what msprobe's ``start`` is given (``model``, ``rank_id``).

        Raises:
            CaptureError: the last forward is still open, someone else uses msprobe, or msprobe refuses.
        """
        self._expect("start", State.ARMED, State.STEPPED)
        self._line, self._skipped = dict(line), skipped
        if skipped is None:
            self._check_alone()
            # Set anew each time: the folder is an attribute of a copy that msprobe may have replaced.
            self.service.config.dump_path = str(self._path)
            with as_capture_error("msprobe could not start a dump"):
                self._debugger.start(**start)
            self._line["step"] = self.service.current_iter
            self._filtered = why_filtered(self.service)
            if self._filtered is None and not Path(self.service.dump_iter_dir).is_relative_to(self._path):
                raise CaptureError(f"msprobe dumps into {self.service.dump_iter_dir} in place of {self._path}")
        self.state = State.RECORDED

    def start(self, model: Any = None, rank_id: int | None = None) -> None:
        """Start a forward by hand, as with msprobe's own debugger; its line then has only the outcome."""
        given: dict[str, Any] = {"model": model} if rank_id is None else {"model": model, "rank_id": rank_id}
        self.begin({}, **given)

    def stop(self) -> None:
        """Stop recording the forward."""
        self._expect("stop", State.RECORDED)
        if self._skipped is None:
            with as_capture_error("msprobe could not write its dump"):
                self._debugger.stop()
        self.state = State.STOPPED

    def step(self) -> None:
        """Write the forward's line, then let msprobe count it.

        Raises:
            CaptureError: the forward was not stopped, or the line could not be written.
        """
        self._expect("step", State.STOPPED)
        self._write(self._outcome())
        if self._skipped is None:
            self._debugger.step()
            self._loop = self.service.loop
        self.state = State.STEPPED

    def fail(self) -> None:
        """Give up the open forward: its data are set aside as invalid, and msprobe does not count it."""
        if self.state not in (State.RECORDED, State.STOPPED):
            return
        outcome: dict[str, Any] = {
            "step": None,
            "dump": None,
            "skipped": self._skipped or "failed",
            "invalid": True,
        }
        if self._skipped is None:
            outcome["failed_step"] = self._line.pop("step", None)
            # The forward's own exception matters, not one of stopping after it.
            with suppress(Exception):
                if self.state is State.RECORDED:
                    self._debugger.stop()
            # What step() does, without counting: the next forward must not be appended to this one.
            self.service._reset_status()
            if self._filtered is None:
                outcome["dump"] = self._set_aside()
        self.state = State.ARMED
        self._write(outcome)

    def leave_out(self, line: Mapping[str, Any], skipped: str) -> None:
        """Write the line of a forward that is never dumped, and of which the session and msprobe know nothing."""
        if self.log is not None:
            self.log.write({**line, "step": None, "dump": None, "skipped": skipped})

    @contextmanager
    def recording(
        self, line: Mapping[str, Any], skipped: str | None = None, added: bool = False, **start: Any
    ) -> Iterator[None]:
        """Make the block one forward; an exception in it marks the forward invalid and goes on.

        Args:
            line: as in :meth:`begin`.
            skipped: as in :meth:`begin`.
            added: the forward is not upstream's own: random state and deterministic settings are given back
                afterwards.
            start: as in :meth:`begin`.
        """
        with ExitStack() as around:
            if added:
                around.enter_context(kept_random_state())
                around.enter_context(kept_determinism())
                seed_everything(switches().seed_or_default())
            self.begin(line, skipped, **start)
            try:
                yield
                self.stop()
            except BaseException:
                self.fail()
                raise
            self.step()

    def _log_folder(self) -> Path:
        return process_folder(self.root, self._pid)

    def _expect(self, call: str, *states: State) -> None:
        if os.getpid() != self._pid:
            raise CaptureError("the dump was set up before this process was forked off", "start workers by spawn")
        if self.state not in states:
            raise CaptureError(
                f"{call}() of a forward that is {self.state.value}, "
                f"expected {' or '.join(state.value for state in states)}",
                "every forward is start, stop, step, in this order and by one caller",
            )

    def _check_alone(self) -> None:
        if self.service.primitive_switch or self.service.loop != self._loop:
            raise CaptureError(
                "something else in this process uses msprobe",
                "switch off verl's global_profiler.tool=precision_debugger and any other dump",
            )

    def _outcome(self) -> dict[str, Any]:
        step = self._line.pop("step", None)
        skipped = self._skipped or self._filtered
        if skipped is not None:
            return {"step": None, "dump": None, "skipped": skipped}
        return {"step": step, "dump": self._relative(self._rank_folder()), "skipped": None}

    def _rank_folder(self) -> Path:
        rank = self.service.current_rank
        return Path(self.service.dump_iter_dir) / (f"proc{self._pid}" if rank is None else f"rank{rank}")

    def _set_aside(self) -> str | None:
        folder = self._rank_folder()
        if not folder.is_dir():
            return None
        names = (folder.with_name(f"invalid-{folder.name}-{number}") for number in range(10_000))
        target = next(name for name in names if not name.exists())
        folder.rename(target)
        return self._relative(target)

    def _relative(self, folder: Path) -> str:
        return str(folder.relative_to(self.root)) if folder.is_relative_to(self.root) else str(folder)

    def _write(self, outcome: Mapping[str, Any]) -> None:
        if self.log is not None:
            self.log.write({**self._line, **outcome})


def why_filtered(service: Any) -> str | None:
    """Why msprobe does not dump the forward it was told to start, by its step or rank filter; None if it does."""
    config = service.config
    if service.should_stop_service or (config.step and service.current_iter not in config.step):
        return "step-filter"
    if config.rank and service.current_rank not in config.rank:
        return "rank-filter"
    return None


AnySession = TypeVar("AnySession", bound=Session)
_open_sessions: dict[str, Session] = {}


def find_session(kind: type[AnySession]) -> AnySession | None:
    """The session of a kind that this process has open; None if there is none."""
    return next((session for session in _open_sessions.values() if isinstance(session, kind)), None)


def open_session(
    kind: Callable[[Any], AnySession],
    config_path: str,
    source: str,
    seed: int | None,
    make: Make | None = None,
) -> tuple[AnySession, bool]:
    """Open this process's session, or give back the one that is open for the same file.

    Args:
        kind: makes the session from msprobe's debugger.
        config_path: the msprobe file.
        source: where its path came from, for messages.
        seed: what to seed everything with now and for good; None to leave seeds and determinism alone.
        make: makes the debugger; None for ``PrecisionDebugger(config_path=...)``.

    Returns:
        The session, and whether it is new.

    Raises:
        CaptureError: no fit msprobe, an unfit file, or a debugger of someone else.
    """
    key = os.path.realpath(config_path)
    if key in _open_sessions:
        return _open_sessions[key], False  # type: ignore[return-value]  # one process, one engine: one kind
    msprobe_version()
    check_config(config_path, source)
    precision_debugger = importlib.import_module("msprobe.pytorch").PrecisionDebugger
    if precision_debugger._instance is not None:
        raise CaptureError(
            "this process has an msprobe debugger already, which a second one cannot replace",
            "switch off verl's global_profiler.tool=precision_debugger and any other dump, "
            "and use one msprobe file for all engines of a process",
        )
    if seed is not None:
        seed_everything(seed)
    with as_capture_error(f"msprobe refuses {source}={config_path}", "msprobe's own log says more"):
        debugger = make() if make is not None else precision_debugger(config_path=config_path)
    if getattr(debugger, "service", None) is None:
        raise CaptureError(
            f"{type(debugger).__name__} is a graph dumper, which has no steps to log",
            "run in eager mode (enforce_eager)",
        )
    session = kind(debugger)
    _open_sessions[key] = session
    return session, True
