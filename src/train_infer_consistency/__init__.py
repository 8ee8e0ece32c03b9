"""Train-inference consistency for RL of LLMs: overlays, capture, and the tools around them."""

__version__ = "0.1.0"
