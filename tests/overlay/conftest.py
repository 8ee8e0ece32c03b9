"""What the tests of an environment's overlays start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from .in_place import Known, upstreams_and_lock


@pytest.fixture
def known(tmp_path: Path) -> Known:
    """The upstreams of the tests' own overlays, and their lock."""
    return upstreams_and_lock(tmp_path / "overlays")
