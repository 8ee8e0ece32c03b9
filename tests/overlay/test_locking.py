"""The lock says what the overlays say, survives being written, and every disagreement is found."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_infer_consistency.errors import EvidenceError, FoundError, UsageError
from train_infer_consistency.overlay.digests import sha256
from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import (
    Artifact,
    Demand,
    Fact,
    FilePin,
    ImageBase,
    Lock,
    Pin,
    Stack,
    Waiver,
    load_lock,
)
from train_infer_consistency.overlay.locking import (
    check_lock,
    empty_lock,
    make_pin,
    read_stacks,
    refuse_contradictions,
    render_lock,
)
from train_infer_consistency.overlay.model import PinSource
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import MappingTree

from .in_place import OTHER, SKEL, write_overlays

# ------------------------------------------------------------------------------------------------------------ written

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text(st.sampled_from("abzAZ09-_.+/é \"'\\\n\x7f"), min_size=1, max_size=8)
DIGEST = st.binary(max_size=4).map(sha256)
MAYBE = st.none() | TEXT


def some(value: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(NAME, value, min_size=least, max_size=2)


FILES = st.builds(FilePin, st.none() | DIGEST, DIGEST, some(st.tuples(DIGEST, DIGEST)))
ARTIFACTS = st.lists(st.builds(Artifact, NAME, DIGEST, st.integers(0, 2**40)), max_size=2).map(
    lambda items: {item.file: item for item in items}
)
PINS = st.builds(Pin, st.just(""), TEXT, MAYBE, MAYBE, MAYBE, MAYBE, TEXT, TEXT, st.booleans(), ARTIFACTS, some(FILES))
STACKS = st.builds(
    Stack,
    st.just(""),
    TEXT,
    TEXT,
    some(TEXT),
    st.lists(
        st.builds(Fact, TEXT, TEXT, TEXT, MAYBE, TEXT, st.lists(TEXT, max_size=2).map(tuple), TEXT, st.booleans()),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(Demand, TEXT, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    st.lists(st.builds(Waiver, TEXT, st.lists(TEXT, max_size=3).map(tuple), TEXT, TEXT), max_size=2).map(tuple),
    some(st.builds(ImageBase, TEXT, TEXT, TEXT)),
    some(st.lists(TEXT, max_size=2).map(tuple)),
)


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    upstreams = draw(st.dictionaries(NAME, some(PINS, 1), min_size=1, max_size=2))
    stacks = draw(some(STACKS))
    return Lock(
        draw(st.integers(1, 99)),
        draw(some(DIGEST)),
        {
            name: {version: replace(pin, version=version) for version, pin in pins.items()}
            for name, pins in upstreams.items()
        },
        {name: replace(stack, name=name) for name, stack in stacks.items()},
    )


@settings(deadline=None, max_examples=150)
@given(locks())
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, lock: Lock) -> None:
    path = tmp_path_factory.mktemp("lock") / "VERSIONS.lock"
    path.write_bytes(render_lock(lock).encode())
    again = load_lock(path)
    assert again == lock
    assert render_lock(again) == render_lock(lock)


def test_order_and_readable_keys_stay() -> None:
    lock = good_lock_of_skeletons()
    text = render_lock(lock)
    assert text.startswith("# VERSIONS.lock: ")
    assert "never edit it by hand" in text
    assert '[upstream.skel."1.0".file."skel/runner.py"]' in text
    assert list(tomllib.loads(text)["upstream"]) == ["other", "skel"]
    assert load_lock().revision >= 1


# ---------------------------------------------------------------------------------------------------------- damaged


def damaged(tmp_path: Path, text: str) -> str:
    path = tmp_path / "VERSIONS.lock"
    path.write_text(text)
    with pytest.raises(EvidenceError) as caught:
        load_lock(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "has schema 2, not 1"),
        ("schema = 1", "", "has schema None"),
        ("revision = 1", "", "is not complete: 'revision'"),
        ("[overlays]", "[overlayz]", "is not complete: 'overlays'"),
        ("after = ", "aftr = ", "is not complete: 'after'"),
        ("source = ", "sorce = ", "is not complete: 'source'"),
        ("size = 10", "sise = 10", "is not complete: "),
        ("size = 10", "size = 10, more = 1", "is not complete: "),
        ('python = "3.11"', "", "is not complete: 'python'"),
        ("schema = 1", "schema = 1\nschema = 1", "is no valid TOML"),
        ("[upstream.", "[upstreem.", "is not complete: 'upstream'"),
    ],
)
def test_damaged_lock_is_no_evidence(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = render_lock(good_lock_of_skeletons())
    assert old in text
    assert said in damaged(tmp_path, text.replace(old, new))


def test_cut_scope_digests_are_no_evidence(tmp_path: Path) -> None:
    lines = render_lock(good_lock_of_skeletons()).splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith('"Runner.run" = ['))
    for value in ("[]", '["a"]', "1", '"a"'):
        lines[number] = f'"Runner.run" = {value}'
        assert "is not complete" in damaged(tmp_path, "\n".join(lines))


def test_missing_lock_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be read"):
        load_lock(tmp_path / "gone")


def test_unknown_pin_is_said() -> None:
    lock = good_lock_of_skeletons()
    assert lock.pin("skel", "1.0").version == "1.0"
    for name, version in (("skel", "9"), ("gone", "1.0")):
        with pytest.raises(
            EvidenceError, match=rf"VERSIONS\.lock has no {name} {version}; run 'consistency lock write'"
        ):
            lock.pin(name, version)


# -------------------------------------------------------------------------------------------------------------- made

STACKS_TOML = """
[stack.one]
title = "A stack"
python = "3.11"
pins = { skel = "1.0", other = "1.0" }

