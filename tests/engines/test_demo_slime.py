"""``make demo-slime``: SGLang's engine and slime's actor agree, in the published procedure's folders, on each rank.

The driver's own steps are used, once; without slime's source the tests are not run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demo.run import CONSISTENCY
from demo.run_slime import RANKS, SlimeDemo, main
from tests.conftest import NO_SOURCE
from train_infer_consistency.capture.log import prompt_hash
from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.wheels.registry import cache_dir

pytestmark = [pytest.mark.engines, pytest.mark.download]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> SlimeDemo:
    made = SlimeDemo(tmp_path_factory.mktemp("demo"))
    try:
        made.install()
    except EvidenceError as error:
        if not str(error).startswith(NO_SOURCE):
            raise
        pytest.skip(NO_SOURCE)
    made.make_model()
    made.submit()
    made.generate()
    made.train_ranks()
    return made


def compare(generate: Path, train: Path) -> tuple[int, dict[str, Any]]:
    """Run the product's verb, and return its status and its JSON object."""
    command = [*CONSISTENCY, "compare", "--json", str(generate), str(train)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def lines(demo: SlimeDemo, log: str) -> list[dict[str, Any]]:
    found = sorted(demo.root.rglob(log))
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_engines_and_ranks_agree(demo: SlimeDemo) -> None:
    status, found = compare(demo.root / "generate", demo.root)
    assert (status, found["verdict"]) == (0, "consistent")
    (pair,) = found["pairs"]["used"]
    # SGLang's ids do not reach slime: the prompt's hash joins, and is what the pair is called by.
    assert pair["request_id"] == prompt_hash(json.loads(demo.requests.read_text())[0]["prompt"])[:16]
    assert found["coverage"] > 0.95
    assert any("saw the same prompt and was checked against" in note for note in pair["notes"])


def test_the_plan_is_named_and_both_sides_had_its_settings(demo: SlimeDemo) -> None:
    _, found = compare(demo.root / "generate", demo.root)
    plan = found["plan"]
    assert (plan["fits"], plan["scenario"], plan["stack"]) == (True, "slime", demo.stack)
    assert (plan["folder"], plan["file"]) == (str(demo.plan), str(demo.root / "plan.toml"))
    said = {path.name: path.read_text() for path in (demo.folder / "logs").iterdir()}
    for setting in ("'max_running_requests': 1", "'disable_radix_cache': True", "'chunked_prefill_size': 16384"):
        assert setting in said["generate"]
    for rank in range(RANKS):
        for setting in ("'n_samples_per_prompt': 2", "'data_pad_size_multiplier': 1", "'num_rollout': 1"):
            assert setting in said[f"train-rank{rank}"]
    variables = json.loads((demo.plan / "runtime_env.json").read_text())["env_vars"]
    assert variables.items() <= demo.job().items()


def test_procedures_folders_and_nothing_else(demo: SlimeDemo) -> None:
    made = sorted(str(path.parent.relative_to(demo.root)) for path in demo.root.rglob("dump.json"))
    assert made == ["generate/step0/rank0", *(f"old_log_prob/step0/rank{rank}" for rank in range(RANKS))]
    for folder in made:
        present = {path.name for path in (demo.root / folder).iterdir()}
        assert present == {"dump.json", "stack.json", "construct.json"}


def test_first_prompt_is_dumped_and_each_rank_has_a_line_about_it(demo: SlimeDemo) -> None:
    records = json.loads(demo.requests.read_text())
    assert [len(record["response"]) for record in records] == [1] * RANKS
    prompt = records[0]["prompt"]
    rollout = lines(demo, "dispatch_log.jsonl")
    # The health probe of a server is none of these: an engine without one answers prompts alone.
    skipped = [line["skipped"] for line in rollout if line["phase"] == "prefill"]
    assert skipped == [None] + ["step-filter"] * (RANKS - 1)
    training = lines(demo, "update_actor_log.jsonl")
    assert sorted(line["rank"] for line in training) == list(range(RANKS))
    assert {(line["prompt_only"], line["rollout_id"], line["step"]) for line in training} == {(True, 0, 0)}
    assert sorted(line["requests"][0]["sample_index"] for line in training) == list(range(RANKS))
    hashes = {line["requests"][0]["prompt_hash"] for line in (*training, rollout[0])}
    assert hashes == {prompt_hash(prompt)}


def test_a_rank_with_other_weights_is_found(demo: SlimeDemo, tmp_path: Path) -> None:
    """Whichever of the two ranks the rollout is compared with."""
    root = shutil.copytree(demo.root, tmp_path / "root")
    path = root / "old_log_prob" / "step0" / "rank1" / "dump.json"
    dump = json.loads(path.read_text())
    (key,) = [key for key in dump["data"] if ".layers.1.mlp.linear_fc2." in key and ".forward." in key]
    for statistic in ("Max", "Min", "Mean", "Norm"):
        dump["data"][key]["output"][0][statistic] *= 1.01
    path.write_text(json.dumps(dump))
    status, found = compare(root / "generate", root)
    assert status != 0
    assert "layers.1.mlp.down" in found["reason"]


def test_cores_are_the_ones_asked_for(demo: SlimeDemo) -> None:
    for rank in range(RANKS):
        log = (demo.folder / "logs" / f"train-rank{rank}").read_text()
        assert f"rank {rank} of {RANKS}: rollout 0 done over megatron-core 0.14.0" in log


def test_without_a_source_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No checkout, no earlier build in the cache, and git reaches nothing; what the registry has is there."""
    cache = tmp_path / "cache" / "train-infer-consistency"
    cache.mkdir(parents=True)
    (cache_dir() / "artifacts").mkdir(parents=True, exist_ok=True)
    (cache / "artifacts").symlink_to(cache_dir() / "artifacts")
    monkeypatch.delenv("SOURCE_slime", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in (("COUNT", "1"), ("KEY_0", f"url.file://{tmp_path}/none/.insteadOf"), ("VALUE_0", "https://")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert main(["--folder", str(tmp_path / "made")]) == 3
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith(f"make demo-slime: {NO_SOURCE}: slime: commit ")
    assert "SOURCE_slime=PATH" in said
    assert not (tmp_path / "made" / "site").exists()
