"""Tests of the room ``wheels``."""
