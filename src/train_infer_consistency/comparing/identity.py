"""Did both sides see the same tokens? Different prompts, packing and padding are no difference between engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import EvidenceError
from .judge import Errors, errors_of
from .quantity import Quantity, Side
from .row import Window
from .tensors import Layout, elements, find_window

# Statistics of one lookup table over other tokens are off by any factor; over scaled values all by the same one.
_SAME_FACTOR = 0.02


@dataclass(frozen=True)
class Identity:
    """What is known of the two token sequences.

    Attributes:
        how: one phrase for the report.
        refusal: why the pair is not comparable; empty where it is.
        window: which rows are the prompt, where one side is padded and both have elements.
        proven: whether the tokens are known to be the same one by one.
    """

    how: str
    refusal: str = ""
    window: Window | None = None
    proven: bool = False


def identify(inference: Side, training: Side, joined_by: str) -> Identity:
    """Compare the embedding's inputs.

    Args:
        inference: the inference side.
        training: the training side.
        joined_by: what made a pair of them, such as ``request id``; empty where a person named two folders.
    """
    one, two = inference.ids, training.ids
    if one is None or two is None:
        lacking = inference if one is None else training
        if inference.tokens and training.tokens and inference.tokens != training.tokens:
            return Identity("", f"{inference.tokens} tokens against {training.tokens}")
        return Identity(f"unknown: the {lacking.label} side has no embedding input")
    if one.elements and two.elements:
        return _by_elements(inference, training, one, two)
    if one.numel != two.numel:
        return Identity("", _count_words(inference, training))
    if one.crc and two.crc and one.dtype == two.dtype:
        if one.crc != two.crc:
            return Identity("", "different tokens: the CRCs of the token ids differ")
        return Identity(f"{one.numel} tokens, equal CRC", proven=True)
    for word, a, b in zip(("Max", "Min"), one.summary, two.summary, strict=False):
        if a is not None and b is not None and a != b:
            return Identity("", f"different tokens: {word} of the token ids is {a:g} and {b:g}")
    how = f"{one.numel} tokens, equal largest and smallest id"
    return Identity(f"{how}, one {joined_by}", proven=True) if joined_by else Identity(how)


def other_tokens(identity: Identity, one: Quantity | None, two: Quantity | None) -> bool:
    """Whether embedding outputs look like lookups of other tokens in one table, and not like an engine's error.

    Asked only where the ids themselves were not compared one by one. An error of an engine scales all statistics alike,
    or leaves some of them as they are; other tokens change mean and norm, each by its own factor.
    """
    if identity.proven or one is None or two is None or one.gap or two.gap:
        return False
    errors: Errors = errors_of(one.summary, two.summary, one.numel)
    if (
        errors.norm is None
        or errors.mean is None
        or errors.norm <= _SAME_FACTOR / 4
        or errors.mean <= _SAME_FACTOR / 40
    ):
        return False
    ratios = [a / b for a, b in zip(one.summary, two.summary, strict=True) if a and b]
    return not ratios or max(ratios) - min(ratios) > _SAME_FACTOR * max(abs(ratio) for ratio in ratios)


def positions_differ(inference: Side, training: Side) -> tuple[str, Quantity, Quantity] | None:
    """The first module whose positions differ from the other side's; None where none does or nothing is known."""
    for label, own, others in (("inference", inference, training), ("training", training, inference)):
        known = [quantity for _, quantity in others.positions if None not in quantity.summary[:2]]
        if not known:
            continue
        reference = known[0]
        for name, quantity in own.positions:
            if None in quantity.summary[:2]:
                continue
            if quantity.numel == reference.numel and quantity.summary[:2] != reference.summary[:2]:
                pair = (quantity, reference) if label == "inference" else (reference, quantity)
                return (name, *pair)
    return None


def _by_elements(inference: Side, training: Side, one: Quantity, two: Quantity) -> Identity:
    try:
        ids: list[Any] = [elements(quantity, Layout()).reshape(-1) for quantity in (one, two)]
    except EvidenceError as error:
        return Identity(f"unknown: {error}")
    if len(ids[0]) == len(ids[1]):
        if (ids[0] == ids[1]).all():
            return Identity(f"{len(ids[0])} tokens, equal ids", proven=True)
        first = int((ids[0] != ids[1]).argmax())
        return Identity("", f"different tokens: from position {first} on")
    found = find_window(ids[0], ids[1])
    if found is None:
        return Identity("", _count_words(inference, training) + ", and the shorter is no part of the longer")
    tokens, start = found
    shorter_is_inference = len(ids[0]) < len(ids[1])
    window = Window(tokens, 0 if shorter_is_inference else start, start if shorter_is_inference else 0)
    longer = training.label if shorter_is_inference else inference.label
    rest = max(len(ids[0]), len(ids[1])) - tokens
    return Identity(
        f"{tokens} tokens, equal ids; {rest} further rows of the {longer} side cut (padding, or a response)",
        window=window,
        proven=True,
    )


def _count_words(inference: Side, training: Side) -> str:
    """Packed, padded, or simply other tokens: each has its own words."""
    one, two = inference.tokens, training.tokens
    plain = f"{one} tokens on the inference side against {two} on the training side"
    for side in (inference, training):
        last = _last_position(side)
        if last is None or last + 1 >= side.tokens:
            continue
        if side.ids is not None and len(side.ids.groups[0].pieces[0].leaf.shape) > 1:
            return f"{plain}: the {side.label} side is padded, its last position is {last:g}"
        return f"{plain}: the {side.label} side has several requests packed, its last position is {last:g}"
    for side, short in ((inference, two), (training, one)):
        if side.parallel > 1 and side.tokens == -(-short // side.parallel) * side.parallel:
            return f"{plain}: the {side.label} side is padded to a multiple of tensor parallel size {side.parallel}"
    if two > one and _last_position(training) in (None, two - 1):
        return (
            f"{plain}: the training side's forward has the response in it (dump prompts alone, PROMPTS_ONLY=1), "
            "or it is of another prompt"
        )
    return plain


def _last_position(side: Side) -> float | None:
    return max((q.stats.max for _, q in side.positions if q.stats.max is not None), default=None)
