"""The dialects as data: one TOML file for each engine's module names (docs/comparison.md has the keys)."""
