"""The HTML page: one file with the data and the plotting library in it, which works offline and from a folder."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from ..comparing.record import Comparison
from ..errors import UnfinishedError
from .files import compact
from .payload import MOST_ROWS, payload

_ASSETS = Path(__file__).parent / "assets"
LANGUAGES = ("en", "zh")


def plotting_library() -> str:
    """The JavaScript of plotly, from its PyPI package; nothing is fetched.

    Raises:
        UnfinishedError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UnfinishedError(
            "the HTML page needs plotly, which is not installed",
            "pip install 'train-infer-consistency[analysis]', or leave out -o",
        ) from None
    return str(get_plotlyjs())


def page(comparison: Comparison, language: str | None = None, most_rows: int = MOST_ROWS) -> Iterator[str]:
    """The page in pieces.

    Data and library are gzipped inside it (a third of the size); the browser unpacks them. Names and paths from dumps
    are data and never markup: the page's script writes them as text alone.

    Args:
        comparison: what was found.
        language: ``en`` or ``zh``; None takes the browser's.
        most_rows: see :func:`payload`.

    Raises:
        UnfinishedError: plotly is not installed.
    """
    library = plotting_library()
    template = _asset("page.html")
    parts = {
        "style": _asset("page.css"),
        "words": compact(json.loads(_asset("words.json"))).replace("<", "\\u003c"),
        "script": _asset("page.js"),
        "library": _packed(library),
        "data": _packed(compact(payload(comparison, language, most_rows))),
    }
    while template:
        text, _, rest = template.partition("{{")
        yield text
        name, _, template = rest.partition("}}")
        if name:
            yield parts[name]


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    # mtime 0: the same comparison gives the same bytes.
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
