"""Git commits and the user's checkouts: fetched exactly, never written to, and one line where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from train_infer_consistency.errors import EvidenceError, UsageError
from train_infer_consistency.wheels import checkouts
from train_infer_consistency.wheels.checkouts import build_wheel, fetch_commit

from .small import commit_all, git, make_checkout


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder, git's own files too: mode, time and bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_exactly_that_commit_is_fetched(tmp_path: Path) -> None:
    repository, commit = make_checkout(tmp_path / "repository")
    (repository / "later.txt").write_text("later")
    later = commit_all(repository)
    for number, wanted in enumerate((commit, later)):
        tree = tmp_path / f"tree{number}"
        fetch_commit(repository.as_uri(), wanted, tree)
        assert checkouts.head(tree) == wanted
        assert (tree / "later.txt").exists() is (wanted == later)
        assert git(tree, "rev-list", "--count", "HEAD") == "1", "the history was fetched too"


def test_commit_that_does_not_exist(tmp_path: Path) -> None:
    repository, _ = make_checkout(tmp_path / "demo")
    with pytest.raises(EvidenceError) as caught:
        fetch_commit(repository.as_uri(), "1" * 40, tmp_path / "tree")
    text = str(caught.value)
    assert text.startswith(f"demo: commit 111111111111 of {repository.as_uri()} cannot be had (")
    assert text.endswith("run it where git reaches that host, or set SOURCE_demo=PATH, a checkout of it")
    assert "\n" not in text


def test_host_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"vllm-ascend: commit .* or set SOURCE_vllm_ascend=PATH"):
        fetch_commit("https://host.invalid/x", "1" * 40, tmp_path / "tree", upstream="vllm-ascend")


def test_machine_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EvidenceError, match="git is not installed"):
        fetch_commit("https://host.invalid/x", "1" * 40, tmp_path / "tree")


def test_git_variables_of_a_hook_do_not_mislead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, commit = make_checkout(tmp_path / "one")
    other, _ = make_checkout(tmp_path / "two", tag="cp311-none-any")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert checkouts.head(repository) == commit


def test_what_a_checkout_is_asked(tmp_path: Path) -> None:
    repository, commit = make_checkout(tmp_path / "repository")
    before = snapshot(repository)
    assert checkouts.head(repository) == commit
    assert checkouts.head(repository / "demo") is None, "a folder inside a checkout is no checkout"
    assert checkouts.head(tmp_path) is None
    assert checkouts.is_clean(repository)
    assert checkouts.has_commit(repository, commit)
    assert not checkouts.has_commit(repository, "1" * 40)
    assert not checkouts.has_commit(tmp_path, commit)
    assert checkouts.commit_time(repository) > 1_600_000_000
    assert checkouts.commit_time(tmp_path) == 315532800
    (repository / "untracked").write_text("")
    assert checkouts.is_clean(repository)
    (repository / "untracked").unlink()
    assert snapshot(repository) == before
    (repository / "demo" / "core.py").write_text("changed")
    assert not checkouts.is_clean(repository)


def test_copy_leaves_history_and_build_leftovers_out(tmp_path: Path) -> None:
    tree, _ = make_checkout(tmp_path / "tree")
    for name in (
        "build/lib/demo/old.py",
        "demo/__pycache__/core.pyc",
        "demo.egg-info/PKG-INFO",
        "dist/a.whl",
        "build/keep.py",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    (tree / "run.sh").write_text("")
    (tree / "run.sh").chmod(0o700)
    (tree / "demo" / "core.py").chmod(0o600)
    before = snapshot(tree)
    checkouts.copy_tree(tree, tmp_path / "copy")
    copied = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert copied == {
        "backend.py",
        "build/keep.py",
        "demo/__init__.py",
        "demo/core.py",
        "demo/table, with comma.json",
        "pyproject.toml",
        "run.sh",
    }
    assert (tmp_path / "copy/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "copy/demo/core.py").stat().st_mode & 0o777 == 0o644
    assert snapshot(tree) == before


def test_build_uses_the_trees_own_backend(tmp_path: Path) -> None:
    tree, _ = make_checkout(tmp_path / "tree")
    (tmp_path / "out").mkdir()
    wheel = build_wheel(tree, tmp_path / "out", label="demo", moment=0)
    assert wheel.name == "demo_pkg-1.0.dev0-py3-none-any.whl"


def test_failing_backend_is_one_line(tmp_path: Path) -> None:
    tree, _ = make_checkout(tmp_path / "tree")
    (tree / "backend.py").write_text("def build_wheel(*args, **kwargs):\n    raise SystemExit('broken on purpose')\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(EvidenceError, match=r"^demo c0ffee: its wheel cannot be built by ") as caught:
        build_wheel(tree, tmp_path / "out", label="demo c0ffee", moment=0)
    assert "\n" not in str(caught.value)


def test_source_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checkouts.source_variable("vllm-ascend") == "SOURCE_vllm_ascend"
    monkeypatch.delenv("SOURCE_demo", raising=False)
    assert checkouts.given_source("demo") is None
    monkeypatch.setenv("SOURCE_demo", str(tmp_path))
    assert checkouts.given_source("demo") == tmp_path.resolve()
    monkeypatch.setenv("SOURCE_demo", str(tmp_path / "gone"))
    with pytest.raises(EvidenceError, match=r"SOURCE_demo=.*gone: there is no such folder"):
        checkouts.given_source("demo")


def test_sources_of_the_command_line_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOURCE_demo", raising=False)
    (tmp_path / "a").mkdir()
    monkeypatch.setenv("SOURCE_vllm_ascend", str(tmp_path / "a"))
    names = ("demo", "vllm-ascend")
    assert checkouts.read_sources([], names) == {"vllm-ascend": (tmp_path / "a").resolve()}
    found = checkouts.read_sources([f"vllm-ascend={tmp_path}", f"demo={tmp_path}"], names)
    assert found == {"vllm-ascend": tmp_path.resolve(), "demo": tmp_path.resolve()}
    for word in ("demo", "demo=", f"other={tmp_path}"):
        with pytest.raises(UsageError, match="is not NAME=PATH with a known name; the names are demo, vllm-ascend"):
            checkouts.read_sources([word], names)
    with pytest.raises(EvidenceError, match=r"--source demo=/nowhere: there is no such folder"):
        checkouts.read_sources(["demo=/nowhere"], names)


def test_workshop_is_cleared_away() -> None:
    with checkouts.workshop() as folder:
        (folder / "a").write_text("")
        assert [path.name for path in folder.iterdir()] == ["a"]
    assert not folder.exists()
