"""Where the files lie that ship with this package: the overlays and the lock of pinned versions.

An installed wheel has them in ``_shipped/`` beside this module. A checkout, and an editable install of one,
has them at its root. Nothing is looked for before it is asked for.
"""

from __future__ import annotations

from pathlib import Path

from .errors import EvidenceError

_PACKAGE = Path(__file__).resolve().parent


def overlays_dir() -> Path:
    """The folder ``overlays/``, one sub-folder per upstream.

    Raises:
        EvidenceError: this installation lacks it.
    """
    return _find("overlays")


def lock_path() -> Path:
    """The file ``VERSIONS.lock``.

    Raises:
        EvidenceError: this installation lacks it.
    """
    return _find("VERSIONS.lock")


def _find(name: str) -> Path:
    shipped = _PACKAGE / "_shipped" / name
    checkout = _PACKAGE.parent.parent
    if shipped.exists():
        return shipped
    # pyproject.toml tells a checkout's root from the lib/ folder above a broken site-packages.
    if (checkout / "pyproject.toml").is_file() and (checkout / name).exists():
        return checkout / name
    raise EvidenceError(
        f"{name} is missing from this installation ({_PACKAGE})",
        "install train-infer-consistency again, from its wheel or from a complete checkout",
    )
