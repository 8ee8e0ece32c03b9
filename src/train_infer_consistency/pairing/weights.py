"""Whether the trainer computed a prompt with the weights that the rollout had."""

from __future__ import annotations

from ..dumps.steps import LogLine, Request


def weights_differ(line: LogLine, request: Request, lag: int) -> str | None:
    """Say that a training forward had other weights than the prompt's prefill; None if not, or if nothing tells.

    Args:
        line: the training line, with the trainer's weight number.
        request: with the rollout's numbers; the prefill had the oldest.
        lag: how far the trainer's number is ahead where both mean the same weights; 0 for a line that has its
            trainer's step beside it, whose number is counted as the rollout counts.
    """
    ours, theirs = line.weight_version, request.versions[0]
    if counts_as_the_rollout(line):
        lag = 0
    if ours is None or theirs is None or ours - theirs == lag:
        return None
    return f"the rollout had weights {theirs}, the trainer {ours - lag}"


def counts_as_the_rollout(line: LogLine) -> bool:
    """Whether a training line's weight number is the rollout's, and not perhaps the trainer's step."""
    return "trainer_step" in line.extra
