"""A woven wheel's bill of materials, CycloneDX 1.6 in JSON: what it descends from and what was changed in it.

The same weaving gives the same bytes: the serial number is derived from the digests, and there is a timestamp
only where ``SOURCE_DATE_EPOCH`` gives one. No upstream text is in it: an edit is named by its id and its
reason.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..overlay.inspect import UpstreamWeave
from .archive import source_date_epoch
from .record import canonical

FILE_NAME = "sboms/consistency.cdx.json"
_TOOL = "train-infer-consistency"


def sbom(weave: UpstreamWeave, version: str, artifact: Mapping[str, Any]) -> bytes:
    """The document's bytes.

    Args:
        weave: what was woven.
        version: the woven wheel's version.
        artifact: what it was woven from: ``file``, ``sha256``, ``version``, and ``git`` with ``commit`` where
        it was
            built from there.

    Raises:
        EvidenceError: ``SOURCE_DATE_EPOCH`` is no number.
    """
    upstream = weave.upstream
    purl = _purl(upstream.distribution, version)
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": _TOOL, "version": __version__}]},
        "component": {
            "type": "library",
            "bom-ref": purl,
            "name": canonical(upstream.distribution),
            "version": version,
            "licenses": [{"license": {"id": upstream.licence}}],
            "purl": purl,
            "pedigree": {
                "ancestors": [_ancestor(weave, artifact)],
                "patches": list(_patches(weave)),
                "notes": f"overlay consistency.{weave.revision}, laid over pin {weave.pin}",
            },
        },
    }
    if (moment := source_date_epoch()) is not None:
        metadata["timestamp"] = dt.datetime.fromtimestamp(moment, dt.UTC).isoformat()
    laid = [file for file in weave.files if file.before is None]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{_serial(weave, version, artifact)}",
        "version": 1,
        "metadata": metadata,
        "components": [
            {
                "type": "file",
                "bom-ref": f"{purl}#{quote(file.path)}",
                "name": file.path,
                "hashes": [{"alg": "SHA-256", "content": file.after_sha256}],
            }
            for file in laid
        ],
        "dependencies": [{"ref": purl, "dependsOn": [f"{purl}#{quote(file.path)}" for file in laid]}],
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{canonical(name)}@{quote(version, safe='')}"


def _ancestor(weave: UpstreamWeave, artifact: Mapping[str, Any]) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "name": canonical(weave.upstream.distribution),
        "version": artifact["version"],
        "purl": _purl(weave.upstream.distribution, artifact["version"]),
        "hashes": [{"alg": "SHA-256", "content": artifact["sha256"]}],
    }
    if git := artifact.get("git"):
        component["externalReferences"] = [{"type": "vcs", "url": git, "comment": artifact.get("commit", "")}]
    return component


def _patches(weave: UpstreamWeave) -> Iterator[dict[str, Any]]:
    reasons = {(file.path, edit.id): edit.why for file in weave.upstream.files for edit in file.edits}
    for file in weave.files:
        yield {
            "type": "unofficial",
            "resolves": [
                {
                    "type": "enhancement",
                    "id": f"{file.path}#{edit}",
                    "name": edit,
                    "description": reasons.get((file.path, edit), ""),
                }
                for edit in file.edits
            ],
        }


def _serial(weave: UpstreamWeave, version: str, artifact: Mapping[str, Any]) -> uuid.UUID:
    digests = [artifact["sha256"], *(file.after_sha256 for file in weave.files)]
    return uuid.uuid5(uuid.NAMESPACE_URL, "\n".join([_TOOL, __version__, version, *digests]))
