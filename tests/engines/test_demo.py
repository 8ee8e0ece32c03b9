"""``make demo``: two real engines on a CPU agree, and each planted fault is named where it is and in no other place.

The driver's own steps are used. Wheels and model are made once, and a fault runs only the engine it is planted in,
against the sound run of the other; runs of engines go two at a time. Every fault is planted with vllm-ascend's runner
as the rollout, one with each other rollout engine.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from demo.faults import FAULTS
from demo.generate import PROMPTS, RESPONSE, request_id
from demo.rollouts import ENGINES, vllm
from demo.run import CONSISTENCY, FOREIGN, ROOT, STRATEGIES, Demo, main
from train_infer_consistency.errors import EvidenceError

pytestmark = [pytest.mark.engines, pytest.mark.download]

#: The training engine of the faults in training; one is enough where both were shown to agree.
FAULTY = "fsdp2"
#: The fault of the rollout for the other engines: the one that shows in another row where the weights are packed away.
STALE = "stale-weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    demo = Demo(tmp_path_factory.mktemp("demo"))
    demo.install()
    demo.make_model()
    demo.generate()
    return demo


@pytest.fixture(scope="module")
def runs(base: Demo, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Demo]:
    """``runs("fsdp")``, ``runs("tensor")`` or ``runs(fault)``: the demo whose engines have been run."""

    def strategy(name: str) -> Demo:
        base.train(name)
        return base

    def tensor() -> Demo:
        demo = Demo(tmp_path_factory.mktemp("tensor"), "tensor", base=base)
        demo.generate()
        demo.train("fsdp")
        return demo

    def fault(name: str) -> Demo:
        demo = Demo(tmp_path_factory.mktemp(name), fault=name, base=base)
        if FAULTS[name].engine == "inference":
            demo.generate()
        else:
            demo.train(FAULTY, base.requests)
        return demo

    with ThreadPoolExecutor(2) as pool:
        futures: dict[str, Future[Demo]] = {"tensor": pool.submit(tensor)}
        futures |= {name: pool.submit(strategy, name) for name in STRATEGIES}
        futures |= {name: pool.submit(fault, name) for name in FAULTS}
    return lambda name: futures[name].result()


@pytest.fixture(scope="module")
def others(base: Demo, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Demo, Demo]]:
    """``others("sglang")``: the demo with another rollout engine, sound and with a fault; the wheels are base's."""

    @functools.cache
    def get(engine: str) -> tuple[Demo, Demo]:
        if engine == "vllm" and not (vllm.FOLDER / "engines.stamp").exists():
            pytest.skip(f"not run: no {vllm.FOLDER.name}; `make demo ENGINE=vllm` sets it up")
        sound = Demo(tmp_path_factory.mktemp(engine), base=base, engine=engine)
        sound.tree, sound.model = sound.folder / "rollout", sound.folder / "model"
        sound.rollout.install(sound.tree)
        sound.make_model()
        faulty = Demo(tmp_path_factory.mktemp(f"{engine}-{STALE}"), fault=STALE, base=sound, engine=engine)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Demo.generate, (sound, faulty)))
        sound.train(FAULTY)
        return sound, faulty

    return get


