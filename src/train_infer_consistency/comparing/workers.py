"""The processes that compare pairs: started anew, each with a pipe of its own, and gone when this process is."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ..errors import UnfinishedError
from ..pairing.model import Pair
from .many import How, Runner, Severity, Task, compare_task
from .pairs import name_of
from .stored import Packed


def in_processes(count: int) -> Runner:
    """A runner of that many processes.

    A process is started anew and not forked: a fork has all that pairing needs in memory, and each would copy it bit by
    bit. It ends when its pipe does, so none outlives this process, however that ends.
    """

    def run(pairs: Sequence[Pair], how: How, beaten: Callable[[], Severity | None]) -> Generator[Packed, None, None]:
        with _started(min(count, len(pairs)), how) as processes:
            yield from _run(pairs, processes, beaten)

    return run


def _run(
    pairs: Sequence[Pair], processes: dict[Connection, BaseProcess], beaten: Callable[[], Severity | None]
) -> Generator[Packed, None, None]:
    """Hand out pairs in their order; an error is raised when no earlier pair can have one any more."""
    busy: dict[Connection, int] = {}
    failed: dict[int, BaseException] = {}
    free, following = list(processes), 0
    while True:
        while free and following < len(pairs) and not failed:
            pipe = free.pop()
            busy[pipe] = following
            with suppress(OSError):  # a process that is gone: its end is met below
                pipe.send(Task(following, pairs[following], beaten()))
            following += 1
        if failed and not any(index < min(failed) for index in busy.values()):
            raise failed[min(failed)]
        if not busy:
            return
        ready = wait(list(busy))
        for pipe in [pipe for pipe in busy if pipe in ready]:
            index = busy.pop(pipe)
            answer = _answer(pipe, processes[pipe], pairs[index])
            if isinstance(answer, BaseException):
                failed[index] = answer
            else:
                free.append(pipe)
                yield answer


def _answer(pipe: Connection, process: BaseProcess, pair: Pair) -> Packed | BaseException:
    try:
        answer: Packed | BaseException = pipe.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return UnfinishedError(
            f"the process that compared {name_of(pair) or 'a pair'} {how}",
            "if the memory was full, run it again with fewer --workers",
        )
    return answer


@contextmanager
def _started(count: int, how: How) -> Iterator[dict[Connection, BaseProcess]]:
    context = get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    resource_tracker.ensure_running()  # when this starts, it lets through again what is masked below
    # Ctrl-C goes to every process of the terminal. It is for this one, and a mask is what a new process inherits.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        try:
            for _ in range(count):
                ours, theirs = context.Pipe()
                process: BaseProcess = context.Process(target=_serve, args=(theirs, how), daemon=True)
                processes[ours] = process
                process.start()
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield processes
    finally:
        for pipe, process in processes.items():
            if process.pid is not None:
                process.kill()
                process.join()
                process.close()
            pipe.close()


def _serve(pipe: Connection, how: How) -> None:
    """What such a process does, until its pipe is closed."""
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                pipe.send(compare_task(task, how))
            except Exception as error:  # the words and the status are for the process that asked
                pipe.send(_sendable(error))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
