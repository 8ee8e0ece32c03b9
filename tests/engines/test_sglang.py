"""SGLang's own scheduler and model runner on a CPU, woven, with the real msprobe: folders, rows and lines.

Every run is a process of its own (sglang_worker.py), made once for all tests that look at it. What a CPU lacks is stood
in for by demo/sglang_cpu/site.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from train_infer_consistency.capture.log import prompt_hash
from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import open_tree

from .sglang_worker import OURS, prompt

# What of the requirements SGLang imports first.
NEEDED = ("torch", "msprobe", "compressed_tensors", "IPython", "sentencepiece", "setproctitle")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.engines,
    pytest.mark.download,
    pytest.mark.skipif(bool(MISSING), reason=f"not run: no SGLang environment (no {', '.join(MISSING)})"),
]

WORKER = Path(__file__).with_name("sglang_worker.py")
STAND_INS = ROOT / "demo/sglang_cpu/site"
OLD, MIDDLE, NEW = VERSIONS = ("0.5.8", "0.5.9", "0.5.10.post1")
SWITCH, CONFIG = "SGLANG_MSPROBE_DUMP", "MSPROBE_GENERATE_CONFIG"

Trees = Callable[..., Path]


class Run:
    """What the ranks of one engine left behind."""

    def __init__(self, folder: Path, dumps: Path, status: int, error: str) -> None:
        self.folder, self.dumps, self.status, self.error = folder, dumps, status, error

    @functools.cached_property
    def reports(self) -> list[Any]:
        assert self.status == 0, self.error[-3000:]
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("report*.json"))]

    def lines(self) -> list[dict[str, Any]]:
        assert self.status == 0, self.error[-3000:]
        logs = sorted(self.dumps.glob("*/dispatch_log.jsonl"))
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]

    def data(self, dump: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.dumps / dump / "dump.json").read_text())["data"]
        return found


def folders(dumps: Path) -> list[str]:
    """Every folder with a dump in it, below the dump path."""
    return sorted(str(path.parent.relative_to(dumps)) for path in dumps.glob("**/dump.json"))


def modules(data: Mapping[str, Any]) -> dict[str, int]:
    """How often each module was called forward: ``model.norm`` -> 1."""
    calls: dict[str, int] = {}
    for key in data:
        kind, _, rest = key.partition(".")
        if kind == "Module" and ".forward." in rest:
            name = rest.partition(".forward.")[0].rpartition(".")[0]
            calls[name] = calls.get(name, 0) + 1
    return calls


def tokens(data: Mapping[str, Any]) -> int:
    """How many tokens the embedding of a dump saw."""
    (key,) = [key for key in data if key.startswith("Module.model.embed_tokens.") and ".forward." in key]
    return int(data[key]["input_args"][0]["shape"][0])


def write_config(path: Path, dumps: Path, **more: Any) -> Path:
    """The procedure's inference-side file, for all steps."""
    statistics = {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    content = {"task": "statistics", "dump_path": str(dumps), "rank": [], "step": [], "level": "mix"}
    path.write_text(json.dumps({**content, "async_dump": False, "extra_info": True, "statistics": statistics, **more}))
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(
    scenario: str, tree: Path, folder: Path, model: Path, switches: Mapping[str, str], dumps: Path, world: int = 1
) -> Run:
    """Run one engine to its end, each rank a process; the error is the first failing rank's."""
    first = [switches["PYTHONPATH"]] if "PYTHONPATH" in switches else []
    path = os.pathsep.join([*first, *map(str, (STAND_INS, tree, ROOT / "src"))])
    env = {name: value for name, value in os.environ.items() if name not in (SWITCH, CONFIG)}
    env |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    env |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **switches,
        "PYTHONPATH": path,
    }
    if world > 1:
        cores = sorted(os.sched_getaffinity(0))
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(world))
    port = free_port()
    with ExitStack() as stack:
        ranks = []
        for rank in range(world):
            log = stack.enter_context((folder / f"log{rank}").open("wb"))
            command = [sys.executable, str(WORKER), scenario, str(folder), str(model), *map(str, (port, rank, world))]
            ranks.append(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        statuses = [process.wait(timeout=300) for process in ranks]
    logs = [(folder / f"log{rank}").read_text(errors="replace") for rank in range(world)]
    failed = next((rank for rank, status in enumerate(statuses) if status), 0)
    return Run(folder, dumps, statuses[failed], logs[failed])


@pytest.fixture(scope="module")
def trees(release: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """``trees(version, woven=True)``: a release of SGLang, unpacked once, woven in a copy."""

    @functools.cache
    def get(version: str, woven: bool = True) -> Path:
        tree = tmp_path_factory.mktemp(f"sglang-{version}-{'woven' if woven else 'plain'}-")
        with zipfile.ZipFile(release("sglang", version)) as wheel:
            wheel.extractall(tree)
        if woven:
            upstream = load_upstreams()["sglang"]
            for file in weave_upstream(upstream, open_tree(tree, upstream.package), load_lock()).files:
                (tree / file.path).write_bytes(file.after)
        return tree

    return get


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, str(ROOT / "demo/tiny_model.py"), str(folder)], check=True, timeout=240)
    return folder


