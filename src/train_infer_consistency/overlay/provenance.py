"""The record of one weaving: from what, which edits, digests before and after, by which overlay version.

It lies in a woven wheel's ``*.dist-info`` and in the journal of an in-place overlay; the same weaving always gives
the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .. import __version__
from .inspect import UpstreamWeave

SCHEMA = 1
FILE_NAME = "consistency.json"


def provenance(weave: UpstreamWeave, artifact: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the record of a weaving.

    Args:
        weave: what was woven.
        artifact: what it was woven from, where that is one thing: its file name and sha256, or git URL and commit.
    """
    return {
        "schema": SCHEMA,
        "tool": {"name": "train-infer-consistency", "version": __version__},
        "overlay": f"consistency.{weave.revision}",
        "upstream": weave.upstream.name,
        "licence": weave.upstream.licence,
        "pin": weave.pin,
        "base": weave.base,
        "artifact": dict(artifact) if artifact else None,
        "files": [
            {
                "path": file.path,
                "base": file.base,
                "sha256_before": file.before_sha256,
                "sha256_after": file.after_sha256,
                "edits": list(file.edits),
                "scopes": {name: {"before": pair[0], "after": pair[1]} for name, pair in file.scopes.items()},
            }
            for file in weave.files
        ],
    }


def render(record: Mapping[str, Any]) -> bytes:
    """Return the record as it is written to a file."""
    return (json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
