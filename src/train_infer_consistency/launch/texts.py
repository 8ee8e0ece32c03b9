"""Read an input's text, or say in one sentence why it is none: what is no plain file is never waited for."""

from __future__ import annotations

import os
import stat

from .words import Said

#: More than any script or configuration has; a larger file was named by mistake.
_LARGEST = 1 << 20


def read_text(path: str) -> str | Said:
    """A file's text, or why it cannot be read. Line ends are kept as they are."""
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            return Said("folder" if stat.S_ISDIR(about.st_mode) else "no-file")
        if about.st_size > _LARGEST:
            return Said("too-large", limit=_LARGEST >> 20)
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except UnicodeDecodeError:
        return Said("no-utf8")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        return Said("failed", why=getattr(error, "strerror", None) or error)
    return Said("no-utf8") if "\0" in text else text


def is_here(path: str) -> bool:
    """Whether a path names a file of this machine, readable or not; a device is everywhere and no file."""
    return os.path.lexists(path) and not os.path.isdir(path) and not path.startswith(("/dev/", "/proc/"))
