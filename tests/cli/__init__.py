"""Tests of the verbs, as a user meets them."""
