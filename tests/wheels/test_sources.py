"""From a commit or a checkout to a pristine wheel: which files are taken, and what the provenance says of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.wheels import sources
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.registry import cache_dir
from train_infer_consistency.wheels.sources import Source, from_git

from .small import AT_COMMIT, CORE, Small, commit_all, make_checkout, members_of, small
from .test_checkouts import snapshot


@pytest.fixture(autouse=True)
def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def obtain(case: Small, given: Path | None = None) -> tuple[Source, dict[str, bytes], list[str]]:
    said: list[str] = []
    with from_git(case.upstream, case.lock.pin("demo", "c0ffee"), case.lock, said.append, given) as source:
        assert file_digest(source.wheel) == source.sha256
        return source, members_of(source.wheel), said


def test_commit_of_a_repository(tmp_path: Path) -> None:
    repository, commit = make_checkout(tmp_path / "repository")
    source, members, _ = obtain(small(tmp_path).with_git(repository.as_uri(), commit))
    assert members["demo/core.py"] == AT_COMMIT
    assert source.origin == f"commit {commit[:12]}"
    assert source.record() == {
        "file": "demo_pkg-1.0.dev0-py3-none-any.whl",
        "sha256": source.sha256,
        "version": "1.0.dev0",
        "source": "git",
        "git": repository.as_uri(),
        "commit": commit,
    }


def test_what_was_built_is_kept_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, commit = make_checkout(tmp_path / "repository")
    case = small(tmp_path).with_git(repository.as_uri(), commit)
    first, _, said = obtain(case)
    assert len(said) == 1
    monkeypatch.setattr(sources, "fetch_commit", None)  # not callable
    again, _, said = obtain(case)
    assert (again.sha256, said) == (first.sha256, [])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (kept,) = (cache_dir() / "built-1" / commit).glob("*/*.whl")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert obtain(case)[0].sha256 == first.sha256, "a damaged file in the cache was used"


def test_clean_checkout_at_the_commit(tmp_path: Path) -> None:
    checkout, commit = make_checkout(tmp_path / "checkout")
    (checkout / "demo" / "untracked.py").write_text("")
    before = snapshot(checkout)
    source, members, _ = obtain(small(tmp_path).with_git("https://host.invalid/demo", commit), checkout)
    assert source.commit == commit
    assert "demo/untracked.py" not in members
    assert snapshot(checkout) == before


def test_plain_tree_of_the_pin(tmp_path: Path) -> None:
    tree, _ = make_checkout(tmp_path / "tree", commit=False)
    before = snapshot(tree)
    source, members, _ = obtain(small(tmp_path), tree)
    assert members["demo/core.py"] == AT_COMMIT
    assert source.origin == f"checkout {tree}"
    assert source.record()["source"] == "checkout"
    assert str(tmp_path) not in str(source.record()), "a path of this machine would enter the wheel"
    assert snapshot(tree) == before


def test_checkout_that_has_the_commit_but_stands_elsewhere(tmp_path: Path) -> None:
    checkout, commit = make_checkout(tmp_path / "checkout")
    (checkout / "demo" / "core.py").write_bytes(CORE.replace(b"True", b"None"))
    commit_all(checkout)
    before = snapshot(checkout)
    source, members, said = obtain(small(tmp_path).with_git("https://host.invalid/demo", commit), checkout)
    assert source.commit == commit
    assert members["demo/core.py"] == AT_COMMIT
    assert f"the commit is taken from {checkout}, not the files there" in said[0]
    assert snapshot(checkout) == before


def test_patched_files_outside_the_edited_scopes_are_kept(tmp_path: Path) -> None:
    """A checkout at the commit with changes of its user's: what lies there is built, not the commit."""
    checkout, commit = make_checkout(tmp_path / "checkout")
    (checkout / "demo" / "__init__.py").write_bytes(b"PATCHED = True\n")
    source, members, _ = obtain(small(tmp_path).with_git("https://host.invalid/demo", commit), checkout)
    assert members["demo/__init__.py"] == b"PATCHED = True\n"
    assert source.commit is None


def test_checkout_of_another_version(tmp_path: Path) -> None:
    tree, _ = make_checkout(tmp_path / "tree", commit=False)
    (tree / "demo" / "core.py").write_bytes(CORE)
    with pytest.raises(
        EvidenceError, match=r"SOURCE_demo=.* is demo 1.0, and c0ffee is wanted; give a checkout of commit 0+"
    ):
        obtain(small(tmp_path), tree)
    (tree / "demo" / "core.py").write_bytes(CORE.replace(b"True", b"None"))
    with pytest.raises(EvidenceError, match="is no known pristine demo, and c0ffee is wanted"):
        obtain(small(tmp_path), tree)


def test_unreachable_commit_names_both_ways(tmp_path: Path) -> None:
    case = small(tmp_path).with_git("https://host.invalid/demo", "2" * 40)
    with pytest.raises(EvidenceError, match=r"run it where git reaches that host, or set SOURCE_demo=PATH"):
        obtain(case)
    with contextlib.suppress(FileNotFoundError):
        assert not list((cache_dir() / "built-1").iterdir())


def test_what_a_build_leaves_out_is_added_and_said(tmp_path: Path) -> None:
    """A module beside the packed ones, which the backend's own list forgets; and tags of one machine, as slime has."""
    repository, _ = make_checkout(tmp_path / "repository", tag="cp311-cp311-manylinux1_x86_64")
    (repository / "demo" / "kernels").mkdir()
    (repository / "demo" / "kernels" / "fp8.py").write_bytes(b"FP8 = 8\n")
    case = small(tmp_path).with_git(repository.as_uri(), commit_all(repository))
    for _ in ("built", "from the cache"):
        source, members, _ = obtain(case)
        assert source.wheel.name == "demo_pkg-1.0.dev0-py3-none-any.whl"
        assert members["demo/kernels/fp8.py"] == b"FP8 = 8\n"
        assert source.record()["added"] == ["demo/kernels/fp8.py"]
