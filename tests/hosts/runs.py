"""A real run twice, as two hosts would have it: the same process ids, other requests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

RUN = "fully_async_qwen3_fsdp2_ids"
SIDES = ("generate_sequence", "update_actor")


def two_hosts(dumps: Path, base: Path) -> list[Path]:
    """The folders of two hosts, each with both sides."""
    hosts = []
    for name in ("left", "right"):
        shutil.copytree(dumps / "loop" / RUN, base / name)
        if name == "right":
            for log in (base / name).rglob("*.jsonl"):
                log.write_text(re.sub(r"\b[0-9a-f]{31}", lambda match: match[0][::-1], log.read_text()))
        hosts.append(base / name)
    return hosts


def comparable(found: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """What a comparison found, without the rejected steps, with places given their names."""
    text = json.dumps({**found, "pairs": found["pairs"]["used"]})
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    made: dict[str, Any] = json.loads(text)
    return made


def places(found: dict[str, Any]) -> dict[str, str]:
    """Every file of a result as it is called there, with its host, and without."""
    used = found["pairs"]["used"]
    files = {file for pair in used for side in ("inference", "training") for file in pair[side]["files"]}
    return {file: file.partition(":")[2] for file in files}
