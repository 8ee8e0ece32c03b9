"""Joins the Ray cluster that is running, and names its nodes. Ray is imported here alone, and where it is asked for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from .errors import EvidenceError


@contextlib.contextmanager
def joined(modules: Sequence[str] = ()) -> Iterator[Any]:
    """The ``ray`` module while connected to the running cluster; disconnects at the end what it connected.

    Args:
        modules: folders of packages to send to every node.

    Raises:
        EvidenceError: Ray is not installed, or no cluster is running.
    """
    try:
        import ray
    except ImportError as error:
        raise EvidenceError(
            f"--ray needs Ray, which cannot be imported here ({error})", "run it with the Python of the engines"
        ) from None
    ours = not ray.is_initialized()
    if ours:
        sent = {"runtime_env": {"py_modules": list(modules)}} if modules else {}
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR, **sent)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise EvidenceError(
                f"no running Ray cluster was found: {reason}", "start it with 'ray start', or set RAY_ADDRESS"
            ) from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def node_ids(ray: Any) -> dict[str, str]:
    """The nodes that are alive: a name for a person (host name, address, start of the id), and the id."""
    return {
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})": node["NodeID"]
        for node in ray.nodes()
        if node["Alive"]
    }
