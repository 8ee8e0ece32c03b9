"""Mend what an upstream's own build leaves wrong, before its wheel is woven: tags and missing modules.

slime v0.2.x is why this is here: its ``setup.py`` tags every Linux wheel ``manylinux1_x86_64``, puts pure Python below
``*.data/purelib``, and packs no folder without an ``__init__.py``, among them one that its own modules import. Upstream
itself is only ever installed editable, where none of this shows. A wheel that needs no mending is left as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from .archive import REGULAR_FILE, ArchiveWriter, replacing
from .record import Row, WheelReader, write_record

_COMPILED = re.compile(r"\.(so|pyd|dylib|dll|a)(\.\d+)*$")
_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")


def complete(wheel: Path, tree: Path, package: str, dest: Path) -> tuple[Path, tuple[str, ...]]:
    """Return a wheel with every Python module of its tree, as pure Python where nothing in it is compiled.

    Args:
        wheel: what the upstream's backend built.
        tree: the tree it was built from; only read.
        package: the import package; it and packages whose names begin with it (``slime_plugins``) are completed.
        dest: where a mended wheel is written, under another folder than ``wheel`` lies in.

    Returns:
        The wheel (``wheel`` itself where nothing had to be mended), and the modules that were added, as paths.

    Raises:
        EvidenceError: the wheel is broken.
        UnfinishedError: the mended one cannot be written.
    """
    with WheelReader(wheel) as reader:
        compiled = any(_COMPILED.search(name) for name in reader.members)
        names = {name: name if compiled else _DATA.sub("", name, count=1) for name in reader.members}
        missing = _missing(set(names.values()), tree, package)
        pure = not compiled and str(reader.name).endswith("-none-any.whl") and names == {n: n for n in names}
        if not missing and (pure or compiled):
            return wheel, ()
        name = reader.name if compiled else replace(reader.name, python="py3", abi="none", platform="any", build="")
        path = dest / str(name)
        with replacing(path) as file:
            out = ArchiveWriter(file)
            _write(reader, out, names, missing, compiled)
            out.close()
    return path, tuple(missing)


def _missing(have: set[str], tree: Path, package: str) -> dict[str, Path]:
    """The modules of the tree that a wheel does not hold, by their path in it."""
    root = next((base for base in (tree, tree / "python", tree / "src") if (base / package).is_dir()), tree)
    tops = sorted({name.split("/")[0] for name in have if name.startswith(package) and "/" in name})
    found = {}
    for top in tops:
        if top != package and not top.startswith(f"{package}_"):
            continue
        for path in sorted((root / top).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name not in have and path.is_file() and not path.is_symlink():
                found[name] = path
    return found


def _write(
    reader: WheelReader, out: ArchiveWriter, names: dict[str, str], missing: dict[str, Path], compiled: bool
) -> None:
    inside = f"{reader.dist_info}/"
    metadata = f"{inside}WHEEL"
    when = (reader.members[metadata].date, reader.members[metadata].time)
    rows = []
    for name, new_name in names.items():
        if not name.startswith(inside):
            out.copy(reader, name, new_name)
            rows.append(replace(reader.rows[name], path=new_name))
    for name, path in missing.items():
        data = path.read_bytes()
        out.add(name, data, when, REGULAR_FILE)
        rows.append(Row.of(name, data))
    for name in names:
        if name == metadata and not compiled:
            data = _pure(reader.verified(name))
            out.add(name, data, when, REGULAR_FILE)
            rows.append(Row.of(name, data))
        elif name.startswith(inside) and name != reader.record_path:
            out.copy(reader, name)
            rows.append(reader.rows[name])
    out.add(reader.record_path, write_record(rows, reader.record_path), when, REGULAR_FILE)


def _pure(metadata: bytes) -> bytes:
    """A WHEEL file that says: pure Python, any platform."""
    lines = [line for line in metadata.decode().splitlines() if line and not line.startswith(("Root-Is-", "Tag:"))]
    return "\n".join([*lines, "Root-Is-Purelib: true", "Tag: py3-none-any", ""]).encode()