def compare(generate: Path, train: Path) -> tuple[int, dict[str, Any]]:
    """Run the product's verb, and return its status and its JSON object."""
    command = [*CONSISTENCY, "compare", "--json", str(generate), str(train)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def dispatched(demo: Demo) -> list[dict[str, Any]]:
    """The lines of the rollout's log, without those of the pass that some engines warm up with."""
    (log,) = demo.dump("generate").rglob("dispatch_log.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first = next(number for number, line in enumerate(lines) if line["skipped"] != "dummy")
    return lines[first:]


def head(found: dict[str, Any]) -> dict[str, Any]:
    """The logits' module, in the pair whose modules are listed."""
    (module,) = (module for module in found["modules"] if module["module"] == "lm_head")
    return dict(module)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_engines_agree(strategy: str, runs: Callable[[str], Demo]) -> None:
    demo = runs(strategy)
    status, found = compare(demo.dump("generate"), demo.dump(strategy))
    assert (status, found["verdict"]) == (0, "consistent")
    pairs = found["pairs"]["used"]
    assert sorted(pair["request_id"] for pair in pairs) == sorted(map(request_id, PROMPTS))
    assert {pair["verdict"] for pair in pairs} == {"consistent"}
    assert found["coverage"] == 1.0
    assert all("logits: last row only, not comparable" in " ".join(pair["notes"]) for pair in pairs)
    assert head(found)["word"] == "not compared", "statistics of one row and of all rows cannot be compared"


def test_tensors_agree_too_and_the_last_row_of_the_logits_is_compared(runs: Callable[[str], Demo]) -> None:
    demo = runs("tensor")
    status, found = compare(demo.dump("generate"), demo.dump("fsdp"))
    assert (status, found["verdict"]) == (0, "consistent")
    assert len(found["pairs"]["used"]) == len(PROMPTS)
    assert head(found)["word"] in ("equal", "within rounding")
    assert {row["evidence"] for row in head(found)["rows"] if row["kind"] == "output"} == {"tensors"}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_named_where_it_is(fault: str, runs: Callable[[str], Demo], base: Demo) -> None:
    demo, planted = runs(fault), FAULTS[fault]
    runs(FAULTY)
    folders = {"inference": (demo.dump("generate"), base.dump(FAULTY))}
    folders["training"] = (base.dump("generate"), demo.dump(FAULTY))
    status, found = compare(*folders[planted.engine])
    assert (status, found["verdict"]) == (1, "different")
    pairs = found["pairs"]["used"]
    assert len(pairs) == len(PROMPTS)
    assert {pair["first_difference"]["module"] for pair in pairs} == {planted.module}
    assert f"{planted.module}:" in found["reason"]


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "ascend"])
def test_other_rollout_engines_agree_too_and_a_stale_weight_is_named(
    engine: str, others: Callable[[str], tuple[Demo, Demo]]
) -> None:
    sound, faulty = others(engine)
    status, found = compare(sound.dump("generate"), sound.dump(FAULTY))
    assert (status, found["verdict"]) == (0, "consistent")
    assert sorted(pair["request_id"] for pair in found["pairs"]["used"]) == sorted(map(request_id, PROMPTS))
    assert found["coverage"] == 1.0
    skipped = [line["skipped"] for line in dispatched(sound)]
    assert skipped.count(None) == len(PROMPTS), "each prompt whole and alone"
    assert set(skipped) == {None, "decode"}
    status, found = compare(faulty.dump("generate"), sound.dump(FAULTY))
    assert (status, found["verdict"]) == (1, "different")
    firsts = [pair["first_difference"] for pair in found["pairs"]["used"]]
    assert [first["module"] for first in firsts] == [FAULTS[STALE].module] * len(PROMPTS)
    # vLLM's compiled products keep the weights packed in a form of their own, out of msprobe's sight.
    kinds = {"vllm": "output", "sglang": "weight"}
    assert {first["kind"] for first in firsts} == {kinds[engine]}


def test_vllm_stops_before_anything_is_made_where_there_is_no_tcmalloc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("of the run before")
    monkeypatch.setattr(vllm, "find_library", lambda _: None)
    monkeypatch.setattr(vllm, "FOLDER", tmp_path / "environment")
    for more in ([], ["--check"]):
        assert main(["--engine", "vllm", "--folder", str(tmp_path), *more]) == EvidenceError.status
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("apt install libtcmalloc-minimal4")
    assert kept.exists()
    carried = tmp_path / "environment/lib/python3.11/site-packages/some.libs/libtcmalloc_minimal-1a2b.so.4"
    carried.parent.mkdir(parents=True)
    carried.touch()
    vllm.check()
    env = vllm.environment({"PYTHONPATH": "rest", "LD_PRELOAD": "theirs.so"}, tmp_path, tmp_path / "config.json")
    assert env["LD_PRELOAD"].split(":") == [str(carried), str(tmp_path / "environment/lib/libiomp5.so"), "theirs.so"]


