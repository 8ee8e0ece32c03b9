"""What can be said about a collection run at start-up, before msprobe would say it in a forward, or never.

Each check is one line with the mend. Rules and versions are those of mindstudio-probe 26.2.0, found by
running it.
"""

from __future__ import annotations

import json
import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from train_infer_consistency.capture.switches import CaptureError

#: The first release whose ``start`` takes ``rank_id``, and whose undistributed folder is ``proc<pid>``.
MINIMUM_MSPROBE = (26, 0, 0)
#: The levels that dump a forward's modules or operators; msprobe's L2 and debug do not.
LEVELS = ("L0", "L1", "mix")
#: msprobe matches the real path of its file and of its dump folder against this; the latter only at the first
#: start().
_ACCEPTED_PATH = re.compile(r"[a-zA-Z0-9_.:/-]+")
_ACCEPTED_PATH_WORDS = "letters, digits and _ . : / -"


def msprobe_version() -> str:
    """The installed msprobe's version.

    Raises:
        CaptureError: not installed, or older than :data:`MINIMUM_MSPROBE`.
    """
    wanted = ".".join(map(str, MINIMUM_MSPROBE))
    mend = f"install mindstudio-probe >= {wanted} into this environment"
    try:
        version = metadata.version("mindstudio-probe")
    except metadata.PackageNotFoundError:
        raise CaptureError("a dump is switched on but msprobe is not installed", mend) from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])
    if numbers < MINIMUM_MSPROBE:
        raise CaptureError(f"mindstudio-probe {version} is too old", mend)
    return version


def overlay_version() -> str | None:
    """The version of this distribution; None when it runs from a bare source folder."""
    try:
        return metadata.version("train-infer-consistency")
    except metadata.PackageNotFoundError:
        return None


def check_config(path: str, source: str) -> dict[str, Any]:
    """Read an msprobe file and refuse what msprobe would refuse later, or what would lose data.

    Args:
        path: the file, as the user gave it.
        source: which variable or key it came from, for the message.

    Returns:
        The file's content; its ``dump_path`` exists afterwards and can be written to.

    Raises:
        CaptureError: the file is missing, unreadable, malformed or unfit, or its dump_path is.
    """
    where = f"{source}={path}"
    if not path.endswith(".json"):
        raise CaptureError(f"{where} does not end in .json, which msprobe demands", "rename the file")
    check_path(path, where)
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CaptureError(
            f"{where} cannot be read ({error.strerror})", "put the msprobe file there on every node"
        ) from None
    except ValueError as error:
        raise CaptureError(f"{where} is no valid JSON ({error})", "mend the file") from None
    dump_path = config.get("dump_path") if isinstance(config, dict) else None
    if not isinstance(dump_path, str) or not dump_path:
        raise CaptureError(f"{where} has no dump_path", "name the folder that the dumps shall go to")
    if "dump_enable" in config:
        # Its hot reload builds the configuration anew and forgets the folder this process dumps into, so that
        # several processes would write over one another's files.
        raise CaptureError(
            f"{where} uses dump_enable, which would mix the dumps of several processes", "remove that key"
        )
    _check_values(config, where)
    check_path(dump_path, f"dump_path={dump_path} in {path}")
    _check_writable(dump_path, path)
    return dict(config)


def check_path(path: str, where: str) -> None:
    """Refuse a path whose real form msprobe would refuse.

    Raises:
        CaptureError: it has a space or another character outside msprobe's pattern.
    """
    real = os.path.realpath(path)
    if not _ACCEPTED_PATH.fullmatch(real):
        raise CaptureError(f"{where}: msprobe refuses the path {real!r}", f"use only {_ACCEPTED_PATH_WORDS} in it")


def check_rank_filter(ranks: list[int], rank: int | None, world_size: int) -> None:
    """Refuse a rank filter that lets nothing through.

    Args:
        ranks: msprobe's expanded ``rank`` list; empty means all.
        rank: this process's rank as msprobe will see it; None where torch.distributed is not initialised and
            no rank is given.
        world_size: how many ranks there are.

    Raises:
        CaptureError: no rank of this world is in the list.
    """
    if not ranks:
        return
    if rank is None:
        raise CaptureError(
            f"the msprobe file filters rank {ranks}, but torch.distributed is not initialised: nothing would be dumped",
            'set "rank": []',
        )
    if not any(wanted < world_size for wanted in ranks):
        raise CaptureError(
            f"the msprobe file filters rank {ranks}, but the ranks here are 0 to {world_size - 1}: "
            "nothing would be dumped",
            'set "rank": []',
        )


def _check_values(config: dict[str, Any], where: str) -> None:
    """What msprobe refuses with a message that does not say which key it is about."""
    if config.get("level", "L1") not in LEVELS:
        raise CaptureError(f"{where} has level {config['level']!r}", f"use one of {', '.join(LEVELS)}; case matters")
    for key in ("rank", "step"):
        if not isinstance(config.get(key, []), list):
            raise CaptureError(f"{where} has {key} {config[key]!r}", f'"{key}" is a list, such as [0] or [] for all')


def _check_writable(dump_path: str, config_path: str) -> None:
    try:
        Path(dump_path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(
            f"dump_path={dump_path} in {config_path} cannot be made a folder ({error.strerror})",
            "name another one",
        ) from None
    if not os.access(dump_path, os.W_OK | os.X_OK):
        raise CaptureError(f"dump_path={dump_path} in {config_path} cannot be written to", "name another one")
