"""Lay declared edits over upstream source: read them, weave them, check, apply in place, revert, report drift.

This room knows upstream trees and edits, and nothing of dumps. Standard library only.
"""
