"""Part of the stand-in for torchair; see there."""

from torchair.core import _concrete_graph

__all__ = ["_concrete_graph"]