[[stack.one.fact]]
name = "torch"
value = "2.9.0"
source = "somewhere"

[[stack.one.demand]]
package = "torch"
by = "a"
requires = "torch==2.9.0"
source = "a's wheel"

[[stack.one.demand]]
package = "torch"
by = "b"
requires = "torch==2.10.0"
source = "b's wheel"

[[stack.one.waiver]]
package = "torch"
demands = ["torch==2.9.0 (a)", "torch==2.10.0 (b)"]
wins = "torch==2.9.0 (a)"
why = "it is compiled against it"
"""


def overlays(root: Path) -> Path:
    write_overlays(root)
    (root / "stacks.toml").write_text(STACKS_TOML)
    return root


def make(root: Path) -> Lock:
    """A lock of both skeletons, made as the verb makes it."""
    empty = empty_lock(root)
    pins = {}
    for name, files in (("skel", SKEL), ("other", OTHER)):
        upstream = load_upstreams(root)[name]
        artifacts = [Artifact("b.whl", "b" * 64, 10), Artifact("a.whl", "a" * 64, 10)]
        pins[name] = {"1.0": make_pin(upstream, upstream.pins[0], MappingTree(name, dict(files)), artifacts, empty)}
    return Lock(empty.revision, empty.overlays, pins, empty.stacks)


_KEPT: list[Lock] = []


def good_lock_of_skeletons() -> Lock:
    if not _KEPT:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            _KEPT.append(make(overlays(Path(folder) / "overlays")))
    return _KEPT[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return overlays(tmp_path / "overlays")


def test_pin_has_everything_that_recognises_it(root: Path) -> None:
    lock = make(root)
    pin = lock.pin("skel", "1.0")
    assert (pin.source, pin.requirement, pin.built_version) == ("registry", "skel-engine==1.0", "1.0")
    assert pin.wheel_version == "1.0+consistency.{N}"
    assert list(pin.artifacts) == ["a.whl", "b.whl"]
    assert pin.files["skel/runner.py"].before == sha256(SKEL["skel/runner.py"])
    weave = weave_upstream(load_upstreams(root)["skel"], MappingTree("t", dict(SKEL)), lock)
    assert weave.base == "known"
    assert {file.path: file.after_sha256 for file in weave.files} == {
        path: file.after for path, file in pin.files.items()
    }
    assert pin.files["skel/deep/hook.py"].before is None


@pytest.mark.parametrize(
    ("source", "kind", "built", "wheel"),
    [
        (PinSource("1", registry="a==1.5"), "registry", "1.5", "1.5+consistency.{N}"),
        (PinSource("abc", git="u", commit="c" * 40, built_version="2.dev0"), "git", "2.dev0", "2.dev0+consistency.{N}"),
        (PinSource("abc", git="u", commit="c" * 40, wheel_version="3+g.{N}"), "git", "abc", "3+g.{N}"),
        (PinSource("1+p", variant_of="1"), "variant", "1+p", "1+p+consistency.{N}"),
    ],
)
def test_pin_says_where_it_comes_from(root: Path, source: PinSource, kind: str, built: str, wheel: str) -> None:
    pin = make_pin(load_upstreams(root)["skel"], source, MappingTree("t", dict(SKEL)), [], empty_lock(root))
    assert (pin.source, pin.built_version, pin.wheel_version) == (kind, built, wheel)
    assert (pin.git, pin.commit, pin.variant_of) == (source.git, source.commit, source.variant_of)


def test_changed_and_woven_trees_make_no_pin(root: Path) -> None:
    lock, upstream = make(root), load_upstreams(root)["skel"]
    changed = {**SKEL, "skel/runner.py": SKEL["skel/runner.py"].replace(b"return y", b"return 1")}
    with pytest.raises(
        FoundError, match=r"^skel 1\.0 in t: skel/runner\.py, edit 'only': the anchor `return y` matches 0"
    ):
        make_pin(upstream, upstream.pins[0], MappingTree("t", changed), [], lock)
    weave = weave_upstream(upstream, MappingTree("t", dict(SKEL)), lock)
    woven = {**SKEL, **{file.path: file.after for file in weave.files}}
    with pytest.raises(FoundError, match=r"skel 1\.0 in t is woven already; give its pristine source"):
        make_pin(upstream, upstream.pins[0], MappingTree("t", woven), [], lock)


# ----------------------------------------------------------------------------------------------------------- checked


def test_agreement_is_no_problem(root: Path) -> None:
    assert check_lock(make(root), root) == []


def change_pin(lock: Lock, name: str = "skel", **changes: Any) -> Lock:
    pin = replace(lock.pin(name, "1.0"), **changes)
    return replace(lock, upstreams={**lock.upstreams, name: {"1.0": pin}})


def without(mapping: Any, key: str) -> Any:
    return {name: value for name, value in mapping.items() if name != key}


RUNNER = "skel/runner.py"
DISAGREEMENTS: dict[str, tuple[Any, str]] = {
    "revision": (
        lambda lock: replace(lock, revision=9),
        "the lock is of consistency.9, the overlays are consistency.1",
    ),
    "overlay changed": (
        lambda lock: replace(lock, overlays={**lock.overlays, f"skel/{RUNNER}.toml": "0" * 64}),
        f"overlays/skel/{RUNNER}.toml changed since the lock was written",
    ),
    "overlay new": (
        lambda lock: replace(lock, overlays=without(lock.overlays, f"skel/{RUNNER}.toml")),
        f"overlays/skel/{RUNNER}.toml is not in the lock",
    ),
    "overlay gone": (
        lambda lock: replace(lock, overlays={**lock.overlays, "skel/x.toml": "0" * 64}),
        "overlays/skel/x.toml is in the lock only",
    ),
    "upstream gone": (
        lambda lock: replace(lock, upstreams={**lock.upstreams, "third": lock.upstreams["skel"]}),
        "third is in the lock only",
    ),
    "pin new": (
        lambda lock: replace(lock, upstreams={**lock.upstreams, "skel": {}}, stacks={}),
        "skel 1.0 is in the overlays only",
    ),
    "pin gone": (
        lambda lock: replace(
            lock, upstreams={**lock.upstreams, "skel": {**lock.upstreams["skel"], "2.0": lock.pin("skel", "1.0")}}
        ),
        "skel 2.0 is in the lock only",
    ),
    "requirement": (lambda lock: change_pin(lock, requirement="skel-engine==2"), "requirement is skel-engine==2 in"),
    "git": (lambda lock: change_pin(lock, git="url"), "skel 1.0: git is url in the lock and None in the overlays"),
    "commit": (lambda lock: change_pin(lock, commit="abc"), "skel 1.0: commit is abc in the lock"),
    "source": (lambda lock: change_pin(lock, source="git"), "skel 1.0: source is git in the lock"),
    "variant": (lambda lock: change_pin(lock, variant_of="0"), "skel 1.0: variant_of is 0 in the lock"),
    "built": (lambda lock: change_pin(lock, built_version="2"), "skel 1.0: built_version is 2 in the lock and 1.0 in"),
    "wheel": (lambda lock: change_pin(lock, wheel_version="2"), "skel 1.0: wheel_version is 2 in the lock"),
    "tested": (lambda lock: change_pin(lock, tested_only=True), "skel 1.0: tested_only is True in the lock"),
    "version": (lambda lock: change_pin(lock, version="1.1"), "version is 1.1 in the lock and 1.0 in the overlays"),
    "artifacts": (lambda lock: change_pin(lock, artifacts={}), "skel 1.0: the lock has no artifact"),
    "files": (
        lambda lock: change_pin(lock, files=without(lock.pin("skel", "1.0").files, RUNNER)),
        f"skel 1.0: {RUNNER} is in the overlays only",
    ),
    "more files": (
        lambda lock: change_pin(lock, files={**lock.pin("skel", "1.0").files, "skel/x.py": FilePin(None, "0" * 64)}),
        "skel 1.0: skel/x.py is in the lock only",
    ),
    "laid": (
        lambda lock: change_pin(lock, files={**lock.pin("skel", "1.0").files, RUNNER: FilePin(None, "0" * 64)}),
        f"skel 1.0: {RUNNER} is laid in one and edited in the other",
    ),
    "stack changed": (
        lambda lock: replace(lock, stacks={"one": replace(lock.stacks["one"], title="Another")}),
        "stack one changed since the lock was written",
    ),
    "stack new": (lambda lock: replace(lock, stacks={}), "stack one is in overlays/stacks.toml only"),
    "stack gone": (
        lambda lock: replace(lock, stacks={**lock.stacks, "two": replace(lock.stacks["one"], name="two")}),
        "stack two is in the lock only",
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_each_disagreement_is_found(root: Path, name: str) -> None:
    change, said = DISAGREEMENTS[name]
    problems = check_lock(change(make(root)), root)
    assert any(said in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_every_field_of_a_pin_is_compared() -> None:
    compared = {"files", "artifacts", "requirement", "git", "commit", "source", "variant_of", "built_version"}
    assert {field.name for field in fields(Pin)} == compared | {"wheel_version", "tested_only", "version"}


IMAGES_TOML = """
[stack.one.image.a2]
image = "quay.io/somebody/verl:v1-910b"
digest = "sha256:%s"
source = "somewhere"

