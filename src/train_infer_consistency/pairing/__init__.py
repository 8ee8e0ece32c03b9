"""Finds which inference step and training step are the same forward, and says of every other why it is not used."""
