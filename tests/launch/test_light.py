"""A check of one script imports nothing that takes longer than the check itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..conftest import ROOT

HEAVY = {"re", "json", "argparse", "pathlib", "importlib", "dataclasses", "inspect", "typing", "enum", "collections"}
OTHER_SCENARIO = "train_infer_consistency.launch.rules.slime"
WATCH = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from train_infer_consistency.cli.main import main
main(sys.argv[1:])
print("loaded", *sys.modules)
"""


def test_what_a_check_of_a_script_imports(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("A=1\npython3 -m verl.trainer.main_ppo trainer.nnodes=$A\n", encoding="utf-8")
    # -S: what the environment's own start-up files import is not ours.
    command = [sys.executable, "-S", "-c", WATCH, str(ROOT / "src"), "check", str(script), "--lang", "en"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "train_infer_consistency.launch.rules.verl" in loaded
    assert not loaded & HEAVY
    assert not any(name.startswith(OTHER_SCENARIO) for name in loaded)