@pytest.fixture(scope="module")
def runs(trees: Trees, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """All reasons in each release: dumped, switched off, and not woven; two at a time."""

    def one(version: str, mode: str) -> Run:
        folder = tmp_path_factory.mktemp(f"{version}-{mode}-")
        config = write_config(folder / "config.json", folder / "dumps")
        switches = {SWITCH: {"on": "1", "off": "0", "plain": "1"}[mode], CONFIG: str(config)}
        return launch("all_reasons", trees(version, mode != "plain"), folder, model, switches, folder / "dumps")

    wanted = [(version, mode) for version in VERSIONS for mode in ("on", "off", "plain")]
    for version, mode in wanted:
        trees(version, mode != "plain")
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(wanted, pool.map(lambda job: one(*job), wanted), strict=True))


#: What all_reasons makes, in order: request, mode, and the reason or the step.
FORWARDS: tuple[tuple[str, str, str | int], ...] = (
    ("whole", "EXTEND", 0),
    ("whole", "DECODE", "decode"),
    ("whole", "DECODE", "decode"),
    ("packed-1 packed-2", "EXTEND", "packed"),
    ("long", "EXTEND", "chunked"),
    ("long", "EXTEND", "chunked"),
    ("again", "EXTEND", "cached-prefix"),
    ("HEALTH_CHECK_1.0", "EXTEND", "health"),
    ("short", "EXTEND", "too-short"),
    ("failing", "EXTEND", "failed"),
    ("drafted", "EXTEND", "draft"),
    ("drafted", "EXTEND", 1),
    ("last", "EXTEND", 2),
)
DUMPED = {"whole": prompt(1, 20), "drafted": prompt(7, 15), "last": prompt(8, 30)}
LAYER = ("input_layernorm", "mlp", "mlp.act_fn", "mlp.down_proj", "mlp.gate_up_proj", "post_attention_layernorm")
ATTENTION = ("self_attn", "self_attn.attn", "self_attn.o_proj", "self_attn.qkv_proj")
#: What one forward calls, and how often. The root is called by another way than as a module, so it has no entry.
MODULES = {
    **{f"model.layers.{layer}.{name}": 1 for layer in (0, 1) for name in (*LAYER, *ATTENTION)},
    **dict.fromkeys(("model", "model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"), 1),
    "model.layers.0.self_attn.rotary_emb": 2,  # one module for all layers
    "logits_processor": 1,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_forward_has_a_line_and_the_right_reason(version: str, runs: dict[tuple[str, str], Run]) -> None:
    run = runs[version, "on"]
    made = [(" ".join(forward["rids"]), forward["mode"]) for forward in run.reports[0]["forwards"]]
    assert made == [(rids, mode) for rids, mode, _ in FORWARDS]
    seen = [(line["forward_mode"], line["skipped"] or line["step"]) for line in run.lines()]
    assert seen == [(mode, what) for _, mode, what in FORWARDS]
    assert all((line["step"] is None) is (line["skipped"] is not None) for line in run.lines())


@pytest.mark.parametrize("version", VERSIONS)
def test_prompts_are_dumped_into_the_procedures_folders_and_nothing_else_is(
    version: str, runs: dict[tuple[str, str], Run]
) -> None:
    run = runs[version, "on"]
    dumped = [line for line in run.lines() if line["step"] is not None]
    assert [line["dump"] for line in dumped] == ["step0/rank0", "step1/rank0", "step2/rank0"]
    assert folders(run.dumps) == ["step0/rank0", "step1/invalid-rank0-0", "step1/rank0", "step2/rank0"]
    for line, whole in zip(dumped, DUMPED.values(), strict=True):
        assert sorted(path.name for path in (run.dumps / line["dump"]).iterdir()) == [
            "construct.json",
            "dump.json",
            "stack.json",
        ]
        data = run.data(line["dump"])
        assert tokens(data) == len(whole) == line["requests"][0]["prompt_length"] == line["total_num_scheduled_tokens"]
        assert modules(data) == MODULES
        assert any(key.startswith("Functional.linear.") for key in data), "the level is mix: operators too"


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_named_by_id_and_by_hash(version: str, runs: dict[tuple[str, str], Run]) -> None:
    """Before 0.5.10 the runner's batch has the ids from the overlay, later from SGLang."""
    lines = runs[version, "on"].lines()
    ids = [[entry["request_id"] for entry in line["requests"]] for line in lines]
    assert ids == [rids.split() for rids, *_ in FORWARDS]
    dumped = [line["requests"][0]["prompt_hash"] for line in lines if line["step"] is not None]
    assert dumped == [prompt_hash(whole) for whole in DUMPED.values()]
    packed, first, second, cached = (lines[number]["requests"] for number in (3, 4, 5, 6))
    assert [entry["prompt_hash"] for entry in packed] == [prompt_hash(prompt(begin, 10)) for begin in (3, 4)]
    assert [(e["tokens"], e["computed_tokens"], e["prompt_length"]) for e in (*first, *second, *cached)] == [
        (64, 0, 100),
        (36, 64, 100),
        (1, 19, 20),
    ]
    assert {entry["prompt_hash"] for entry in (*first, *second, *cached)} == {None}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_forward_that_raises_is_set_aside(version: str, runs: dict[tuple[str, str], Run]) -> None:
    """It stops in the second layer; its step goes to the next prompt, which is whole."""
    run = runs[version, "on"]
    (line,) = [line for line in run.lines() if line.get("invalid")]
    assert (line["failed_step"], line["dump"]) == (1, "step1/invalid-rank0-0")
    calls = modules(run.data(line["dump"]))
    assert "model.layers.0.mlp" in calls
    assert "model.norm" not in calls


@pytest.mark.parametrize("version", VERSIONS)
def test_a_weight_update_is_counted(version: str, runs: dict[tuple[str, str], Run]) -> None:
    versions = [line["weight_version"] for line in runs[version, "on"].lines()]
    assert versions == [0] * (len(FORWARDS) - 1) + [1]


@pytest.mark.parametrize("version", VERSIONS)
def test_switched_off_is_upstream(version: str, runs: dict[tuple[str, str], Run]) -> None:
    """The same forwards and the same logits bit by bit, and neither this package nor msprobe is imported."""
    off, plain = (runs[version, mode] for mode in ("off", "plain"))
    assert off.reports[0]["forwards"] == plain.reports[0]["forwards"]
    assert off.reports[0]["imported"] == plain.reports[0]["imported"] == []
    assert not off.dumps.exists()
    assert runs[version, "on"].reports[0]["imported"] == ["msprobe", OURS]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dump_changes_no_logit(version: str, runs: dict[tuple[str, str], Run]) -> None:
    assert runs[version, "on"].reports[0]["forwards"] == runs[version, "plain"].reports[0]["forwards"]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_run_had_its_own_sglang(version: str, runs: dict[tuple[str, str], Run], trees: Trees) -> None:
    for mode in ("on", "off", "plain"):
        assert Path(runs[version, mode].reports[0]["sglang"]).is_relative_to(trees(version, mode != "plain"))


def test_a_long_probe_an_idle_rank_and_then_the_first_step(trees: Trees, model: Path, tmp_path: Path) -> None:
    """Neither takes the step that ``"step": [0]`` means."""
    config = write_config(tmp_path / "config.json", tmp_path / "dumps", step=[0])
    switches = {SWITCH: "1", CONFIG: str(config)}
    run = launch("long_probe_and_idle", trees(NEW), tmp_path, model, switches, tmp_path / "dumps")
    assert [line["skipped"] or line["step"] for line in run.lines()] == ["health", "idle", 0, "step-filter"]
    probe, idle, first, _ = run.lines()
    assert probe["requests"][0]["tokens"] == first["requests"][0]["tokens"] == 20
    assert (idle["forward_mode"], idle["requests"]) == ("IDLE", [])
    assert folders(run.dumps) == ["step0/rank0"]
    assert tokens(run.data("step0/rank0")) == 20


def test_two_engines_and_two_ranks_on_one_dump_path(trees: Trees, model: Path, tmp_path: Path) -> None:
    """TP=2 keeps the procedure's folders; a second engine with a card 0 of its own does not write over them."""
    dumps = tmp_path / "dumps"
    config = write_config(tmp_path / "config.json", dumps)
    switches = {SWITCH: "1", CONFIG: str(config), "CONSISTENCY_RUN_ID": "one-run"}
    runs = []
    for name, world in (("pair", 2), ("single", 1)):
        (tmp_path / name).mkdir()
        runs.append(launch("one_prompt", trees(NEW), tmp_path / name, model, switches, dumps, world))
    pair, single = runs
    assert [report["forwards"] for report in pair.reports] == [pair.reports[0]["forwards"]] * 2
    (apart,) = [line for line in single.lines() if line["parallel"]["tp_size"] == 1]
    assert apart["dump"] == f"{apart['pid']}/step0/rank0"
    ranks = {line["parallel"]["tp_rank"]: line for line in pair.lines() if line["parallel"]["tp_size"] == 2}
    assert {rank: line["dump"] for rank, line in ranks.items()} == {0: "step0/rank0", 1: "step0/rank1"}
    assert {line["rank"] for line in ranks.values()} == {0, 1}
    assert folders(dumps) == sorted(["step0/rank0", "step0/rank1", apart["dump"]])
    # A rank of two holds half of the heads: 4 + 2 + 2 of 16 numbers.
    widths = [attention_width(pair.data(dump)) for dump in ("step0/rank0", "step0/rank1", apart["dump"])]
    assert widths == [64, 64, 128]
    assert {line["requests"][0]["prompt_hash"] for line in (apart, *ranks.values())} == {prompt_hash(prompt(1, 20))}


def attention_width(data: Mapping[str, Any]) -> int:
    (key,) = [key for key in data if key.startswith("Module.model.layers.0.self_attn.qkv_proj.") and ".forward." in key]
    return int(data[key]["output"][0]["shape"][-1])


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no file named", f"{SWITCH} is set, {CONFIG} is not; set it to the inference side's msprobe JSON file"),
        ("no JSON", "is no valid JSON"),
        ("msprobe too old", "mindstudio-probe 8.3.3 is too old; install mindstudio-probe >= 26.0.0"),
        ("package missing", "train-infer-consistency is not installed here; install its wheel on every node"),
    ],
)
def test_what_is_known_at_start_up_is_one_line(
    case: str, words: str, trees: Trees, model: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.json", tmp_path / "dumps")
    switches = {SWITCH: "1", CONFIG: str(config)}
    tree, scenario = trees(NEW), "one_prompt"
    if case == "no file named":
        switches[CONFIG] = ""
    elif case == "no JSON":
        config.write_text("{'task': 'statistics'}")
    elif case == "msprobe too old":
        # The metadata of one whose start() takes no rank_id, found before the installed one's.
        metadata = tmp_path / "old/mindstudio_probe-8.3.3.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text("Metadata-Version: 2.1\nName: mindstudio-probe\nVersion: 8.3.3\n")
        switches["PYTHONPATH"] = f"{tmp_path / 'old'}"
    else:
        scenario = "without_this_package"
    run = launch(scenario, tree, tmp_path, model, switches, tmp_path / "dumps")
    assert run.status == 1
    last = run.error.strip().splitlines()[-1]
    assert words in last
    assert not folders(tmp_path)
    assert not list(tmp_path.glob("report*"))


def test_a_whole_engine_with_four_equal_prompts(trees: Trees, model: Path, tmp_path: Path) -> None:
    """SGLang's own processes; one request at a time and no prefix cache, as a collection run needs it."""
    config = write_config(tmp_path / "config.json", tmp_path / "dumps")
    switches = {SWITCH: "1", CONFIG: str(config)}
    run = launch("whole_engine", trees(NEW), tmp_path, model, switches, tmp_path / "dumps")
    (answers,) = run.reports
    assert len(answers) == 4
    lines = run.lines()
    dumped = [line for line in lines if line["step"] is not None]
    assert [line["step"] for line in dumped] == [0, 1, 2, 3]
    assert {line["skipped"] for line in lines} == {None, "decode"}
    assert {line["requests"][0]["request_id"] for line in dumped} == {answer["id"] for answer in answers}
    assert {line["requests"][0]["prompt_hash"] for line in dumped} == {prompt_hash(prompt(1, 20))}
    assert folders(run.dumps) == [f"step{step}/rank0" for step in range(4)]
    # Their inputs differ by the slots they have in the key-value pool.
    first, *others = ({key: entry.get("output") for key, entry in run.data(line["dump"]).items()} for line in dumped)
    assert sum(output is not None for output in first.values()) > len(MODULES)
    assert all(other == first for other in others), "equal prompts have equal outputs"
