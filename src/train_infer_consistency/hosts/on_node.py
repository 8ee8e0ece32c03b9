"""What a node of a Ray cluster is asked to do with the dumps that lie there. Errors go back as data."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..comparing.many import How, Task, compare_task
from ..comparing.record import PairResult
from ..comparing.stored import Packed
from ..errors import ConsistencyError, EvidenceError, UnfinishedError
from ..pairing.model import Side
from .survey import Piece, Survey, files_in, read_part, survey

#: Where a moved dump will lie on the node that compares, in the pairs that it gets.
MOVED = Path("moved:")


@dataclass(frozen=True)
class Errand:
    """A pair to compare on a node.

    Attributes:
        task: with paths of that node, and below :data:`MOVED` for what is moved there.
        how: how to compare.
        names: what a folder is called in the result, ``node7:/data/generate``.
        moved: for each batch of bytes that comes along, the places below :data:`MOVED` and sizes of its pieces.
    """

    task: Task
    how: How
    names: dict[str, str]
    moved: list[list[tuple[str, int]]]


def work(name: str, payload: bytes, batches: Sequence[Any] = ()) -> dict[str, Any]:
    """Do one piece of work.

    Args:
        name: ``look``, ``files``, ``read`` or ``compare``.
        payload: its arguments, pickled by the process that asks, which has the same version.
        batches: references to what other nodes answered to ``read``.

    Returns:
        ``{"value": bytes}`` or ``{"error": text, "status": exit status}``.
    """
    try:
        if name == "read":
            return {"value": _read(*pickle.loads(payload))}
        if name == "compare":
            (errand,) = pickle.loads(payload)
            return {"value": pickle.dumps(_compare(errand, batches))}
        function: Callable[..., Any] = _look if name == "look" else files_in
        return {"value": pickle.dumps(function(*pickle.loads(payload)))}
    except ConsistencyError as error:
        return {"error": str(error), "status": error.status}
    except OSError as error:
        return {"error": f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}", "status": 4}


def _look(sides: dict[str, list[str]]) -> tuple[list[tuple[str, Survey]], list[str]]:
    """The folders of each side that are here, and those that are not."""
    paths = {side: [Path(os.path.expandvars(name)).expanduser() for name in names] for side, names in sides.items()}
    found, missing = [], []
    for side, wanted in paths.items():
        without = [path for other, own in paths.items() if other != side for path in own if path not in wanted]
        for path in dict.fromkeys(wanted):
            if path.is_dir():
                found.append((side, survey(path, without, looking=True)))
            else:
                missing.append(str(path))
    return found, missing


def _read(pieces: Iterable[Piece]) -> bytes:
    return b"".join(read_part(*piece) for piece in pieces)


def _compare(errand: Errand, batches: Sequence[Any]) -> Packed:
    with tempfile.TemporaryDirectory(prefix="consistency-") as folder:
        for places, batch in zip(errand.moved, batches, strict=True):
            _unpack(Path(folder), places, _arrived(batch))
        task = replace_paths(errand.task, lambda path: Path(folder, *path.parts[1:]) if _is_moved(path) else path)
        names = {name.replace(str(MOVED), folder, 1): shown for name, shown in errand.names.items()}
        return compare_task(task, errand.how, lambda result: _rename(result, names))


def _arrived(batch: Any) -> bytes:
    """The bytes of a batch that another node read.

    Raises:
        UnfinishedError, EvidenceError: that node could not, or is gone.
    """
    answer = batch
    if not isinstance(batch, dict):
        import ray

        try:
            answer = ray.get(batch)
        except ray.exceptions.RayError as error:
            raise UnfinishedError(f"the other side's dumps did not arrive ({type(error).__name__})") from None
    if "error" in answer:
        raise EvidenceError(answer["error"])
    data: bytes = answer["value"]
    return data


def _unpack(folder: Path, places: list[tuple[str, int]], data: bytes) -> None:
    at = 0
    for place, size in places:
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data[at : at + size])
        at += size


def _is_moved(path: Path) -> bool:
    return path.parts[:1] == MOVED.parts


def replace_paths(task: Task, place: Callable[[Path], Path]) -> Task:
    """A task whose dumps lie elsewhere."""

    def parts(side: Side) -> Side:
        return replace(side, parts=tuple(replace(part, path=place(part.path)) for part in side.parts))

    pair = task.pair
    sides = parts(pair.inference), parts(pair.training)
    return task._replace(
        pair=replace(pair, inference=sides[0], training=sides[1], replicas=tuple(map(parts, pair.replicas)))
    )


def _rename(result: PairResult, names: dict[str, str]) -> None:
    """Call every folder of a result by the name that it has for a person, with its host."""
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))

    def shown(text: str) -> str:
        return pattern.sub(lambda match: names[match[0]], text)

    result.reason = shown(result.reason)
    result.notes = [shown(note) for note in result.notes]
    for side in (result.inference, result.training):
        if side is not None:
            side.problems = [shown(problem) for problem in side.problems]
            side.notes = [shown(note) for note in side.notes]
            for dump in side.dumps:
                object.__setattr__(dump, "path", Path(shown(str(dump.path))))
    rows = {id(row): row for module in result.modules for row in module.rows}
    if result.first_difference is not None:  # one of them, or the positions'
        rows[id(result.first_difference.row)] = result.first_difference.row
    for module in result.modules:
        module.reason = shown(module.reason)
    for row in rows.values():
        row.reason = shown(row.reason)
