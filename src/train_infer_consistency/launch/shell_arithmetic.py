"""Bash's whole-number arithmetic, ``$((…))``, over what is known of a script's variables."""

from __future__ import annotations

from .shell_tokens import is_name
from .unknown import unknown_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shell_values import Variables


class Arithmetic:
    """Whole-number expressions: + - * / % **, signs, parentheses and variables."""

    def __init__(self, text: str, variables: Variables, depth: int = 0) -> None:
        if depth > 16:
            raise ValueError(text)
        self.items = _items(text)
        self.variables = variables
        self.depth = depth
        self.at = 0

    def value(self) -> int:
        """The expression's number.

        Raises:
            ValueError: it is none, or a part of it is unknown.
        """
        found = self._sum()
        if self.at != len(self.items):
            raise ValueError(self.items)
        return found

    def _peek(self) -> str:
        return self.items[self.at] if self.at < len(self.items) else ""

    def _take(self) -> str:
        self.at += 1
        return self.items[self.at - 1]

    def _sum(self) -> int:
        found = self._product()
        while self._peek() in ("+", "-"):
            found = found + self._product() if self._take() == "+" else found - self._product()
        return found

    def _product(self) -> int:
        found = self._power()
        while self._peek() in ("*", "/", "%"):
            sign, other = self._take(), self._power()
            if sign == "*":
                found *= other
                continue
            if not other:
                raise ValueError("division by zero")
            quotient = abs(found) // abs(other) * (1 if (found < 0) == (other < 0) else -1)
            found = quotient if sign == "/" else found - quotient * other
        return found

    def _power(self) -> int:
        found = self._unary()
        if self._peek() != "**":
            return found
        self._take()
        exponent = self._power()
        if not 0 <= exponent <= 64:
            raise ValueError(exponent)
        return int(found**exponent)

    def _unary(self) -> int:
        item = self._take() if self._peek() else ""
        if item in ("+", "-"):
            return self._unary() if item == "+" else -self._unary()
        if item == "(":
            found = self._sum()
            if self._peek() != ")":
                raise ValueError(self.items)
            self._take()
            return found
        if item.isdigit():
            if len(item) > 1 and item[0] == "0":  # octal, which nobody means
                raise ValueError(item)
            return int(item)
        name = item.removeprefix("$")
        text = self.variables.text(name) if is_name(name) else None
        if text is None or unknown_in(text):
            raise ValueError(item)
        # Behind $ the text itself stands there: of A="1+2", $A*2 is 1+2*2.
        if item != name and not text.strip().lstrip("+-").isdigit():
            raise ValueError(item)
        return Arithmetic(text, self.variables, self.depth + 1).value() if text.strip() else 0


def _items(text: str) -> list[str]:
    items: list[str] = []
    at = 0
    while at < len(text):
        end, dollar = at + 1, ""
        if text[at].isspace():
            at = end
            continue
        if text[at] == "$":
            if text.startswith("{", end):
                close = text.find("}", end)
                items.append("$" + text[end + 1 : close] if close > 0 else "?")
                at = close + 1 if close > 0 else len(text)
                continue
            # $((…)) is another pair of parentheses, $(…) is what a command prints.
            dollar = "" if text.startswith("((", end) else "$"
            at, end = end, end + 1
        if at < len(text) and (text[at].isalnum() or text[at] == "_"):
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
        elif text.startswith("**", at):
            end = at + 2
        items.append(dollar + text[at:end])
        at = end
    return items
