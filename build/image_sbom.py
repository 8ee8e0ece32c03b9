"""The image's bill of materials, CycloneDX 1.6 in JSON: its base, the wheels that are added, and what is laid in place.

What the base itself holds is not listed; its digest names all of it. The same inputs give the same bytes.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from train_infer_consistency import __version__
from train_infer_consistency.overlay.lock import Lock, Stack
from train_infer_consistency.overlay.model import Upstream
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.record import WheelName, canonical


def image_sbom(
    labels: Mapping[str, str], lock: Lock, stack: Stack, upstreams: Mapping[str, Upstream], wheels: Sequence[Path]
) -> bytes:
    """The document's bytes.

    Args:
        labels: the arguments of the Dockerfile.
        lock, stack, upstreams: what the stack is; every upstream of it that comes in no wheel is laid in place.
        wheels: the files that are installed.
    """
    in_wheels = {canonical(WheelName.parse(path.name).distribution) for path in wheels}
    laid = [upstreams[name] for name in stack.pins if canonical(upstreams[name].distribution) not in in_wheels]
    components = [_base(labels), *(_wheel(path) for path in sorted(wheels)), *(_laid(one, lock, stack) for one in laid)]
    ref = f"image:{labels['TITLE']}"
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(dict(labels), sort_keys=True))}",
        "version": 1,
        "metadata": {
            "timestamp": labels["CREATED"],
            "tools": {
                "components": [{"type": "application", "name": "train-infer-consistency", "version": __version__}]
            },
            "component": {"type": "container", "bom-ref": ref, "name": labels["TITLE"], "version": labels["VERSION"]},
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": [component["bom-ref"] for component in components]}],
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def created(epoch: int) -> str:
    """A moment as labels and the document write it: RFC 3339, UTC."""
    return dt.datetime.fromtimestamp(epoch, dt.UTC).isoformat().replace("+00:00", "Z")


def _base(labels: Mapping[str, str]) -> dict[str, Any]:
    digest = labels["BASE_DIGEST"]
    return {
        "type": "container",
        "bom-ref": "base",
        "name": labels["BASE_NAME"],
        "version": digest or "not resolved",
        **({"hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]} if digest else {}),
    }


def _wheel(path: Path) -> dict[str, Any]:
    name = WheelName.parse(path.name)
    purl = f"pkg:pypi/{canonical(name.distribution)}@{quote(name.version, safe='')}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": canonical(name.distribution),
        "version": name.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": file_digest(path)}],
    }


def _laid(upstream: Upstream, lock: Lock, stack: Stack) -> dict[str, Any]:
    """An upstream of the base that is edited where it lies, with the digest of each file before and after."""
    pin = lock.pin(upstream.name, stack.pins[upstream.name])
    name = canonical(upstream.distribution)
    ref = f"in-place:{name}@{pin.version}"
    files = [
        {
            "type": "file",
            "bom-ref": f"{ref}#{quote(path)}",
            "name": path,
            "description": f"sha256 before: {file.before}" if file.before else "laid, new",
            "hashes": [{"alg": "SHA-256", "content": file.after}],
        }
        for path, file in sorted(pin.files.items())
    ]
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": pin.built_version,
        "licenses": [{"license": {"id": upstream.licence}}],
        "pedigree": {
            "notes": f"the base's own, with overlay consistency.{lock.revision} laid in place, pin {pin.version}"
        },
        "components": files,
    }
