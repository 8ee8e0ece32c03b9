"""Which reports are wanted, checked before a long comparison and written after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..comparing.record import Comparison
from ..errors import UsageError
from . import lines, msprobe_view
from .files import write_text
from .junit import junit_lines

PAGE, MODULES = "report.html", "modules.jsonl"


def check(*, page: Path | None, csv: Path | None, junit: Path | None, view: Path | None) -> None:
    """See that what is wanted can be written, before anything is compared.

    Args:
        page: the folder of the HTML page.
        csv: a file.
        junit: a file.
        view: the folder for msprobe's viewer.

    Raises:
        UsageError: a file is wanted where a folder is or the other way round, or msprobe would refuse the path.
        UnfinishedError: plotly is not installed.
    """
    for option, path, folder in (("-o", page, True), ("--csv", csv, False), ("--junit", junit, False)):
        if path is not None and path.exists() and path.is_dir() != folder:
            raise UsageError(f"{option} {path} is {'a file' if folder else 'a folder'}", "name another path")
    if view is not None:
        msprobe_view.check_path(view)
    if page is not None:
        from .page import plotting_library

        plotting_library()


def write(
    comparison: Comparison,
    *,
    page: Path | None = None,
    csv: Path | None = None,
    junit: Path | None = None,
    view: Path | None = None,
    language: str | None = None,
) -> Iterator[Path]:
    """Write what is wanted and yield each path when it is there; see :func:`check` for the arguments.

    Raises:
        UnfinishedError: plotly is not installed.
    """
    if csv is not None:
        write_text(csv, lines.csv_lines(comparison))
        yield csv
    if junit is not None:
        write_text(junit, junit_lines(comparison))
        yield junit
    if page is not None:
        from .page import page as page_lines

        write_text(page / MODULES, lines.json_lines(comparison))
        yield page / MODULES
        write_text(page / PAGE, page_lines(comparison, language))
        yield page / PAGE
    if view is not None and any(pair.modules for pair in comparison.wholes()):  # else the verdict has said why
        yield from msprobe_view.write_view(comparison, view)
