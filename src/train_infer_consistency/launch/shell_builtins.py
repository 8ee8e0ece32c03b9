"""Which variables bash's own commands set to what reading cannot know."""

from __future__ import annotations

from .shell_tokens import NAME, is_name

_READS = frozenset(("read", "mapfile", "readarray", "getopts"))


def set_by(command: str, options: list[str]) -> list[str]:
    """The names of variables that a command sets (``read A``, ``let A=2``, ``printf -v A``, ``unset 'A[0]'``)."""
    if command in _READS:
        return [option for option in options if is_name(option)]
    if command == "let":
        return [name for option in options for name in assigned_in(option)]
    if command == "printf":
        return options[1:2] if options[:1] == ["-v"] else []
    if command == "unset":
        return [option.partition("[")[0] for option in options if "[" in option]
    return []


def assigned_in(expression: str) -> list[str]:
    """The names in an arithmetic expression that sets some; none where it only compares and counts."""
    compared = expression.replace("<<=", " = ").replace(">>=", " = ")
    for sign in ("==", "<=", ">=", "!="):
        compared = compared.replace(sign, " ")
    if "=" not in compared and "++" not in expression and "--" not in expression:
        return []
    letters = [sign if sign in NAME else " " for sign in expression]
    return [word for word in "".join(letters).split() if is_name(word)]


def sets_arguments(options: list[str]) -> bool:
    """Whether ``set`` with these options gives the script other arguments: ``set -- a``, not ``set -eo pipefail``."""
    rest = iter(options)
    for option in rest:
        if option == "--" or not option.startswith(("-", "+")):
            return True
        if option.endswith("o"):
            next(rest, "")
    return False


def exports_all(options: list[str], before: bool) -> bool:
    """Whether variables are exported as they are set, behind a ``set`` such as ``set -ea`` or ``set -o allexport``.

    Args:
        options: the command's.
        before: whether they were until now.
    """
    for option, after in zip(options, [*options[1:], ""], strict=True):
        if option == "--":
            break
        if option.startswith(("-", "+")) and ("a" in option or (option.endswith("o") and after == "allexport")):
            before = option.startswith("-")
    return before
