"""The same look and the same overlay on every node of a running Ray cluster: all nodes or none.

The order of work (check every node before any is touched, take it off again where one fails) is separate from Ray, so
that it can be tested with stand-ins. Ray is joined by :func:`connect` alone. What runs on a node is sent by value and
imports this package there, so that a node without it is named and not a stack trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from .. import __version__
from ..cluster import joined, node_ids
from ..errors import ConsistencyError, EvidenceError, FoundError, UnfinishedError

# How long a node may take for one answer. Weaving takes seconds; starting a worker on a busy node takes longest.
SECONDS = 600.0


@dataclass(frozen=True)
class Request:
    """What is asked of every node; plain data, since it travels.

    ``names`` is None for every upstream found there, ``site`` is a path on the node or None for its own environment,
    ``version`` and ``revision`` are those of the tool and the overlays that ask: a node with others refuses.
    """

    names: list[str] | None
    site: str | None = None
    allow_unknown_base: bool = False
    version: str = __version__
    revision: int = 0


@dataclass(frozen=True)
class Answer:
    """One node's answer.

    Attributes:
        node: its name for a person: host name, address and the start of its id.
        value: what came back, None where ``error`` says why nothing did.
        status: of the error, as an exit status.
        lost: the node did not answer, so what it did is not known.
    """

    node: str
    value: Any = None
    error: str | None = None
    status: int = 0
    lost: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON can hold it."""
        return asdict(self)


class Cluster(Protocol):
    """The nodes, and a way to have work done on them."""

    def nodes(self) -> Sequence[str]:
        """Return the names of the nodes that are alive."""
        ...

    def run(self, nodes: Sequence[str], work: str, request: Request) -> list[Answer]:
        """Have ``work`` (``check``, ``apply``, ``revert`` or ``examine``) done on nodes at the same time."""
        ...


def apply_on_nodes(cluster: Cluster, request: Request) -> list[Answer]:
    """Apply an overlay on every node.

    Raises:
        FoundError, EvidenceError: a node refuses; none was touched.
        UnfinishedError: a node failed; the overlay was taken off the others again, or the message says where not.
    """
    nodes = list(cluster.nodes())
    _raise_refusals(nodes, cluster.run(nodes, "check", request))
    done: list[Answer] = []
    # One node after the other: nodes often share a filesystem, and the second must see what the first did.
    for node in nodes:
        (answer,) = cluster.run([node], "apply", request)
        if answer.error is not None:
            left = _take_off(cluster, request, [*done, *([answer] if answer.lost else [])])
            words = "; it was taken off the other nodes again" if not left else f"; still woven: {', '.join(left)}"
            mend = "mend that node, then run it again" if not left else "run 'consistency overlay revert' there"
            raise UnfinishedError(f"{answer.node}: {answer.error}{words}", mend)
        done.append(answer)
    return done


def _raise_refusals(nodes: Sequence[str], answers: Sequence[Answer]) -> None:
    refused = [answer for answer in answers if answer.error is not None]
    if not refused:
        return
    words = "; ".join(f"{answer.node}: {answer.error}" for answer in refused)
    error: type[ConsistencyError] = FoundError
    if any(answer.status == UnfinishedError.status for answer in refused):
        error = UnfinishedError
    elif all(answer.status == EvidenceError.status for answer in refused):
        error = EvidenceError
    raise error(f"{len(refused)} of {len(nodes)} nodes refuse, so none was touched: {words}")


def _take_off(cluster: Cluster, request: Request, answers: Sequence[Answer]) -> list[str]:
    """Revert what this run applied, newest first; return the nodes where that failed, each with the reason."""
    left = []
    for answer in reversed(answers):
        names = request.names
        if not answer.lost:
            names = [outcome["upstream"] for outcome in answer.value if outcome["action"] == "applied"]
        if names == []:
            continue
        again = Request(names, request.site, version=request.version, revision=request.revision)
        (reverted,) = cluster.run([answer.node], "revert", again)
        if reverted.error is not None:
            left.append(f"{answer.node} ({reverted.error})")
    return left


@dataclass(frozen=True)
class Survey:
    """What ``doctor`` found on every node, and where the nodes differ from one another."""

    answers: tuple[Answer, ...]
    differences: tuple[str, ...] = field(default=())

    @property
    def status(self) -> int:
        """The exit status: 3 where a node could not be looked at or no node has anything, else the worst finding."""
        if any(answer.error is not None for answer in self.answers):
            return 3
        statuses = {answer.value["report"]["status"] for answer in self.answers}
        if 1 in statuses or self.differences:
            return 1
        return 0 if 0 in statuses else 3

    def to_json(self) -> dict[str, Any]:
        """Return the survey as JSON can hold it."""
        nodes = [
            {"node": answer.node, "error": answer.error, "report": None if answer.error else answer.value["report"]}
            for answer in self.answers
        ]
        return {"status": self.status, "nodes": nodes, "differences": list(self.differences)}


