"""Finding steps and logs: every folder layout, several hosts, stray folders, and what a path on the command line is."""

from __future__ import annotations

from pathlib import Path

import pytest

from train_infer_consistency.dumps.tree import StepFolder, kind_of, rank_number, ranks_of, scan
from train_infer_consistency.errors import EvidenceError


def make(root: Path, *places: str) -> Path:
    """Make folders (``a/b/``) and dumps or logs (any other)."""
    for place in places:
        path = root / place
        if place.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"data": {}}')
    return root


def only(root: Path) -> StepFolder:
    (step,) = scan(root).steps
    return step


@pytest.mark.parametrize(
    ("place", "step", "process", "stage", "outer", "rank"),
    [
        ("step0/rank0/dump.json", 0, None, None, None, "rank0"),
        ("step12/proc4416/dump.json", 12, None, None, None, "proc4416"),
        ("step0/rank/dump.json", 0, None, None, None, "rank"),
        ("step_0/rank_0/dump.json", 0, None, None, None, "rank_0"),
        ("3680237/step_3/rank_1/dump.json", 3, "3680237", None, None, "rank_1"),
        ("node7-3680237/step3/rank1/dump.json", 3, "node7-3680237", None, None, "rank1"),
        ("node7-3680237-2/step3/rank1/dump.json", 3, "node7-3680237-2", None, None, "rank1"),
        ("old_log_prob/step0/rank0/dump.json", 0, None, "old_log_prob", None, "rank0"),
        ("step_4/old_log_prob/step0/rank0/dump.json", 0, None, "old_log_prob", 4, "rank0"),
        ("step_4/update_actor/step_0/rank_0/dump.json", 0, None, "update_actor", 4, "rank_0"),
    ],
)
def test_layouts(
    tmp_path: Path, place: str, step: int, process: str | None, stage: str | None, outer: int | None, rank: str
) -> None:
    found = only(make(tmp_path, place))
    assert (found.step, found.process, found.stage, found.outer_step) == (step, process, stage, outer)
    assert found.ranks == {rank: (tmp_path / place).parent}


def test_verl_profiler_has_several_stages_a_step(tmp_path: Path) -> None:
    stages = [
        f"step_{step}/{stage}/step0/rank0/dump.json" for step in (1, 2) for stage in ("old_log_prob", "update_actor")
    ]
    found = scan(make(tmp_path, *stages)).steps
    assert [(step.outer_step, step.stage) for step in found] == [
        (1, "old_log_prob"),
        (1, "update_actor"),
        (2, "old_log_prob"),
        (2, "update_actor"),
    ]


def test_empty_steps_empty_ranks_and_folders_set_aside_are_seen(tmp_path: Path) -> None:
    make(tmp_path, "step16/", "step2/rank0/", "step3/invalid-rank0-0/dump.json", "step3/rank0/dump.json")
    assert [(step.step, list(step.ranks), len(step.invalid)) for step in scan(tmp_path).steps] == [
        (16, [], 0),
        (2, ["rank0"], 0),
        (3, ["rank0"], 1),
    ]


def test_nothing_inside_tensor_data_or_claims_is_a_step(tmp_path: Path) -> None:
    make(
        tmp_path,
        "step0/rank0/dump.json",
        "step0/rank0/dump_tensor_data/step9/rank0/dump.json",
        ".consistency/step1/rank0/",
    )
    assert only(tmp_path).step == 0


def test_logs_of_both_sides_wherever_they_lie(tmp_path: Path) -> None:
    make(
        tmp_path,
        "17/dispatch_log.jsonl",
        "host-17/dispatch_log.jsonl",
        "18/update_actor_log.jsonl",
        "update_actor_log.rank1.jsonl",
        "notes.jsonl",
    )
    tree = scan(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in tree.dispatch_logs] == [
        "17/dispatch_log.jsonl",
        "host-17/dispatch_log.jsonl",
    ]
    assert len(tree.update_logs) == 2
    assert len(tree.logs) == 4


def test_several_hosts_in_one_folder_or_in_several(tmp_path: Path) -> None:
    make(tmp_path / "all", "hostA/step0/rank0/dump.json", "hostB/step0/rank8/dump.json")
    inside = scan(tmp_path / "all").steps
    apart = scan(tmp_path / "all" / "hostB", tmp_path / "all" / "hostA", tmp_path / "all" / "hostA").steps
    assert {name for step in inside for name in step.ranks} == {"rank0", "rank8"}
    assert {path for step in inside for path in step.ranks.values()} == {
        path for step in apart for path in step.ranks.values()
    }
    assert len(apart) == 2


def test_the_other_sides_folder_can_be_left_out(tmp_path: Path) -> None:
    make(tmp_path, "generate/step0/rank4/dump.json", "old_log_prob/step0/rank0/dump.json", "99/update_actor_log.jsonl")
    tree = scan(tmp_path, without=[tmp_path / "generate"])
    assert [step.stage for step in tree.steps] == ["old_log_prob"]
    assert len(tree.update_logs) == 1


def test_a_root_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="is no folder; name the dump_path"):
        scan(tmp_path / "nowhere")


def test_kinds_of_paths(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank0/dump.json", "step0/rank1/dump.json", "step0/rank2/", "step0/rank0/stack.json", "a.txt")
    rank = tmp_path / "step0" / "rank0"
    assert kind_of(rank / "dump.json") == "dump"
    assert kind_of(rank) == "rank"
    assert kind_of(tmp_path / "step0") == "step"
    assert kind_of(tmp_path) == "tree"
    assert ranks_of(tmp_path / "step0") == {"rank0": rank, "rank1": tmp_path / "step0" / "rank1"}
    assert ranks_of(rank) == {"rank0": rank}
    assert ranks_of(rank / "dump.json") == {"rank0": rank / "dump.json"}
    for wrong in (rank / "stack.json", tmp_path / "a.txt", tmp_path / "none"):
        with pytest.raises(EvidenceError):
            kind_of(wrong)


@pytest.mark.parametrize(
    ("name", "number"),
    [("rank3", 3), ("rank_12", 12), ("rank", None), ("proc77", None), ("rank3x", None), ("rank٣", None)],
)
def test_rank_numbers(name: str, number: int | None) -> None:
    assert rank_number(name) == number


def test_real_trees(dumps: Path) -> None:
    tree = scan(dumps / "loop" / "ascend_pp2")
    assert {(step.process, *step.ranks) for step in tree.steps} == {("11795", "rank0"), ("11910", "rank1")}
    assert len(tree.dispatch_logs) == 2
    megatron = scan(dumps / "megatron" / "slime_tp2_n12_sp").steps
    assert [(step.stage, list(step.ranks)) for step in megatron] == [("old_log_prob", ["rank0", "rank1"])]