def test_both_sides_ran_the_woven_files_with_the_same_ids(base: Demo, runs: Callable[[str], Demo]) -> None:
    """Every prompt alone in the rollout, then its decodes; in training the added pass, then upstream's own."""
    lines = dispatched(base)
    assert [line["skipped"] for line in lines] == ([None] + ["decode"] * (RESPONSE - 1)) * len(PROMPTS)
    asked = [line["requests"][0]["request_id"] for line in lines if line["skipped"] is None]
    assert [name.rpartition("-")[0] for name in asked] == [request_id(prompt) for prompt in PROMPTS]
    for strategy in STRATEGIES:
        (log,) = runs(strategy).dump(strategy).rglob("update_actor_log.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["skipped"] for line in lines] == [None] * 4 + ["not-prompt-only"] * 4
        assert [line["request_ids"] for line in lines[:4]] == [[request_id(prompt)] for prompt in PROMPTS]
        assert {line["run_id"] for line in lines} == {"demo"}


def test_command_passes_the_status_on_and_leaves_a_report(
    base: Demo, runs: Callable[[str], Demo], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The whole driver, with the engines' runs put in their place."""
    demo = runs("stale-weight")
    runs("fsdp2")
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "stale").write_text("of the run before")

    def put(self: Demo, *_: object) -> None:
        self.dump("generate").parent.mkdir(exist_ok=True)
        for source in (demo.dump("generate"), base.dump("fsdp2")):
            target = self.folder / "dumps" / source.name
            if not target.exists():
                target.symlink_to(source)

    for step in ("install", "make_model", "generate", "train"):
        monkeypatch.setattr(Demo, step, put)
    arguments = ["--folder", str(folder), "--strategy", "fsdp2", "--fault", "stale-weight"]
    assert main(arguments) == 1
    assert not (folder / "stale").exists()
    assert (folder / "report" / "fsdp2" / "report.html").stat().st_size > 10_000
    *_, planted, last = capfd.readouterr().out.splitlines()
    assert planted.startswith("planted in layers.1.attn.o of the inference engine")
    assert last == "fsdp2: different, status 1"


def test_an_engine_that_cannot_run_is_said_with_its_last_lines(
    base: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = Demo(tmp_path / "broken", base=base)
    broken.folder.mkdir()
    broken.model = tmp_path / "nowhere"
    monkeypatch.setattr("demo.run.Demo", lambda *_, **__: broken)
    for step in ("install", "make_model", "generate"):
        monkeypatch.setattr(broken, step, lambda: None)
    assert main(["--folder", str(tmp_path / "made"), "--strategy", "fsdp"]) == 4
    said = capfd.readouterr().err.splitlines()
    assert said[-1].startswith("make demo: fsdp ended with status 1; its output is in ")
    assert len(said) > 1


def test_nothing_of_the_shell_leaks_into_an_engine(base: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP_ON", "DUMP_PHASE", "MSPROBE_SEED", "CONSISTENCY_DUMP_ALL", "PYTHONPATH"):
        monkeypatch.setenv(name, "from the shell")
    assert all(name.startswith(FOREIGN) for name in ("DUMP_ON", "MSPROBE_SEED", "CONSISTENCY_DUMP_ALL", "PYTHONPATH"))
    env = base.environment()
    assert "from the shell" not in env.values()
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(base.site)
    made = "import sys, train_infer_consistency as own; print(own.__file__)"
    done = subprocess.run([sys.executable, "-c", made], env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(base.site), "the wheel's own package, not the checkout's"
    assert ROOT not in Path(done.stdout.strip()).parents
