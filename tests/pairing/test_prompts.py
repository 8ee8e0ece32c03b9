"""Joining without request ids: by the prompt's hash, by the one-prompt rule, by --map; and paths the user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.errors import EvidenceError, UsageError
from train_infer_consistency.pairing.direct import given, is_direct
from train_infer_consistency.pairing.join import pair
from train_infer_consistency.pairing.mapping import RankMap
from train_infer_consistency.pairing.model import Pair

from .runs import A, Run, dump, ours, reasons


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def engine(run: Run, pid: int, gpu: int, tokens: int = 11, *, tp: int = 1, tp_rank: int = 0, **more: Any) -> None:
    """A prefill by SGLang, whose dump folder has the card's number."""
    parallel = {"tp_size": tp, "pp_size": 1, "tp_rank": tp_rank, "port": 30000 + (gpu - tp_rank), "dp_rank": None}
    place, step = f"step{more.pop('step', 0)}/rank{gpu}", more.pop("number", 0)
    request = ours(more.pop("rid", f"rid-{pid}"), tokens, prompt_hash=more.pop("prompt", "same"))
    run.forward([request], step=step, pid=pid, rank=tp_rank, engine="sglang", parallel=parallel, dump=place, **more)
    dump(run.inference.root / place, tokens)


def actor(
    run: Run, rank: int, dp: int, tokens: int = 11, *, tp: int = 1, count: int = 1, step: int = 0, **more: Any
) -> None:
    """A log_prob pass by slime's Megatron actor."""
    prompt = more.pop("prompt", "same")
    sample = {"request_id": None, "prompt_length": tokens, "response_length": 0, "prompt_hash": prompt}
    parallel = {"tp_size": tp, "pp_size": 1, "cp_size": 1, "dp_rank": dp, "tp_rank": rank % tp}
    place = f"old_log_prob/step{step}/rank{rank}"
    fields = {"phase": "log_prob", "prompt_only": True, "requests": [sample] * count, "dump": place, "rollout_id": 0}
    line = {
        "step": step,
        "rank": rank,
        "request_ids": [],
        "num_requests": count,
        "parallel": parallel,
        **fields,
        **more,
    }
    run.training.line(pid=200 + rank, **line)
    dump(run.training.root / place, tokens)


def ranks(found: Pair) -> tuple[list[int | None], list[int | None], list[list[int | None]]]:
    sides = [[part.rank for part in side.parts] for side in (found.inference, found.training, *found.replicas)]
    return sides[0], sides[1], sides[2:]


def test_by_prompt_hash_over_data_parallel_ranks(run: Run) -> None:
    engine(run, 17, 4)
    for rank in range(3):
        actor(run, rank, dp=rank)
    pairing = run.pair()
    (found,) = pairing.pairs
    assert (found.request_id, found.prompt_hash, found.joined) == (None, "same", "prompt-hash")
    # One is compared; that the others agree with it is to be checked.
    assert ranks(found) == ([0], [0], [[1], [2]])
    assert [reason for _, reason, _ in reasons(pairing, "training")] == ["used"] * 3