[stack.one.image.a3]
image = ""
digest = ""
source = "none is published"
""" % ("0a" * 32)
ONE = 'name = "torch"\nvalue = "2.9.0"\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("image.a3]", "image.a5]", "stack one, image for a5: there is no such chip, use one of a2, a3"),
        ("sha256:0a", "sha256:0", "'sha256:00a0a"),
        ("sha256:0a", "sha256:0A", "is no digest: sha256: and 64 hexadecimal digits"),
        ("sha256:0a", "md5:0a", "is no digest"),
        ("v1-910b", "latest", "'quay.io/somebody/verl:latest' is no repository:tag of a release"),
        (":v1-910b", "", "'quay.io/somebody/verl' is no repository:tag"),
        (":v1-910b", ":v1@sha256:" + "0" * 64, "is no repository:tag"),
        ('image = "quay.io/somebody/verl:v1-910b"', 'image = ""', "image for a2: a digest of no image"),
        ('source = "none is published"', 'source = ""', "image for a3: nothing says where it was read"),
        (ONE, f'{ONE}distribution = "torch"\nmatch = "2.9.0"\n', "fact torch: '2.9.0' is no version specifier"),
        (ONE, f'{ONE}distribution = "torch"\nalso = ["core"]\nwhy = "w"\n', "'core' is no version specifier"),
        (ONE, 'name = "torch"\nvalue = "main"\ndistribution = "torch"\n', "'==main' is no version specifier"),
        (ONE, 'name = "torch"\nvalue = "main"\nmatch = "cann"\n', "'==main' is no version specifier"),
        (ONE, f'{ONE}distribution = "torch"\nalso = ["==2"]\n', "fact torch: also and why go together"),
        (ONE, f"{ONE}optional = true\n", "fact torch: it names no distribution to compare"),
        (ONE, f'{ONE}match = "==2"\n', "fact torch: it names no distribution to compare"),
        (
            "[stack.one.image.a2]",
            "in-place = { gone = [] }\n[stack.one.image.a2]",
            "gone, which the stack does not pin",
        ),
        ("[stack.one.image.a2]", 'in-place = { skel = ["3"] }\n[stack.one.image.a2]', "skel 3, which is no pin"),
    ],
)
def test_images_and_facts_are_judged(root: Path, old: str, new: str, said: str) -> None:
    # What is added to [stack.one] itself has to stand before its tables.
    head, rest = STACKS_TOML.split("\n[[stack.one.fact]]", 1)
    text = f"{head}{IMAGES_TOML}\n[[stack.one.fact]]{rest}"
    (root / "stacks.toml").write_text(text)
    assert check_lock(make(root), root) == []
    assert text.count(old) == 1
    (root / "stacks.toml").write_text(text.replace(old, new))
    problems = check_lock(make(root), root)
    assert len([problem for problem in problems if said in problem]) == 1, problems


@pytest.mark.parametrize(
    "more",
    [
        'distribution = "torch"\nalso = ["==2.8.*"]\nwhy = "w"\noptional = true\n',
        'distribution = "torch"\nmatch = ">=2"\n',
        'distribution = "torch"\nmatch = "commit"\n',
        'match = "cann"\nalso = ["==9.0"]\nwhy = "w"\n',
    ],
)
def test_every_way_to_compare_a_fact_is_no_problem(root: Path, more: str) -> None:
    (root / "stacks.toml").write_text(STACKS_TOML.replace(ONE, ONE + more))
    assert check_lock(make(root), root) == []


def test_stack_by_name() -> None:
    lock = good_lock_of_skeletons()
    assert lock.stack("one") is lock.stacks["one"]
    with pytest.raises(UsageError, match="there is no stack 'two'; use one of one") as caught:
        lock.stack("two")
    assert caught.value.status == 2


def test_bases_of_the_images_are_in_the_lock() -> None:
    """Per stack and chip; the ones of slime are the user's, and CUDA has no image."""
    stacks = load_lock().stacks
    assert {name for name, stack in stacks.items() if not stack.images} == {"verl-0.8-cuda"}
    assert all(set(stack.images) == {"a2", "a3"} for stack in stacks.values() if stack.images)
    for name in ("verl-0.8", "verl-b7dabd83"):
        tags = {chip: base.image.partition(":")[2] for chip, base in stacks[name].images.items()}
        for chip, word in (("a2", "910b"), ("a3", "a3")):
            assert tags[chip] == f"v0.8.0-cann9.0.0-torch_npu2.9.0.post2-{word}-ubuntu22.04-py3.11-vllm"
    assert {base.image for name in ("slime-0.2.2", "slime-0.2.4") for base in stacks[name].images.values()} == {""}
    for base in (base for stack in stacks.values() for base in stack.images.values()):
        assert base.digest or "nobody could read it yet" in base.source or not base.image


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('skel = "1.0", ', 'skel = "1.1", ', "stack one names skel 1.1, which is no pin"),
        ('skel = "1.0", ', 'skell = "1.0", ', "stack one names skell 1.0, which is no pin"),
        (STACKS_TOML[STACKS_TOML.index("[[stack.one.waiver]]") :], "", "no waiver for these demands says which wins"),
        ('"torch==2.10.0 (b)"', '"torch==2.11.0 (b)"', "no waiver for these demands says which wins"),
        ('"torch==2.10.0 (b)"', '"torch==2.10.0 (c)"', "no waiver for these demands says which wins"),
        ('wins = "torch==2.9.0 (a)"', 'wins = "torch==2.9.0"', "no waiver for these demands says which wins"),
        ('requires = "torch==2.10.0"', 'requires = "torch>=2.9.0"', "the waiver for torch accepts nothing that contra"),
    ],
)
def test_stacks_are_judged(root: Path, old: str, new: str, said: str) -> None:
    assert old in STACKS_TOML
    (root / "stacks.toml").write_text(STACKS_TOML.replace(old, new))
    problems = check_lock(make(root), root)
    assert any(said in problem for problem in problems), problems


def test_stack_of_what_makes_no_wheel(root: Path) -> None:
    toml = root / "skel" / "upstream.toml"
    toml.write_text(toml.read_text() + "tested-only = true\n")
    assert "stack one names skel 1.0, which is no source of a wheel" in check_lock(make(root), root)


def test_contradiction_without_a_waiver_is_refused(root: Path) -> None:
    stack = read_stacks(root)["one"]
    refuse_contradictions(stack)
    with pytest.raises(FoundError) as caught:
        refuse_contradictions(replace(stack, waivers=()))
    assert "stack one: torch: torch==2.9.0 (a) against torch==2.10.0 (b)" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[stack.one]\ntitle = 1\n", STACKS_TOML.replace("source = ", "sorce = ")])
def test_incomplete_stacks_are_no_evidence(root: Path, text: str) -> None:
    (root / "stacks.toml").write_text(text)
    with pytest.raises(EvidenceError, match=r"stacks\.toml is not complete"):
        read_stacks(root)


def test_the_distributions_own_lock_agrees() -> None:
    assert check_lock(load_lock()) == []
