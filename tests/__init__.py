"""Tests, mirroring src/. Real upstream releases come from the fixture ``release``, trees from ``source``."""
