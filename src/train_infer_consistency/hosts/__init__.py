"""Dumps that lie on many hosts: bring them together, or compare each pair where its data lies."""