def test_shards_and_data_parallel_ranks_together(run: Run) -> None:
    for rank in range(2):
        engine(run, 17 + rank, 4 + rank, tp=2, tp_rank=rank, rid="one")
    for rank in range(4):
        actor(run, rank, dp=rank // 2, tp=2)
    (found,) = run.pair().pairs
    assert ranks(found) == ([0, 1], [0, 1], [[2, 3]])
    assert [part.name for part in found.inference.parts] == ["rank4", "rank5"]


def test_every_engine_that_had_the_prompt_makes_a_pair(run: Run) -> None:
    for number in range(2):
        engine(run, 17 + number, 4 + number)
    actor(run, 0, dp=0)
    pairing = run.pair()
    assert len(pairing.pairs) == 2
    assert {found.inference.parts[0].name for found in pairing.pairs} == {"rank4", "rank5"}


def test_a_map_tells_engines_apart_by_their_folders(run: Run) -> None:
    for number in range(2):
        engine(run, 17 + number, 4 + number)
        actor(run, number, dp=number)
    found = run.pair(mapping=["4:1", "5:0"]).pairs
    assert {(item.inference.parts[0].name, item.training.parts[0].name) for item in found} == {
        ("rank4", "rank1"),
        ("rank5", "rank0"),
    }


def test_another_prompt_is_on_one_side_only(run: Run) -> None:
    engine(run, 17, 4, prompt="other")
    actor(run, 0, dp=0)
    pairing = run.pair()
    assert pairing.pairs == []
    assert reasons(pairing, "training") == [(0, "one-side-only", "")]


def test_one_prompt_again_on_one_engine_is_repeated(run: Run) -> None:
    engine(run, 17, 4, rid="a")
    engine(run, 17, 4, rid="b", step=1, number=1)
    actor(run, 0, dp=0)
    pairing = run.pair()
    assert [found.inference.step for found in pairing.pairs] == [0]
    assert reasons(pairing, "inference") == [(0, "used", ""), (1, "repeated", "")]


def test_one_prompt_with_other_weights_is_ambiguous(run: Run) -> None:
    engine(run, 17, 4, rid="a", weight_version=1)
    engine(run, 17, 4, rid="b", step=1, number=1, weight_version=2)
    actor(run, 0, dp=0)
    assert [reason for _, reason, _ in reasons(run.pair(), "inference")] == ["ambiguous", "ambiguous"]


def test_several_samples_of_one_prompt_and_of_several(run: Run) -> None:
    engine(run, 17, 4)
    actor(run, 0, dp=0, count=2)
    (found,) = run.pair().pairs
    assert found.notes == ("the training side computed this prompt 2 times in one step",)
    other = {"request_id": None, "prompt_length": 11, "response_length": 0, "prompt_hash": "other"}
    same = {**other, "prompt_hash": "same"}
    actor(run, 1, dp=1, step=1, requests=[same, other])
    assert reasons(run.pair(), "training")[1] == (1, "several-ids", "2 of them")


def test_fsdp_ranks_of_one_prompt_are_replicas_not_shards(run: Run) -> None:
    run.forward([ours(None, 11, prompt_hash="same")], step=0)
    dump(run.inference.root / "17" / "step0" / "rank0")
    sample = {"request_id": None, "prompt_length": 11, "response_length": 0, "prompt_hash": "same"}
    for rank in range(2):
        run.train(rank=rank, requests=[sample], num_requests=1, parallel={"world_size": 2, "ulysses_size": 1})
    (found,) = run.pair().pairs
    assert ranks(found) == ([0], [0], [[1]])


# Without logs: the published slime procedure.
def trees(root: Path) -> tuple[Path, Path]:
    return root / "generate", root / "old_log_prob"


def test_one_prompt_rule(tmp_path: Path) -> None:
    generate, train = trees(tmp_path)
    dump(generate / "step0" / "rank4")
    dump(train / "step0" / "rank0")
    pairing = pair(scan(generate), scan(train))
    (found,) = pairing.pairs
    assert (found.joined, *ranks(found)) == ("one-prompt", [4], [0], [])
    assert reasons(pairing, "inference") == reasons(pairing, "training") == [(0, "used", "")]


def test_one_prompt_rule_with_real_slime_dumps(dumps: Path) -> None:
    pairing = pair(scan(dumps / "lookalike" / "vllm_fp32_stat"), scan(dumps / "megatron" / "slime_tp1_n11"))
    (found,) = pairing.pairs
    assert found.inference.tokens.count == found.training.tokens.count == 11


def test_several_ranks_without_a_log_need_a_map(tmp_path: Path) -> None:
    generate, train = trees(tmp_path)
    for rank in (4, 5):
        dump(generate / "step0" / f"rank{rank}")
    for rank in (0, 1):
        dump(train / "step0" / f"rank{rank}")
    pairing = pair(scan(generate), scan(train))
    assert pairing.pairs == []
    detail = "rank4, rank5: say with --map which hold the same model as which"
    assert reasons(pairing, "inference") == [(0, "not-mapped", detail)] * 2
    crossed = pair(scan(generate), scan(train), mapping=RankMap.parse(["4:1,5:0"]))
    assert [ranks(found)[:2] for found in crossed.pairs] == [([4], [1]), ([5], [0])]
    shards = pair(scan(generate), scan(train), mapping=RankMap.parse(["4+5:0+1"]))
    assert [ranks(found)[:2] for found in shards.pairs] == [([4, 5], [0, 1])]
    part = pair(scan(generate), scan(train), mapping=RankMap.parse(["4:0"]))
    assert [ranks(found)[:2] for found in part.pairs] == [([4], [0])]
    assert reasons(part, "inference")[0][1:] == ("not-mapped", "--map does not name it")


def test_several_steps_without_a_log_are_ambiguous_unless_they_cannot_be_the_prompt(tmp_path: Path) -> None:
    generate, train = trees(tmp_path)
    dump(generate / "step0" / "rank4", 1)
    dump(generate / "step1" / "rank4", 11)
    dump(generate / "step2" / "rank4", 1, first=11)
    dump(generate / "step3" / "rank4", 5, first=6)
    (generate / "step4").mkdir()
    dump(train / "step0" / "rank0")
    pairing = pair(scan(generate), scan(train))
    assert [found.inference.step for found in pairing.pairs] == [1]
    assert reasons(pairing, "inference") == [
        (0, "health-request", "one token: a health or dummy request"),
        (1, "used", ""),
        (2, "decode", ""),
        (3, "prefix-cache", "6 tokens were cached"),
        (4, "empty-step", ""),
    ]
    dump(generate / "step5" / "rank4", 30)
    pairing = pair(scan(generate), scan(train))
    assert pairing.pairs == []
    detail = "2 steps have data, and no log says which one is the prompt"
    assert [found for found in reasons(pairing, "inference") if found[1] == "ambiguous"] == [
        (1, "ambiguous", detail),
        (5, "ambiguous", detail),
    ]


def test_a_log_on_the_training_side_alone(run: Run) -> None:
    dump(run.inference.root / "step0" / "rank4")
    for rank in range(2):
        actor(run, rank, dp=rank)
    pairing = run.pair()
    (found,) = pairing.pairs
    assert ranks(found) == ([4], [0], [[1]])
    assert [reason for _, reason, _ in reasons(pairing, "training")] == ["used", "used"]
    assert [ranks(item)[:2] for item in run.pair(mapping=["4:1"]).pairs] == [([4], [1])]
    actor(run, 2, dp=2, prompt="other")
    pairing = run.pair()
    assert pairing.pairs == []
    assert {reason for _, reason, _ in reasons(pairing, "training")} == {"ambiguous"}


def test_a_log_on_the_inference_side_alone(run: Run) -> None:
    engine(run, 17, 4)
    dump(run.training.root / "step0" / "rank0")
    (found,) = run.pair().pairs
    assert (found.joined, *ranks(found)[:2]) == ("one-prompt", [0], [0])


def test_a_map_restricts_what_the_logs_say(run: Run) -> None:
    run.prefill(A, rank=5)
    run.train(A, rank=2)
    assert len(run.pair(mapping=["5:2"]).pairs) == 1
    pairing = run.pair(mapping=["5:0"])
    assert pairing.pairs == []
    assert reasons(pairing, "inference")[0][1] == "not-mapped"


@pytest.mark.parametrize("word", ["", "4", "4:", ":0", "4-0", "4:0:1", "4+:0", "4:0,", "a b:0", "4:0,4:1"])
def test_maps_that_are_none(word: str) -> None:
    with pytest.raises(UsageError, match="--map"):
        RankMap.parse([word])


def test_maps_name_folders_too() -> None:
    assert RankMap.parse(["rank_4:0", "proc77+07:rank1"]) == RankMap(
        ((frozenset(["4"]), frozenset(["0"])), (frozenset(["proc77", "7"]), frozenset(["1"])))
    )


# Paths the user names.
def test_given_dumps_ranks_and_steps(dumps: Path) -> None:
    infer = dumps / "lookalike" / "vllm_fp32_stat" / "step0"
    train = dumps / "megatron" / "core0121_tp2_n12_sp" / "step0"
    for one, other in ((infer, train), (infer / "rank0", train / "rank1"), (infer / "rank0" / "dump.json", train)):
        assert is_direct(one, other)
        (found,) = given(one, other).pairs
        assert found.joined == "given"
        assert found.inference.tokens.count == 11
    assert ranks(given(infer, train).pairs[0]) == ([0], [0, 1], [])
    assert ranks(given(infer / "rank0" / "dump.json", train / "rank1").pairs[0]) == ([0], [1], [])


def test_a_tree_beside_a_dump_is_a_wrong_command_line(dumps: Path) -> None:
    tree, step = dumps / "lookalike" / "vllm_fp32_stat", dumps / "lookalike" / "verl_fsdp1_fp32_stat" / "step0"
    assert not is_direct(tree, tree)
    with pytest.raises(UsageError, match="is a whole tree"):
        is_direct(tree, step)
    with pytest.raises(EvidenceError, match="does not exist"):
        is_direct(tree / "nowhere", step)
