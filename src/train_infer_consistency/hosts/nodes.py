"""The nodes of a Ray cluster as hosts: each is asked for what lies there, by a task that runs on it."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import __version__
from ..cluster import joined, node_ids
from ..errors import EvidenceError, FoundError, UnfinishedError, UsageError
from .sources import Found
from .survey import File, Looked, Piece, pieces_of

# How long a node may take for one answer. Looking into ten thousand dumps takes seconds, starting a worker longest.
SECONDS = 600.0
# How much is read at once: a task takes milliseconds, and the object store should not fill.
BATCH, PIECES = 32 << 20, 512
_ERRORS = {error.status: error for error in (FoundError, UsageError, EvidenceError, UnfinishedError)}


class Node:
    """One of them.

    Attributes:
        name: host name, address and the start of its id.
        cpus: as far as it has said.
    """

    def __init__(self, ray: Any, name: str, node_id: str) -> None:
        self.name, self.cpus = name, 1
        self.ray, self._id = ray, node_id
        self._looks: dict[Path, Looked] = {}

    def ask(self, work: str, *arguments: Any) -> Any:
        """Have something of :mod:`.on_node` done there.

        Raises:
            ConsistencyError: what the node says, with its name.
        """
        return pickle.loads(self.value(self.submit(work, arguments)))

    def submit(self, work: str, arguments: tuple[Any, ...], batches: Sequence[Any] = ()) -> Any:
        """Ask for it; the reference is to the answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # No CPU is asked for: the cluster may be fully booked.
        task = self.ray.remote(num_cpus=0, max_retries=0)(_by_value())
        here = NodeAffinitySchedulingStrategy(node_id=self._id, soft=False)
        payload = pickle.dumps(arguments)
        return task.options(scheduling_strategy=here).remote(__version__, work, payload, list(batches))

    def value(self, reference: Any) -> bytes:
        """Wait for an answer.

        Raises:
            ConsistencyError: what the node says, with its name; UnfinishedError where it does not answer.
        """
        try:
            answer = self.ray.get(reference, timeout=SECONDS)
        except self.ray.exceptions.RayTaskError as error:
            raise UnfinishedError(f"{self.name}: bug: {str(error).strip().splitlines()[-1]}") from None
        except self.ray.exceptions.RayError as error:
            raise UnfinishedError(
                f"{self.name}: no answer ({type(error).__name__})", "see whether that node is alive, then run it again"
            ) from None
        if "error" in answer:
            raise _ERRORS[answer["status"]](f"{self.name}: {answer['error']}")
        data: bytes = answer["value"]
        return data

    def surveyed(self, reference: Any) -> tuple[list[Found], list[str]]:
        """The folders that it has, with their sides, and those that it has not: the answer to ``look``."""
        surveys, missing = pickle.loads(self.value(reference))
        for _, survey in surveys:
            self._looks |= survey.looks
            self.cpus = survey.cpus
        return [Found(side, self, survey) for side, survey in surveys], missing

    def files_in(self, folders: Sequence[Path]) -> list[File]:
        """See :class:`~.sources.Host`."""
        found: list[File] = self.ask("files", folders)
        return found

    def chunks(self, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """See :class:`~.sources.Host`. One batch is read while another is on its way."""
        waiting: deque[tuple[list[tuple[File, Piece]], Any]] = deque()
        for batch in batches_of(files):
            waiting.append((batch, self.submit("read", ([piece for _, piece in batch],))))
            if len(waiting) > 1:
                yield from self._pieces(*waiting.popleft())
        while waiting:
            yield from self._pieces(*waiting.popleft())

    def _pieces(self, batch: list[tuple[File, Piece]], reference: Any) -> Iterator[tuple[File, bytes]]:
        data, at = self.value(reference), 0
        for file, piece in batch:
            yield file, data[at : at + piece.size]
            at += piece.size

    def look(self, path: Path) -> Looked:
        """See :class:`~.sources.Host`; it has said so in its survey."""
        return self._looks.get(path)


def batches_of(files: Sequence[File]) -> Iterator[list[tuple[File, Piece]]]:
    """Pieces of files in the order of the files, so many together that an answer is neither tiny nor too large."""
    batch: list[tuple[File, Piece]] = []
    size = 0
    for file, piece in pieces_of(files):
        if batch and (size + piece.size > BATCH or len(batch) == PIECES):
            yield batch
            batch, size = [], 0
        batch.append((file, piece))
        size += piece.size
    if batch:
        yield batch


@contextmanager
def on_cluster(
    generate: Sequence[str], train: Sequence[str], tell: Callable[[str], None], *, ship: bool = False
) -> Iterator[list[Found]]:
    """The folders of both sides on all nodes of the running cluster.

    Args:
        generate: the rollout's, as the nodes have them; variables and ``~`` are theirs.
        train: the trainer's, likewise.
        tell: is told in words which node lacks what, and which share a folder.
        ship: send this package to the nodes, whatever they have, for as long as this lasts.

    Raises:
        EvidenceError: no cluster is running, no node has a folder, or a node has another version of this package.
        UnfinishedError: a node does not answer.
    """
    with joined([str(Path(__file__).parents[1])] if ship else []) as ray:
        nodes = [Node(ray, name, node_id) for name, node_id in sorted(node_ids(ray).items())]
        sides = {"generate": list(generate), "train": list(train)}
        found: list[Found] = []
        references = [node.submit("look", (sides,)) for node in nodes]
        for node, reference in zip(nodes, references, strict=True):
            here, missing = node.surveyed(reference)
            if missing:
                tell(f"{node.name} has no {', no '.join(dict.fromkeys(missing))}")
            found += here
        yield _once(found, sides, tell)


def _once(found: list[Found], sides: dict[str, list[str]], tell: Callable[[str], None]) -> list[Found]:
    """Each folder once, though several nodes may see it on a network file system."""
    seen: dict[tuple[str, str], Found] = {}
    for item in found:
        first = seen.setdefault((item.side, item.survey.fingerprint), item)
        if first is not item:
            tell(f"{item.survey.root} on {item.host.name} is the same as on {first.host.name}: read there")
    for side, names in sides.items():
        if not any(item.side == side for item in seen.values()):
            raise EvidenceError(f"no node has {' or '.join(names)}", "name the folders as the nodes have them")
    return list(seen.values())


def _by_value() -> Callable[[str, str, bytes, list[Any]], dict[str, Any]]:
    """Return the function that a node runs. It is made here so that Ray sends its code, and not this module's name."""

    def on_node(version: str, work: str, payload: bytes, batches: list[Any]) -> dict[str, Any]:
        import importlib
        import sys

        mend = "install the same wheel on every node, or send this one with --ship"
        try:
            package = importlib.import_module("train_infer_consistency")
            if package.__version__ != version:
                words = f"train-infer-consistency is {package.__version__} there, and {version} where this was started"
                return {"error": f"{words}; {mend}", "status": 3}
            module = importlib.import_module("train_infer_consistency.hosts.on_node")
        except ImportError as error:
            words = f"train-infer-consistency, or this version of it, cannot be imported by {sys.executable} ({error})"
            return {"error": f"{words}; {mend}", "status": 3}
        answer: dict[str, Any] = module.work(work, payload, batches)
        return answer

    return on_node
