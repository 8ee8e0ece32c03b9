"""Every name for why a step is or is not used, each from the smallest run that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.pairing.join import pair
from train_infer_consistency.pairing.model import Reason

from .runs import A, B, Run, dump, ours, reasons


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def inference(run: Run) -> list[tuple[int | None, str, str]]:
    return reasons(run.pair(), "inference")


def training(run: Run) -> list[tuple[int | None, str, str]]:
    return reasons(run.pair(), "training")


def test_used(run: Run) -> None:
    run.prefill(f"{A}-1a2b3c4d")
    run.train(A)
    assert inference(run) == [(0, "used", "")]
    assert training(run) == [(0, "used", "")]


# What our loggers write, dumped or not, and what is said of it.
OURS: list[tuple[str, list[dict[str, Any]], str | None, str]] = [
    ("several-requests", [ours(A, 7), ours(B, 11)], "packed", "2 requests"),
    (
        "several-requests",
        [ours(A, 7), ours(B, 1, type="cached", phase="decode")],
        "packed",
        "2 requests, 1 of them decoding",
    ),
    ("chunked", [ours(A, 64, prompt_length=95)], "chunked", "64 of 95 tokens in this step"),
    (
        "chunked",
        [ours(A, 31, type="cached", computed_tokens=64, prompt_length=95)],
        "chunked",
        "31 of 95 tokens in this step",
    ),
    (
        "prefix-cache",
        [ours(A, 15, computed_tokens=80, prompt_length=95)],
        "cached-prefix",
        "80 tokens came from the prefix cache",
    ),
    ("decode", [ours(A, 1, type="cached", phase="decode", computed_tokens=95)], "decode", ""),
    ("speculative", [ours(A, 3, type="cached", phase="decode", computed_tokens=95, draft_tokens=2)], "speculative", ""),
    ("resumed", [ours(A, 99, type="cached", resumed=True)], "resumed", ""),
    ("dummy", [], "dummy", ""),
    ("no-prompt-tokens", [ours(A, 9, prompt_length=None, prompt_hash=None)], "no-prompt-tokens", ""),
    ("health-request", [ours("HEALTH_CHECK_0.4", 2)], "health", ""),
]


@pytest.mark.parametrize("dumped", [False, True], ids=["skipped", "dumped all the same"])
@pytest.mark.parametrize(("reason", "entries", "skipped", "detail"), OURS)
def test_forwards_that_our_logger_did_not_want(
    run: Run, reason: str, entries: list[dict[str, Any]], skipped: str | None, detail: str, dumped: bool
) -> None:
    phase = "prefill" if any(entry["phase"] == "prefill" for entry in entries) else "decode"
    if dumped:
        dump(run.inference.root / "17" / "step0" / "rank0", sum(entry["tokens"] for entry in entries))
    run.forward(entries, step=0 if dumped else None, phase=phase, skipped=None if dumped else skipped)
    run.train(A)
    assert inference(run) == [(0 if dumped else None, reason, detail)]
    (said,) = training(run)
    if entries and entries[0]["type"] == "new" and entries[0]["request_id"] == A:
        # The training step is told why its request has no partner.
        assert said == (0, reason, f"on the inference side: {detail or Reason(reason).text}")
    else:
        assert said == (0, "one-side-only", "")


@pytest.mark.parametrize(
    ("skipped", "reason", "detail"),
    [
        ("idle", "dummy", "an idle rank beside a busy one"),
        ("draft", "speculative", "the draft model's forward"),
        ("too-short", "too-short", ""),
        ("step-filter", "filtered", "by the step filter"),
        ("rank-filter", "filtered", "by the rank filter"),
        ("target_verify_v9", "skipped", "target_verify_v9"),
    ],
)
def test_our_loggers_other_words(run: Run, skipped: str, reason: str, detail: str) -> None:
    run.forward([ours(A, 11)], step=None, skipped=skipped)
    run.train(A)
    assert inference(run) == [(None, reason, detail)]


def test_a_failed_forward_and_its_folder(run: Run) -> None:
    run.forward([ours(A, 11)], step=None, skipped="failed", invalid=True, failed_step=0)
    dump(run.inference.root / "17" / "step0" / "invalid-rank0-0")
    run.train(A)
    assert (None, "failed", "its dump was set aside as invalid") in inference(run)


# The documented form says less: the phase of the batch, and each request's tokens.
def documented(request_id: str, kind: str, tokens: int) -> dict[str, Any]:
    return {"request_id": request_id, "type": kind, "tokens": tokens}


def test_documented_several_requests(run: Run) -> None:
    run.forward([documented(A, "new", 7), documented(B, "new", 11)], step=0)
    run.train(A)
    assert inference(run) == [(0, "several-requests", "2 requests")]


def test_documented_decode_and_dummy(run: Run) -> None:
    run.forward([documented(A, "cached", 1)], step=0, phase="decode")
    run.forward([], step=1)
    run.train(A)
    assert inference(run) == [(0, "decode", ""), (1, "dummy", "")]


def test_documented_chunked_prefill(run: Run) -> None:
    # Two prefill lines for one id, 64 and 31 tokens, prompt 95.
    run.forward([documented(A, "new", 64)], step=0)
    run.forward([documented(A, "cached", 31)], step=1)
    dump(run.inference.root / "17" / "step0" / "rank0", 64)
    run.train(A, requests=[{"request_id": A, "prompt_length": 95, "response_length": 0}], dumped=95)
    assert inference(run) == [(0, "chunked", "prefill in 2 steps"), (1, "chunked", "")]
    assert training(run) == [(0, "chunked", "on the inference side: prefill in 2 steps")]


def test_documented_chunked_prefill_without_any_prompt_length(run: Run) -> None:
    run.forward([documented(A, "new", 64)], step=0)
    run.forward([documented(A, "cached", 31)], step=1)
    run.train(A)
    assert inference(run)[0] == (0, "chunked", "prefill in 2 steps")


def test_documented_prefix_cache(run: Run) -> None:
    # One prefill line of 15 tokens, training prompt 95.
    run.forward([documented(A, "new", 15)], step=0)
    run.train(A, requests=[{"request_id": A, "prompt_length": 95, "response_length": 0}], dumped=95)
    assert inference(run) == [(0, "prefix-cache", "80 tokens came from the prefix cache")]


def test_documented_prefix_cache_by_the_positions_in_the_dump(run: Run) -> None:
    run.prefill(A, 15, first=80)
    run.train(A, dumped=95)
    assert inference(run) == [(0, "prefix-cache", "80 tokens came from the prefix cache")]
    assert training(run) == [(0, "prefix-cache", "on the inference side: 80 tokens came from the prefix cache")]


def test_documented_resumed_request_is_used_by_its_first_prefill(run: Run) -> None:
    run.prefill(A, 95, step=0)
    run.forward([documented(A, "cached", 120)], step=1)
    run.train(A, requests=[{"request_id": A, "prompt_length": 95, "response_length": 0}], dumped=95)
    assert inference(run)[0] == (0, "used", "")
    assert inference(run)[1][1] != "used"


def test_documented_one_token_prompt_is_no_decode(run: Run) -> None:
    # The attention state calls it a decode.
    run.prefill(A, 1, phase="decode")
    run.train(A, dumped=1)
    assert inference(run) == [(0, "used", "")]


def test_dummy_step_and_trailing_empty_step(run: Run) -> None:
    # step0 has one token, step16 is empty, the log has steps 0 to 15.
    for step in range(16):
        run.prefill(A if step == 0 else f"other-{step}", 95, step=step, dumped=1 if step == 0 else None)
    (run.inference.root / "17" / "step16").mkdir()
    run.train(A, dumped=95)
    found = inference(run)
    detail = "the log says 95 tokens, the dump has 1: a dummy run took this step's number"
    assert found[0] == (0, "dummy", detail)
    assert found[-1] == (16, "empty-step", "")


def test_a_dump_of_fewer_tokens_than_its_line_is_of_another_forward(run: Run) -> None:
    run.prefill(A, 95, dumped=30)
    run.train(A, dumped=95)
    assert inference(run) == [
        (0, "ambiguous", "the log says 95 tokens, the dump has 30: they are of two forwards"),
    ]


def test_empty_dump(run: Run, dumps: Path) -> None:
    run.prefill(A, dumped=None)
    folder = run.inference.root / "17" / "step0" / "rank0"
    folder.mkdir(parents=True)
    killed = dumps / "lookalike" / "killed_before_stop" / "step0" / "proc25227" / "dump.json"
    (folder / "dump.json").write_bytes(killed.read_bytes())
    run.train(A)
    assert inference(run) == [(0, "empty-step", "")]


def test_damaged_dump(run: Run) -> None:
    run.prefill(A)
    (run.inference.root / "17" / "step0" / "rank0" / "dump.json").write_text("{")
    run.train(A)
    ((step, reason, detail),) = inference(run)
    assert (step, reason) == (0, "unreadable")
    assert "is no msprobe dump" in detail


def test_step_without_dump(run: Run) -> None:
    run.prefill(A, dumped=None)
    run.train(A)
    assert inference(run) == [(0, "no-dump", "")]
    run.prefill(B, step=1)
    run.train(B, step=1, dumped=None)
    assert training(run)[1] == (1, "no-dump", "")


def test_dump_without_log_line(run: Run) -> None:
    run.prefill(A)
    run.train(A)
    dump(run.inference.root / "17" / "step9" / "rank0")
    dump(run.training.root / "step7" / "rank0")
    assert inference(run)[1:] == [(9, "no-log-line", "")]
    assert training(run)[1:] == [(7, "no-log-line", "")]


def test_id_on_one_side_only(run: Run) -> None:
    run.prefill(A)
    run.train(B)
    assert inference(run) == [(0, "one-side-only", "")]
    assert training(run) == [(0, "one-side-only", "")]


def test_training_micro_batch_with_several_ids(run: Run) -> None:
    run.prefill(A)
    run.train(A, B)
    assert training(run) == [(0, "several-ids", "2 of them")]


def test_training_without_ids(run: Run) -> None:
    run.prefill(A)
    run.train()
    run.train(None, step=1)
    run.train("None", step=2)
    assert [found[:2] for found in training(run)] == [(0, "no-request-id"), (1, "no-request-id"), (2, "no-request-id")]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"phase": "update_actor"}, "it is update_actor"),
        ({"phase": "update_actor", "skipped": "phase", "step": None}, "DUMP_PHASE names another one"),
        (
            {"phase": "log_prob", "skipped": "not-prompt-only", "step": None},
            "with PROMPTS_ONLY only the added pass is dumped",
        ),
        ({"phase": "log_prob", "skipped": "reference", "step": None}, "the reference model's pass"),
    ],
)
def test_phase_other_than_log_prob(run: Run, fields: dict[str, Any], detail: str) -> None:
    run.prefill(A)
    run.train(A, **{"dumped": None, **fields})
    assert training(run) == [(fields.get("step", 0), "phase", detail)]


def samples(request_id: str, versions: list[int | None]) -> list[dict[str, Any]]:
    return [{"request_id": request_id, "prompt_length": 11, "response_length": 0, "rollout_weight_versions": versions}]


@pytest.mark.parametrize(
    ("numbers", "used"),
    [
        # Fully asynchronous: the numbers are of the weights.
        ({A: (3, [3, 3]), B: (3, [2, 2])}, {A}),
        ({A: (3, [3, 4]), B: (3, [3, 3])}, {A, B}),
        # The trainer is a step ahead of its own rollout.
        ({A: (3, [2, 2]), B: (4, [3, 3])}, {A, B}),
        ({A: (3, [2, 2]), B: (5, [3, 3])}, {A}),
        # Nothing is known.
        ({A: (3, [None, None]), B: (None, [1, 1])}, {A, B}),
    ],
)
def test_different_weight_version(
    run: Run, numbers: dict[str, tuple[int | None, list[int | None]]], used: set[str]
) -> None:
    for step, (name, (version, versions)) in enumerate(numbers.items()):
        run.prefill(name, step=step)
        run.train(name, step=step, weight_version=version, requests=samples(name, versions))
    pairing = run.pair()
    assert {found.request_id for found in pairing.pairs} == used
    for _, reason, _ in reasons(pairing, "training"):
        assert reason in ("used", "weight-version")


@pytest.mark.parametrize(
    ("numbers", "used"),
    [
        # Every sample of the run is one update old: no distance tells that from a trainer that counts ahead.
        ({A: (3, [2, 2]), B: (4, [3, 3])}, set()),
        ({A: (3, [3, 3]), B: (4, [3, 3])}, {A}),
        ({A: (3, [3, 3]), B: (None, [2, 2])}, {A, B}),
    ],
)
def test_weight_version_beside_the_trainers_step_is_the_rollouts(
    run: Run, numbers: dict[str, tuple[int | None, list[int | None]]], used: set[str]
) -> None:
    for step, (name, (version, versions)) in enumerate(numbers.items()):
        run.prefill(name, step=step)
        run.train(name, step=step, weight_version=version, trainer_step=step + 9, requests=samples(name, versions))
    assert {found.request_id for found in run.pair().pairs} == used


def test_different_weights_are_said_with_their_numbers(run: Run) -> None:
    for step, (name, version) in enumerate(((A, 3), (B, 5))):
        run.prefill(name, step=step)
        run.train(name, step=step, weight_version=version, requests=samples(name, [3, 3]))
    assert training(run)[1] == (1, "weight-version", "the rollout had weights 3, the trainer 5")


def test_a_second_step_of_one_request(run: Run) -> None:
    run.prefill(A)
    run.train(A, step=3)
    run.train(A, step=1)
    assert training(run) == [(1, "used", ""), (3, "repeated", "")]


def test_a_response_in_the_training_forward_is_noted(run: Run) -> None:
    run.prefill(A)
    run.train(A, requests=[{"request_id": A, "prompt_length": 11, "response_length": 4}], dumped=15)
    (found,) = run.pair().pairs
    assert found.notes == (
        "11 tokens on the inference side, 15 on the training side: a response, or padding",
        "the training side's forward has 4 tokens of the response too",
    )


def test_torn_and_damaged_lines_are_reported_beside_the_pairs(run: Run) -> None:
    run.prefill(A)
    run.train(A)
    for log in (run.inference.root / "17" / "dispatch_log.jsonl", run.training.root / "99" / "update_actor_log.jsonl"):
        log.write_text(log.read_text() + "\0\n" + '{"source": "disp')
    pairing = run.pair()
    assert len(pairing.pairs) == 1
    assert [problem.rpartition(": ")[2] for problem in pairing.problems] == [
        "this line is no JSON",
        "the last line ends too early",
    ] * 2


def test_every_reason_has_words() -> None:
    assert all(reason.text for reason in Reason)
    assert len({reason.text for reason in Reason}) == len(Reason)


def test_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    pairing = pair(scan(tmp_path / "a"), scan(tmp_path / "a"))
    assert (pairing.pairs, list(pairing.steps("inference")), pairing.problems) == ([], [], [])
