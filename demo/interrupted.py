"""Which requests of a fully asynchronous run were interrupted, and under which ids both logs know them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train_infer_consistency.errors import EvidenceError


def attempts(rollout: Path, training: Path) -> list[str]:
    """Return a sentence about each interrupted request.

    Its id in the training log has to be the one under which the rollout prefilled the prompt alone. What the request
    went on as has an id that the training log has not, and its prefill holds the prompt and the tokens so far.

    Args:
        rollout: the dump folder of the rollout.
        training: of the training engine.

    Raises:
        EvidenceError: an id's prefill is not the prompt, or no request was interrupted after its first token.
    """
    prefills = {entry["request_id"].rpartition("-")[0]: (entry, line) for entry, line in _prefills(rollout)}
    trained = {entry["request_id"]: entry for entry in _trained(training)}
    said = []
    for request_id, entry in trained.items():
        first, last = entry["rollout_weight_versions"]
        if first == last:
            continue
        prefill, line = prefills.get(request_id, ({}, {}))
        if (prefill.get("prompt_length"), prefill.get("prompt_hash")) != (entry["prompt_length"], entry["prompt_hash"]):
            raise EvidenceError(
                f"{request_id} is in the training log, and is no prefill of its prompt alone", "see both"
            )
        when = "after its first token" if line["weight_version"] == first else "before its first token"
        said.append(
            f"{request_id} was interrupted {when}; its prompt's {entry['prompt_length']} tokens were computed with "
            f"weights {line['weight_version']}"
        )
    later = [
        f"{key} is such a request gone on: {entry['tokens']} tokens"
        for key, (entry, _) in prefills.items()
        if key not in trained
    ]
    if not later:
        raise EvidenceError("no request was interrupted after its first token", "see the logs of both engines")
    return said + later


def _prefills(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for line in _lines(folder, "dispatch_log.jsonl"):
        yield from ((entry, line) for entry in line["requests"] if entry["type"] == "new")


def _trained(folder: Path) -> Iterator[dict[str, Any]]:
    for line in _lines(folder, "update_actor_log.jsonl"):
        if line["prompt_only"]:
            yield from line["requests"]


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    (path,) = folder.rglob(name)
    return map(json.loads, path.read_text().splitlines())
