"""Tests that build images; run by `make image-test`."""
