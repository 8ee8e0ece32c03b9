"""Tests of the programs in build/."""
