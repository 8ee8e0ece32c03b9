"""Demands contradict where no version satisfies all of them, and only there."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from train_infer_consistency.overlay.lock import Demand, Stack, Waiver
from train_infer_consistency.overlay.requirements import contradicts, idle_waivers, judge


@pytest.mark.parametrize(
    ("requirements", "verdict"),
    [
        (["torch==2.9.0", "torch==2.10.0"], True),
        (["torch==2.9.0", "torch==2.9"], False),
        (["torch==2.9.0", "torch==2.9.0+cpu"], False),
        (["torch>=2.9", "torch<2.9"], True),
        (["torch>2.9", "torch<2.9.1"], False),
        (["torch>2.9", "torch<2.10"], False),
        (["torch>4", "torch<4.0.3"], False),
        (["torch~=2.9.1", "torch<2.9.1"], True),
        (["torch~=2.9.1", "torch>=2.10"], True),
        (["torch~=2.9", "torch==2.10.*"], False),
        (["torch==2.9.*", "torch!=2.9.0"], False),
        (["torch>1.0rc1", "torch<2"], False),
        (["torch<0.1", "torch!=0"], False),
        (["transformers<5,>=4.56.0", "transformers==5.3.0"], True),
        (["transformers<5,>=4.56.0", "transformers>=4.57.4"], False),
        (["numpy<2.0.0", "numpy<2.3,>=1.24", "numpy>=2"], True),
        (["opencv<=4.11.0.86", "opencv>=4.13.0"], True),
        (["torch-npu==2.9.0", "torch-npu==2.9.0.post2"], True),
        (["torch"], False),
        ([], False),
        (["torch==2.9.0", "torch @ nonsense here =="], None),
        (["not a requirement !!"], None),
    ],
)
def test_known_demands(requirements: list[str], verdict: bool | None) -> None:
    assert contradicts(requirements) is verdict


GRID = [
    Version(".".join(map(str, numbers)) + tail)
    for a in range(4)
    for numbers in ([a], *([a, b] for b in range(5)), *([a, b, c] for b in range(3) for c in range(4)))
    for tail in ("", ".post1", ".0.1")
    if len(numbers) < 4
]
VERSIONS = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)) | st.tuples(
    st.integers(0, 2), st.integers(0, 3)
)
CLAUSES = st.builds(
    lambda operator, version: f"{operator}{'.'.join(map(str, version))}",
    st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "~="]),
    VERSIONS,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(CLAUSES, min_size=1, max_size=4))
def test_a_contradiction_has_no_witness_and_an_agreement_has_one(clauses: list[str]) -> None:
    requirements = [f"torch{clause}" for clause in clauses]
    specifiers = [Requirement(requirement).specifier for requirement in requirements]
    witnesses = [version for version in GRID if all(one.contains(version, prereleases=True) for one in specifiers)]
    verdict = contradicts(requirements)
    if witnesses:
        assert verdict is False, f"{witnesses[0]} satisfies {requirements}"
    if verdict is True:
        assert witnesses == []


@given(st.lists(CLAUSES, min_size=1, max_size=3))
def test_order_does_not_matter_and_more_demands_never_help(clauses: list[str]) -> None:
    requirements = [f"torch{clause}" for clause in clauses]
    assert contradicts(requirements) == contradicts(requirements[::-1])
    if contradicts(requirements[1:]):
        assert contradicts(requirements)


def test_without_packaging_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "packaging"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "packaging", None)
    assert contradicts(["torch==1", "torch==2"]) is None
    assert judge(stack(demand("torch==1", "a"), demand("torch==2", "b"))) == ([], False)
    assert idle_waivers(stack(ONE, TWO, waivers=(Waiver("torch", (), "", ""),))) == []


def demand(requires: str, by: str) -> Demand:
    return Demand(Requirement(requires).name, by, requires, "somewhere")


def stack(*demands: Demand, waivers: tuple[Waiver, ...] = ()) -> Stack:
    return Stack("s", "S", "3.11", {}, (), demands, waivers)


ONE, TWO = demand("torch==2.9.0", "a"), demand("torch==2.10.0", "b")


def test_demands_are_judged_by_package() -> None:
    found, checked = judge(stack(ONE, TWO, demand("numpy<2", "a"), demand("numpy>=1", "b")))
    assert checked
    assert [str(item) for item in found] == ["torch: torch==2.9.0 (a) against torch==2.10.0 (b)"]
    assert found[0].waiver is None
    assert judge(stack(ONE)) == ([], True)
    assert judge(stack(demand("torch==2.9.0", "a"), Demand("torch", "b", "torch ?", "s"))) == ([], False)


BOTH = ("torch==2.9.0 (a)", "torch==2.10.0 (b)")


@pytest.mark.parametrize(
    ("waiver", "accepted"),
    [
        (Waiver("torch", BOTH, BOTH[0], "why"), True),
        (Waiver("torch", BOTH, BOTH[1], "why"), True),
        (Waiver("torch", BOTH[::-1], BOTH[0], "why"), True),
        (Waiver("torch", BOTH, "torch==2.9.0", "why"), False),
        (Waiver("torch", BOTH[:1], BOTH[0], "why"), False),
        (Waiver("torch", (*BOTH, "torch==3 (c)"), BOTH[0], "why"), False),
        (Waiver("torch", ("torch==2.9.1 (a)", BOTH[1]), BOTH[1], "why"), False),
        (Waiver("numpy", BOTH, BOTH[0], "why"), False),
    ],
)
def test_waiver_is_for_these_demands_only(waiver: Waiver, accepted: bool) -> None:
    (found,) = judge(stack(ONE, TWO, waivers=(waiver,)))[0]
    assert (found.waiver is waiver) is accepted
    assert (idle_waivers(stack(ONE, TWO, waivers=(waiver,))) == []) is accepted


def test_unnamed_demand_must_agree_with_the_winner() -> None:
    waiver = Waiver("torch", BOTH, BOTH[0], "why")
    agrees, differs = demand("torch>=2.9,<2.10", "c"), demand("torch>=2.10", "c")
    assert judge(stack(ONE, TWO, agrees, waivers=(waiver,)))[0][0].waiver is waiver
    assert judge(stack(ONE, TWO, differs, waivers=(waiver,)))[0][0].waiver is None
