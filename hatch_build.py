"""Put ``overlays/`` and ``VERSIONS.lock`` into the wheel, beside the package that reads them.

A hook and not ``force-include``, because that would also copy them into an editable install, where they go
stale: there ``resources.py`` finds the ones of the checkout.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = "train_infer_consistency/_shipped"


class ShippedFiles(BuildHookInterface[Any]):
    """Hatchling finds this class by its base."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a real wheel; ``version`` is "editable" for the other kind."""
        if version == "standard":
            for name in ("overlays", "VERSIONS.lock"):
                build_data["force_include"][f"{self.root}/{name}"] = f"{SHIPPED}/{name}"
