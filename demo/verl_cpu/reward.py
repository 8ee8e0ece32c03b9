"""A reward for answers of a model that knows nothing: verl loads the file and calls :func:`compute_score`."""

from __future__ import annotations


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """Return a number between 0 and 1 that differs between most answers, so that GRPO has something to learn from."""
    return sum(solution_str.encode()) % 101 / 100
