"""``consistency check`` of one launch script against a bare interpreter's start, interleaved in one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUIRED = 3.0
ROUNDS = 60
SCRIPT = """\
#!/usr/bin/env bash
set -xeuo pipefail
MODEL_PATH=${MODEL_PATH:-/models/m}
NNODES=${NNODES:-1}
prompt_length=${PROMPT_LENGTH:-1024}
DATA=(
    data.train_files=/data/train.parquet
    data.train_batch_size=8
    data.max_prompt_length=${prompt_length}
    data.shuffle=False
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=1
    actor_rollout_ref.rollout.max_num_batched_tokens=$((prompt_length * 2))
    '+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config={dump_config_path:"/home/config_generate.json"}'
)
TRAINER=(
    trainer.balance_batch=False
    trainer.n_gpus_per_node=8
    trainer.nnodes=${NNODES}
)
export DUMP_ON=1
export PROMPTS_ONLY=1
python3 -m verl.trainer.main_ppo \\
    actor_rollout_ref.model.path="$MODEL_PATH" \\
    actor_rollout_ref.model.use_remove_padding=True \\
    "${DATA[@]}" \\
    "${ROLLOUT[@]}" \\
    "${TRAINER[@]}" \\
    "$@"
"""


def _once(command: list[str], statuses: tuple[int, ...]) -> float:
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    start = time.perf_counter()
    status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment).returncode
    if status not in statuses:
        raise SystemExit(f"{command[0]} ended with {status}")
    return time.perf_counter() - start


def main() -> None:
    """Print both times and their ratio; fail where it is above the promised one."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "run.sh"
        script.write_text(SCRIPT, encoding="utf-8")
        bare = [sys.executable, "-c", "pass"]
        ours = [str(Path(sys.executable).with_name("consistency")), "check", str(script)]
        pairs = [(_once(bare, (0,)), _once(ours, (0, 1, 3))) for _ in range(ROUNDS)]
    base, verb = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    print(f"bare interpreter {base * 1000:.1f} ms, consistency check run.sh {verb * 1000:.1f} ms")
    print(f"ratio {verb / base:.2f} (promised: at most {REQUIRED:g})")
    if verb / base > REQUIRED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
