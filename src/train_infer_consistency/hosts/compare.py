"""Each pair compared on the node where its data lies; the lesser part of it is moved there."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comparing.many import How, Runner, Severity, Task
from ..comparing.stored import Packed
from ..dumps.reader import DUMP
from ..dumps.records import FOLDER
from ..pairing.model import Pair
from .nodes import Node, batches_of
from .on_node import MOVED, Errand, replace_paths
from .sources import Source, Together, parts_of
from .survey import File


@dataclass(frozen=True)
class _Plan:
    """Where a pair is compared, and what is moved there."""

    node: Node
    away: list[tuple[Source, list[File]]]


def on_nodes(together: Together, workers: int | None = None) -> Runner:
    """A runner that compares every pair on the node that has most of it.

    Args:
        together: sources that are all nodes'.
        workers: how many pairs at a time on a node; None for as many as it has CPUs.
    """

    def run(pairs: Sequence[Pair], how: How, beaten: Callable[[], Severity | None]) -> Generator[Packed, None, None]:
        yield from _Run(together, pairs, how, workers).results(beaten)

    return run


class _Run:
    def __init__(self, together: Together, pairs: Sequence[Pair], how: How, workers: int | None) -> None:
        self._together, self._pairs, self._how, self._workers = together, pairs, how, workers
        self._numbers = {id(source): number for number, source in enumerate(together.sources)}
        self._names = {
            str(MOVED / str(number)): f"{source.label}:{source.root}" for number, source in enumerate(together.sources)
        }
        self._files = self._files_of_divided()

    def results(self, beaten: Callable[[], Severity | None]) -> Generator[Packed, None, None]:
        """Results as they come; what is under way is stopped where this ends early."""
        queues: dict[Node, list[int]] = defaultdict(list)
        plans = [self._plan(pair) for pair in self._pairs]
        for number in reversed(range(len(plans))):
            queues[plans[number].node].append(number)
        under_way: dict[Any, Node] = {}
        ray: Any = None
        try:
            while queues or under_way:
                for node in list(queues):
                    busy = sum(other is node for other in under_way.values())
                    for _ in range((self._workers or node.cpus) - busy):
                        if queues[node]:
                            number = queues[node].pop()
                            under_way[self._send(number, plans[number], beaten())] = node
                    if not queues[node]:
                        del queues[node]
                ray = ray or next(iter(under_way.values())).ray
                ready, _ = ray.wait(list(under_way), num_returns=1)
                for reference in ready:
                    packed: Packed = pickle.loads(under_way.pop(reference).value(reference))
                    yield packed
        finally:
            for reference in under_way:
                ray.cancel(reference, force=True)

    def _send(self, number: int, plan: _Plan, beaten: Severity | None) -> Any:
        own = {str(source.root): f"{source.label}:{source.root}" for source in self._together.sources
               if source.found.host is plan.node}  # fmt: skip
        moved, batches = [], []
        for source, files in plan.away:
            assert isinstance(source.found.host, Node)
            for batch in batches_of(files):
                moved.append([(self._place(source, file), piece.size) for file, piece in batch])
                batches.append(source.found.host.submit("read", ([piece for _, piece in batch],)))
        task = replace_paths(Task(number, self._pairs[number], beaten), lambda path: self._there(path, plan.node))
        errand = Errand(task, self._how, {**self._names, **own}, moved)
        return plan.node.submit("compare", (errand,), batches)

    def _there(self, path: Path, node: Node) -> Path:
        """Where a dump lies for a node: there, or where it is moved to."""
        source, there = self._together.origin(path)
        return there if source.found.host is node else MOVED / self._place(source, there)

    def _place(self, source: Source, file: File | Path) -> str:
        path = file.path if isinstance(file, File) else file
        return f"{self._numbers[id(source)]}/{path.relative_to(source.root).as_posix()}"

    def _plan(self, pair: Pair) -> _Plan:
        sizes: dict[Node, int] = defaultdict(int)
        own: dict[Path, tuple[Source, list[File]]] = {}
        for part in parts_of(pair):
            source, _ = self._together.origin(part.path)
            assert isinstance(source.found.host, Node)
            files = self._files.get(part.path, [])
            sizes[source.found.host] += sum(file.size for file in files)
            own[part.path] = source, files
        node = max(sizes, key=lambda node: (sizes[node], node.name))
        return _Plan(node, [item for item in own.values() if item[0].found.host is not node])

    def _files_of_divided(self) -> dict[Path, list[File]]:
        """The files that comparing reads, of the pairs whose dumps lie on several nodes; a node is asked once."""
        wanted: dict[Node, dict[Path, Path]] = defaultdict(dict)
        for pair in self._pairs:
            places = [(part.path, *self._together.origin(part.path)) for part in parts_of(pair)]
            if len({id(source.found.host) for _, source, _ in places}) > 1:
                for path, source, there in places:
                    assert isinstance(source.found.host, Node)
                    wanted[source.found.host][there] = path
        found: dict[Path, list[File]] = defaultdict(list)
        for node, paths in wanted.items():
            for file in node.files_in(list(paths)):
                if file.path.name == DUMP or file.path.parent.name == FOLDER:
                    folder = file.path.parent if file.path.name == DUMP else file.path.parent.parent
                    found[paths[folder]].append(file)
        return found
