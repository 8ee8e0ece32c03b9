"""The real ``msprobe graph_visualize`` opens what ``--msprobe-view`` writes, and matches what has a partner."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from train_infer_consistency.cli.main import main

pytestmark = pytest.mark.engines
MSPROBE = Path(sys.executable).parent / "msprobe"


@dataclass
class Graph:
    """One side's nodes in the viewer's database.

    Attributes:
        nodes: all, the root among them.
        matched: those that have a partner on the other side.
        rows: (tensor, msprobe's own result) of what msprobe compared.
    """

    nodes: set[str]
    matched: set[str]
    rows: list[tuple[str, str]]

    @property
    def alone(self) -> set[str]:
        """The canonical names of nodes without a partner."""
        return {name.removeprefix("Module.").rsplit(".", 3)[0] for name in self.nodes - self.matched}


def visualize(generate: Path, train: Path, output: Path, mapping: Path | None = None) -> tuple[Graph, Graph]:
    """Run the viewer's converter: (inference side, training side) of its database."""
    command = [str(MSPROBE), "graph_visualize", "-tp", str(generate), "-gp", str(train), "-o", str(output)]
    command += [] if mapping is None else ["-lm", str(mapping)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (database,) = output.glob("*.vis.db")
    connection = sqlite3.connect(database)
    sides = []
    for source in ("NPU", "Bench"):
        nodes, matched, rows = set(), set(), []
        query = "SELECT node_name, matched_node_link, input_data, output_data FROM tb_nodes WHERE data_source = ?"
        for name, link, *data in connection.execute(query, (source,)):
            nodes.add(name)
            if json.loads(link or "[]"):
                matched.add(name)
            tensors = {key: value for text in data if text for key, value in json.loads(text).items()}
            rows += [(key, value["Result"]) for key, value in tensors.items() if "Result" in value]
        sides.append(Graph(nodes, matched, rows))
    connection.close()
    return sides[0], sides[1]


def write(one: Path, two: Path, folder: Path) -> None:
    assert main(["compare", str(one), str(two), "--msprobe-view", str(folder)]) in (0, 3)


# Of the documents' own command msprobe matches 1 node of 27, with rules by hand 23, all of them red.
@pytest.mark.parametrize(
    ("train", "matched", "alone"),
    [
        ("verl_megatron_fp32_stat", 23, {"rope", "act_and_mul"}),
        ("slime_megatron_list_fp32_stat", 23, {"rope", "act_and_mul"}),
        ("verl_fsdp1_fp32_stat", 21, {"rope", "act_and_mul", "core"}),
        ("verl_fsdp2_fp32_stat", 21, {"rope", "act_and_mul", "core"}),
    ],
)
def test_everything_that_has_a_partner_is_matched(
    dumps: Path, tmp_path: Path, train: str, matched: int, alone: set[str]
) -> None:
    folder = dumps / "lookalike"
    write(folder / "vllm_fp32_stat" / "step0", folder / train / "step0", tmp_path / "view")
    view = tmp_path / "view"
    one, two = visualize(view / "generate", view / "train", tmp_path / "out")
    assert (len(one.nodes), len(one.matched), len(two.matched)) == (27, matched, matched)
    assert {name.rpartition(".")[2] for name in one.alone} == alone, "no partner by construction, and nothing else"
    assert len(one.rows) > 50
    assert {result for _, result in one.rows} == {"pass"}, "bit-equal models are not red"


def test_different_dtypes_are_not_red_by_themselves(dumps: Path, tmp_path: Path) -> None:
    folder, view = dumps / "lookalike", tmp_path / "view"
    write(folder / "vllm_bf16_stat" / "step0", folder / "verl_fsdp1_fp32_stat" / "step0", view)
    one, _ = visualize(view / "generate", view / "train", tmp_path / "out")
    assert len(one.matched) == 21
    assert {result for _, result in one.rows} == {"pass"}


def test_shards_and_a_whole_run_step_by_step(dumps: Path, tmp_path: Path) -> None:
    view = tmp_path / "view"
    write(dumps / "megatron" / "hf_n12" / "step0", dumps / "megatron" / "core0121_tp2_n12_sp" / "step0", view)
    one, two = visualize(view / "generate", view / "train", tmp_path / "out")
    assert len(one.matched) == len(two.matched) >= 21
    run = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    write(run / "generate_sequence", run / "update_actor", tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "train").iterdir()) == ["step0", "step1"]
    one, two = visualize(tmp_path / "run" / "generate", tmp_path / "run" / "train", tmp_path / "out2")
    assert len(one.matched) > 20


def test_the_mapping_serves_the_original_dumps(dumps: Path, tmp_path: Path) -> None:
    folder = dumps / "lookalike"
    sides = [folder / "vllm_fp32_stat" / "step0", folder / "verl_megatron_fp32_stat" / "step0"]
    write(sides[0], sides[1], tmp_path / "view")
    copies = [tmp_path / "original" / side.parent.name for side in sides]
    for side, copy in zip(sides, copies, strict=True):
        shutil.copytree(side, copy / "step0")
        for stack in copy.rglob("stack.json"):  # emptied in the fixture; msprobe maps nothing without it
            stack.write_text('{"0": [["none"], ["none"]]}')
    one, two = visualize(copies[0], copies[1], tmp_path / "out", tmp_path / "view" / "layer_mapping.yaml")
    assert (len(one.matched), len(two.matched)) == (23, 23)
    plain, _ = visualize(copies[0], copies[1], tmp_path / "plain")
    assert len(plain.matched) == 1, "without the mapping msprobe matches the root alone"
