"""What can go wrong, as words for a person and an exit status for a program.

Every error a user can meet is a :class:`ConsistencyError`: one line that says what is wrong and where, and
how to mend it. ``status`` is the exit status of the verb that meets it (docs/reference.md has the table).
"""

from __future__ import annotations


class ConsistencyError(Exception):
    """A failure a user can act on.

    Args:
        what: what is wrong and where, one line without a full stop.
        mend: what to do about it, one line; omitted only where nothing can be done.
    """

    status = 4

    def __init__(self, what: str, mend: str | None = None) -> None:
        super().__init__(what if mend is None else f"{what}; {mend}")
        self.what = what
        self.mend = mend


class FoundError(ConsistencyError):
    """The thing looked for was found: a difference, a broken rule, a drifted anchor."""

    status = 1


class UsageError(ConsistencyError):
    """The command line is wrong."""

    status = 2


class EvidenceError(ConsistencyError):
    """Not enough evidence: an input or a source is missing, unreadable or not what it claims to be."""

    status = 3


class UnfinishedError(ConsistencyError):
    """Could not finish: a full disk, another run at work, an interrupt."""

    status = 4