def examine_nodes(cluster: Cluster, site: str | None = None) -> Survey:
    """Look at every node, and compare them: nodes of one job must have the same things woven by the same version."""
    answers = cluster.run(list(cluster.nodes()), "examine", Request(None, site))
    seen: dict[str, dict[str, list[str]]] = {}
    for answer in answers:
        if answer.error is not None:
            continue
        report = answer.value["report"]
        states = {row["upstream"]: _words(row) for row in report["upstreams"]}
        states["train-infer-consistency"] = f"{report['version']} (consistency.{report['revision']})"
        for name, what in states.items():
            seen.setdefault(name, {}).setdefault(what, []).append(answer.node)
    differences = []
    for name, variants in seen.items():
        if len(variants) > 1:
            said = " but ".join(f"{what} on {', '.join(nodes)}" for what, nodes in variants.items())
            differences.append(f"{name} is not the same on every node: {said}")
    return Survey(tuple(answers), tuple(differences))


def _words(row: dict[str, Any]) -> str:
    by = f" by consistency.{row['revision']}" if row["revision"] else ""
    return f"{row['version'] or 'unknown version'}, {row['state']}{by}"


def work_on_node(work: str, request: dict[str, Any]) -> dict[str, Any]:
    """Do one piece of work in this environment; called on a node. Errors come back as data.

    Returns:
        ``{"value": ...}`` or ``{"error": text, "status": exit status}``.
    """
    from pathlib import Path

    from .apply import apply, plan
    from .doctor import examine, lines
    from .lock import load_lock
    from .reading import load_upstreams
    from .revert import revert

    try:
        upstreams, lock = load_upstreams(), load_lock()
        names, site = request["names"], None if request["site"] is None else Path(request["site"])
        unknown = request["allow_unknown_base"]
        if work == "examine":
            report = examine(upstreams, lock, site)
            return {"value": {"report": report.to_json(), "lines": lines(report)}}
        have, asked = (__version__, lock.revision), (request["version"], request["revision"])
        if have != asked:
            raise EvidenceError(
                f"train-infer-consistency is {have[0]} (consistency.{have[1]}) there, and {asked[0]}"
                f" (consistency.{asked[1]}) where this was started",
                "install the same wheel on every node",
            )
        if work == "check":
            plans = plan(upstreams, lock, names, site=site, allow_unknown_base=unknown)
            return {"value": [item.upstream.name for item in plans]}
        if work == "apply":
            outcomes = apply(upstreams, lock, names, site=site, allow_unknown_base=unknown)
        else:
            outcomes = revert(upstreams, names, site=site)
        return {"value": [outcome.to_json() for outcome in outcomes]}
    except ConsistencyError as error:
        return {"error": str(error), "status": error.status}


@contextlib.contextmanager
def connect() -> Iterator[Cluster]:
    """Connect to the Ray cluster that is running, and disconnect at the end.

    Raises:
        EvidenceError: Ray is not installed, or no cluster is running.
    """
    with joined() as ray:
        yield _RayCluster(ray)


class _RayCluster:
    """The nodes of the cluster this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._ids = node_ids(ray)

    def nodes(self) -> Sequence[str]:
        """See :class:`Cluster`."""
        return list(self._ids)

    def run(self, nodes: Sequence[str], work: str, request: Request) -> list[Answer]:
        """See :class:`Cluster`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # No CPU is asked for: the cluster may be fully booked. No retry: the work must not be done twice unseen.
        task = self._ray.remote(num_cpus=0, max_retries=0)(_by_value())
        asked = [
            task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=self._ids[node], soft=False)
            ).remote(work, asdict(request))
            for node in nodes
        ]
        return [self._answer(node, reference) for node, reference in zip(nodes, asked, strict=True)]

    def _answer(self, node: str, reference: Any) -> Answer:
        try:
            got = self._ray.get(reference, timeout=SECONDS)
        except self._ray.exceptions.RayTaskError as error:
            reason = str(error).strip().splitlines()[-1]
            return Answer(node, None, f"bug: {reason}", UnfinishedError.status, lost=True)
        except self._ray.exceptions.RayError as error:
            reason = f"no answer ({type(error).__name__})"
            return Answer(node, None, reason, UnfinishedError.status, lost=True)
        if "error" in got:
            return Answer(node, None, got["error"], got["status"])
        return Answer(node, got["value"])


def _by_value() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Return the function that a node runs. It is made here so that Ray sends its code, and not this module's name."""

    def on_node(work: str, request: dict[str, Any]) -> dict[str, Any]:
        import importlib
        import sys

        try:
            module = importlib.import_module("train_infer_consistency.overlay.ray_nodes")
        except ImportError as error:
            words = f"train-infer-consistency cannot be imported by {sys.executable} there ({error})"
            return {"error": f"{words}; install its wheel on that node", "status": 3}
        answer: dict[str, Any] = module.work_on_node(work, request)
        return answer

    return on_node
