"""``consistency selftest``: a tiny random model through the engines installed here, and a report for an issue."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from .output import note, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="a new folder (else a temporary one, kept)")
    parser.add_argument("--engine", choices=("vllm-ascend", "vllm", "sglang"), help="this inference engine only")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="what both compute with (float32 on a CPU, else bfloat16)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 all that ran agree, 1 an engine differs, 3 one failed, or nothing was compared."""
    from ..selftest.report import render, to_json
    from ..selftest.run import SelfTest

    folder = options.output or Path(tempfile.mkdtemp(prefix="consistency-selftest-"))
    result = SelfTest(folder.resolve(), options.dtype or "", options.engine or "", note).run()
    text = render(result)
    (result.folder / "report.md").write_text(text, encoding="utf-8")
    if options.json:
        print_json(to_json(result))
    else:
        print(text, end="")
    return result.status
