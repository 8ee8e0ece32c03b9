"""The tiny random model of the demo and of the engine tests is the self-test's; ``tiny_model.py FOLDER`` writes one."""

from __future__ import annotations

import sys

from train_infer_consistency.selftest.model import HIDDEN, LAYERS, main, write_model

__all__ = ["HIDDEN", "LAYERS", "main", "write_model"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
