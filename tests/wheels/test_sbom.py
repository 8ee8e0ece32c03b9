"""The bill of materials is valid CycloneDX 1.6 and says what was changed in what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from train_infer_consistency.wheels.repack import weave_wheel
from train_infer_consistency.wheels.sbom import sbom

from .small import small

ARTIFACT = {"file": "demo_pkg-1.0-py3-none-any.whl", "sha256": "ab" * 32, "version": "1.0"}
GIT = {**ARTIFACT, "git": "https://git.invalid/demo", "commit": "c" * 40}


def document(folder: Path, artifact: dict[str, str] = ARTIFACT) -> tuple[str, dict[str, Any]]:
    case = small(folder)
    text = sbom(weave_wheel(case.upstream, case.wheel, case.lock), "1.0+consistency.7", artifact).decode()
    return text, json.loads(text)


@pytest.mark.parametrize("artifact", [ARTIFACT, GIT])
@pytest.mark.parametrize("epoch", ["", "1700000000"])
def test_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, artifact: dict[str, str], epoch: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    text, found = document(tmp_path, artifact)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert ("timestamp" in found["metadata"]) is bool(epoch)


def test_validator_would_refuse_an_unknown_key(tmp_path: Path) -> None:
    _, found = document(tmp_path)
    found["metadata"]["component"]["colour"] = "red"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(found)) is not None


def test_says_what_was_changed_in_what(tmp_path: Path) -> None:
    _, found = document(tmp_path, GIT)
    component = found["metadata"]["component"]
    url = PackageURL.from_string(component["purl"])
    assert (url.type, url.name, url.version) == ("pypi", "demo-pkg", "1.0+consistency.7")
    (ancestor,) = component["pedigree"]["ancestors"]
    assert ancestor["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert ancestor["externalReferences"][0]["comment"] == "c" * 40
    ids = [item["id"] for patch in component["pedigree"]["patches"] for item in patch["resolves"]]
    assert ids == ["demo/core.py#extra", "demo/laid.py#laid"]
    assert [file["name"] for file in found["components"]] == ["demo/laid.py"]


def test_serial_number_follows_the_content(tmp_path: Path) -> None:
    first, found = document(tmp_path / "a")
    again, _ = document(tmp_path / "b")
    _, other = document(tmp_path / "c", {**ARTIFACT, "sha256": "cd" * 32})
    assert first == again
    assert found["serialNumber"] != other["serialNumber"]
