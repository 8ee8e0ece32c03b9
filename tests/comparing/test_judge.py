"""Bounds, noise, bitwise equality and coverage: what each allows and what it does not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_infer_consistency.comparing.fusion import Stats
from train_infer_consistency.comparing.judge import (
    CAP,
    DIFFERS,
    EQUAL,
    WITHIN,
    Bounds,
    default_bound,
    judge_statistics,
    read_bounds,
)
from train_infer_consistency.comparing.tensors import judge_elements, tensor_errors
from train_infer_consistency.errors import EvidenceError, UsageError
from train_infer_consistency.pairing.direct import given as given_pair

from .cases import Data, changed, direct, dump_of, find, leaves, scale, step0

FP32, BF16, FP16 = "torch.float32", "torch.bfloat16", "torch.float16"


@given(st.sampled_from([FP32, BF16, FP16, "torch.unheard_of"]), st.integers(0, 200))
def test_bounds_grow_with_depth_and_stay_below_a_drift_of_9_percent(dtype: str, depth: int) -> None:
    bound, deeper = default_bound(dtype, dtype, depth), default_bound(dtype, dtype, depth + 1)
    assert 0 < bound <= deeper <= CAP < 0.09 / 1.09


@given(st.integers(0, 100))
def test_bounds_follow_the_coarser_dtype_and_an_unknown_one_is_strict(depth: int) -> None:
    assert default_bound(FP32, BF16, depth) == default_bound(BF16, BF16, depth) > default_bound(FP16, FP16, depth)
    assert default_bound(FP16, FP16, depth) > default_bound(FP32, FP32, depth)
    assert default_bound("torch.float3?", FP32, depth) == default_bound(FP32, FP32, depth)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([BF16, FP16]))
def test_independent_roundings_stay_within(seed: int, depth: int, dtype: str) -> None:
    """Simulated: each of depth layers rounds once more; the error that comes out is within the bound."""
    generator = np.random.default_rng(seed)
    unit = {BF16: 2.0**-8, FP16: 2.0**-11}[dtype]
    exact = generator.normal(size=4096)
    rounded = exact * np.prod(1 + generator.uniform(-unit, unit, (depth, 4096)), axis=0)
    errors = tensor_errors(exact.reshape(64, 64), rounded.reshape(64, 64), (dtype, dtype), False)
    word, _ = judge_elements(errors, bound=default_bound(dtype, dtype, depth), exact_needed=False)
    assert word == WITHIN
    drifted = tensor_errors(exact.reshape(64, 64), 1.09 * rounded.reshape(64, 64), (dtype, dtype), False)
    assert judge_elements(drifted, bound=default_bound(dtype, dtype, depth), exact_needed=False)[0] == DIFFERS


STATS = Stats(3.0, -2.0, 0.01, 8.0)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (STATS, EQUAL),
        (STATS._replace(norm=8.0 * (1 + 1e-7)), EQUAL),  # another order of one sum
        (STATS._replace(norm=8.0 * (1 + 5e-4)), WITHIN),
        (STATS._replace(norm=8.0 * 1.002), DIFFERS),
        (STATS._replace(max=3.0 * 1.0015), WITHIN),  # a single element may be off twice as far
        (STATS._replace(max=3.0 * 1.003), DIFFERS),
        (STATS._replace(mean=0.0101), WITHIN),  # of a root mean square of 1
        (STATS._replace(mean=0.012), DIFFERS),
    ],
)
def test_words(other: Stats, word: str) -> None:
    assert judge_statistics(STATS, other, 64, bound=1e-3, exact_extremes=False)[0] == word


def test_a_parameter_of_one_dtype_has_the_same_extremes_or_is_another() -> None:
    other = STATS._replace(max=3.0 * (1 + 1e-6))
    assert judge_statistics(STATS, other, 64, bound=1e-3, exact_extremes=True)[0] == DIFFERS
    assert judge_statistics(STATS, other, 64, bound=1e-3, exact_extremes=False)[0] == WITHIN


def test_zeros_are_equal_and_no_division() -> None:
    zero = Stats(0.0, 0.0, 0.0, 0.0)
    assert judge_statistics(zero, zero, 8, bound=1e-3, exact_extremes=False)[0] == EQUAL
    word, errors, worst = judge_statistics(zero, STATS, 8, bound=1e-3, exact_extremes=False)
    assert word == DIFFERS
    assert worst > 1
    assert all(error is not None and math.isfinite(error) for error in errors)


@pytest.mark.parametrize(("error", "word"), [(4.6e-6, WITHIN), (8e-6, DIFFERS)])
def test_the_norm_of_a_large_matrix_is_rounded_as_it_is_added_up(error: float, word: str) -> None:
    # Measured with torch on a CPU: a qkv weight of 512 x 256 in fp32, whole against its q, k and v.
    other, bound = STATS._replace(norm=8.0 * (1 + error)), default_bound("torch.float32", "torch.float32", 0)
    assert judge_statistics(STATS, other, 512 * 256, bound=bound, exact_extremes=True)[0] == word
    assert judge_statistics(STATS, other, 64, bound=bound, exact_extremes=True)[0] == DIFFERS
    assert judge_statistics(STATS, other, 512 * 256, bound=0.0, exact_extremes=True)[0] == DIFFERS


def test_figures_of_elements() -> None:
    one = np.array([[1.0, 2.0, 2.0], [3.0, 4.0, 0.0]], dtype=np.float32)
    two = one.copy()
    two[1, 1] = np.nextafter(np.float32(4), np.float32(5))
    two[1, 1] = np.nextafter(two[1, 1], np.float32(5))
    errors = tensor_errors(one, two, (FP32, FP32), False)
    step = float(two[1, 1]) - 4.0
    assert (errors.ulp, errors.token, errors.exact) == (2, 1, False)
    assert errors.max_abs == pytest.approx(step)
    assert errors.max_rel == pytest.approx(step / 4)
    assert errors.relative == pytest.approx(step / math.sqrt(34), rel=1e-3)
    assert errors.token_relative == pytest.approx(step / 5, rel=1e-3)
    assert errors.cosine == pytest.approx(1.0)
    assert tensor_errors(one, -one, (FP32, FP32), False).cosine == pytest.approx(-1.0)


@pytest.mark.parametrize(("dtype", "step"), [(BF16, 2.0**-7), (FP16, 2.0**-10), (FP32, 2.0**-23)])
def test_ulp_counts_representable_numbers_of_the_dtype(dtype: str, step: float) -> None:
    one = np.array([[1.0, -1.0]], dtype=np.float32)
    two = np.array([[1.0 + 3 * step, -1.0]], dtype=np.float32)
    assert tensor_errors(one, two, (dtype, dtype), False).ulp == 3
    near_zero = np.array([[0.0, -1.0]], dtype=np.float32)
    assert tensor_errors(near_zero, np.array([[-0.0, -1.0]], dtype=np.float32), (dtype, dtype), False).ulp == 0


def test_elements_that_are_not_finite_are_not_compared() -> None:
    one = np.array([[1.0, np.nan]])
    with pytest.raises(EvidenceError, match="not all finite"):
        tensor_errors(one, np.ones((1, 2)), (FP32, FP32), False)


class TestOptions:
    def off(self, dumps: Path, tmp_path: Path, factor: float, name: str = "verl_fsdp1_fp32_stat") -> tuple[Path, Path]:
        def change(data: Data) -> None:
            for leaf in leaves(find(data, "layers.1._fsdp_wrapped_module.mlp.down_proj")["output"]):
                scale(leaf, factor)

        look = dumps / "lookalike"
        infer = name.replace("verl_fsdp1", "vllm")
        return dump_of(look / infer), changed(dump_of(look / name), tmp_path / "off" / "rank0", change)

    def test_bitwise(self, dumps: Path, tmp_path: Path) -> None:
        ours, theirs = self.off(dumps, tmp_path, 1 + 1e-6)
        assert direct(ours, theirs).verdict == "consistent"
        found = direct(ours, theirs, bitwise=True)
        assert found.verdict == "different"
        assert found.first_difference is not None
        assert found.first_difference.module == "layers.1.mlp.down"

    def test_bitwise_by_crc_and_by_elements(self, dumps: Path) -> None:
        look = dumps / "lookalike"
        pair = look / "tensor_pair"
        assert direct(step0(pair / "infer"), step0(pair / "fsdp1"), bitwise=True).verdict == "consistent"
        mixed = direct(dump_of(look / "vllm_bf16_stat"), dump_of(look / "verl_fsdp1_fp32_stat"), bitwise=True)
        assert mixed.verdict == "different"

    def test_a_bounds_file_speaks_for_its_modules_only(self, dumps: Path, tmp_path: Path) -> None:
        ours, theirs = self.off(dumps, tmp_path, 1.01)
        assert direct(ours, theirs).verdict == "different"
        file = tmp_path / "bounds.toml"
        file.write_text('[[bound]]\nmodule = "layers.*.mlp.down"\nkind = "output"\nrelative = 0.02\n')
        assert direct(ours, theirs, patterns=read_bounds(file)).verdict == "consistent"
        file.write_text('[[bound]]\nmodule = "layers.0.*"\nrelative = 0.02\n')
        assert direct(ours, theirs, patterns=read_bounds(file)).verdict == "different"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[[bound]]",
            "bound = 3",
            '[[bound]]\nmodule = "a"\nrelative = -1',
            '[[bound]]\nmodule="a"\nrelative=1\nx=1',
            "[",
        ],
    )
    def test_a_bounds_file_that_means_nothing_is_a_wrong_command_line(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "bounds.toml"
        file.write_text(text)
        with pytest.raises(UsageError):
            read_bounds(file)
        with pytest.raises(UsageError):
            read_bounds(tmp_path / "missing.toml")

    def test_measured_noise_raises_a_bound_but_never_hides_a_drift(self, dumps: Path, tmp_path: Path) -> None:
        from train_infer_consistency.comparing.compare import Options
        from train_infer_consistency.comparing.pairs import compare

        ours, theirs = self.off(dumps, tmp_path, 1.0004)
        noise = dump_of(dumps / "lookalike" / "verl_fsdp1_bf16_stat")  # the training engine in another precision
        pairing = given_pair(ours, theirs)
        assert compare(pairing, Options()).verdict == "different"
        assert compare(pairing, Options(), noise).verdict == "consistent"
        ours, theirs = self.off(dumps, tmp_path, 1.09)
        assert compare(given_pair(ours, theirs), Options(), noise).verdict == "different"

    def test_noise_must_be_of_one_of_the_engines_and_of_the_prompt(self, dumps: Path, tmp_path: Path) -> None:
        from train_infer_consistency.comparing.compare import Options
        from train_infer_consistency.comparing.pairs import compare

        ours, theirs = self.off(dumps, tmp_path, 1.0)
        look = dumps / "lookalike"
        with pytest.raises(EvidenceError, match="neither side is"):
            compare(given_pair(ours, theirs), Options(), dump_of(look / "verl_megatron_fp32_stat"))
        with pytest.raises(EvidenceError, match="another prompt"):
            compare(given_pair(ours, theirs), Options(), dump_of(look / "verl_fsdp1_leftpad5_stat"))
        with pytest.raises(UsageError, match="whole tree"):
            compare(given_pair(ours, theirs), Options(), dumps / "loop")

    def test_coverage_below_the_bound_denies_consistent(self, dumps: Path) -> None:
        ours, theirs = step0(dumps / "megatron" / "hf_n11"), step0(dumps / "megatron" / "verl_pp2_n11")
        assert direct(ours, theirs, min_coverage=0.9).verdict == "consistent"
        found = direct(ours, theirs, min_coverage=0.95)
        assert (found.verdict, found.status) == ("insufficient", 3)
        assert "coverage 0.905 is below 0.95; the first that is missing is layers.0.mlp.down" in found.reason

    def test_what_the_user_bounds_in_parameters_is_no_longer_exact(self) -> None:
        bounds = Bounds(patterns=(("embed", "weight", 0.01),))
        assert bounds.of("embed", "weight", 0, FP32, FP32) == 0.01
        assert bounds.given("embed", "weight")
        assert not bounds.given("embed", "output")
