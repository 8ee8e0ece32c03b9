"""That shell is found wherever it stands, and that a slip in it is a finding."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from build import lint_shell as script
from train_infer_consistency.errors import EvidenceError

from ..conftest import ROOT

pytestmark = pytest.mark.skipif(script.shellcheck() is None, reason="no shellcheck on this machine")

MAKEFILE = """\
.PHONY: all part
WORDS = one two
define both
@status=0; $(1) || status=$$?; \\
exit $$status
endef

all: stamp ## everything
\t$(call both,touch $(WORDS))
part: ## only with a variable
\t@echo part $(if $(ENGINE),"$$1" $(ENGINE))
stamp:
\t@for word in $(WORDS); do \\
\t  echo "$$word"; done
\t@touch $@
"""
SLIPS = {
    "all": ("$(1) || status=$$?", "cd $$x && $(1) || status=$$?", "SC2086"),
    "a line after a backslash": ('  echo "$$word"', '  echo $$1 "$$word"', "SC2086"),
    "part": ('"$$1"', "$$1", "SC2086"),
    "stamp": ("touch $@", "touch $@ &> log", "SC3020"),
}


def makefile(folder: Path, text: str = MAKEFILE) -> Path:
    path = folder / "Makefile"
    path.write_text(text)
    return path


def test_recipes_are_what_make_would_run_and_each_is_there_once(tmp_path: Path) -> None:
    pieces = {piece.text: piece.place for piece in script.recipes(makefile(tmp_path))}
    assert pieces == {
        'for word in one two; do \\\n  echo "$word"; done\n': "Makefile (all)",
        "touch stamp\n": "Makefile (all)",
        "status=0; touch one two || status=$?; exit $status\n": "Makefile (all)",
        "echo part \n": "Makefile (part)",
        'echo part "$1" vllm\n': "Makefile (part)",
    }
    assert not (tmp_path / "stamp").exists()


@pytest.mark.parametrize("slip", SLIPS)
def test_slip_in_a_recipe_is_found(tmp_path: Path, slip: str) -> None:
    assert script.findings(list(script.recipes(makefile(tmp_path)))) == []
    old, new, code = SLIPS[slip]
    assert MAKEFILE.count(old) == 1
    found = script.findings(list(script.recipes(makefile(tmp_path, MAKEFILE.replace(old, new)))))
    assert any(f" {code} " in line and line.startswith("Makefile (") for line in found)


def test_outer_makes_variables_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = list(script.recipes(makefile(tmp_path)))
    monkeypatch.setenv("MAKEFLAGS", " -- WORDS=other")
    assert list(script.recipes(makefile(tmp_path))) == wanted


def test_makefile_that_make_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"^make cannot say what all would run: .*No rule to make target 'gone'"):
        list(script.recipes(makefile(tmp_path, "all: gone\n\ttrue\n")))


def test_scripts_are_known_by_their_first_line(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for name, text in {
        "a": "#!/bin/sh\necho $1\n",
        "b.sh": "#!/usr/bin/env bash\n[[ $1 == x ]]\n",
        "c.py": "#!/usr/bin/env python3\n",
        "d.sh": "echo\n",
        "ignored": "#!/bin/sh\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "link").symlink_to("a")
    pieces = list(script.scripts(tmp_path))
    assert [(piece.place, piece.shell) for piece in pieces] == [("a", "sh"), ("b.sh", "bash")]
    (found,) = script.findings(pieces)
    assert found == "a:2: SC2086 Double quote to prevent globbing and word splitting.: echo $1"


def test_steps_of_a_workflow(tmp_path: Path) -> None:
    path = tmp_path / "w.yml"
    path.write_text(
        "jobs:\n"
        "  one:\n"
        "    steps:\n"
        "      - uses: actions/checkout@0\n"
        "      - run: echo $HOME\n"
        "      - name: named\n"
        "        run: |\n"
        "          set -u\n"
        "          rm $1\n"
        "  reused:\n"
        "    uses: ./.github/workflows/x.yml\n"
    )
    pieces = list(script.steps(path))
    assert [(piece.place, piece.shell) for piece in pieces] == [
        ("w.yml (one: 2)", "bash"),
        ("w.yml (one: named)", "bash"),
    ]
    assert [line.partition(": SC")[0] for line in script.findings(pieces)] == [
        "w.yml (one: 2):1",
        "w.yml (one: named):2",
    ]


def test_this_repositorys_shell_is_looked_at() -> None:
    places = {piece.place for piece in script.scripts(ROOT)}
    assert ".ci/run" in places
    targets = {piece.place for piece in script.recipes(ROOT / "Makefile")}
    assert {"Makefile (wheels)", "Makefile (lint)", "Makefile (clean)"} <= targets
