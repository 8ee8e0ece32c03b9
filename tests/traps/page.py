"""Write ``docs/traps.md`` from the list of traps: ``python -m tests.traps.page``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.conftest import ROOT

from .model import Trap, load_traps

PAGE = ROOT / "docs" / "traps.md"
SECTIONS = {
    "verl": "verl: the training side of the first procedure",
    "vllm": "vLLM and vLLM-Ascend: the inference side of the first procedure",
    "slime": "slime: the training side of the second procedure",
    "sglang": "SGLang: the inference side of the second procedure",
    "msprobe": "msprobe, under both procedures",
    "log": "Folders, logs and switches, on both sides",
    "compare": "Pairing and comparing the two dumps",
    "outside": "Not shown by a test",
}
HEAD = """\
# Traps

What the edits of the two published procedures do wrong where they are applied as written, and what the engines and
msprobe themselves do that makes a dump wrong, empty or misleading; what happens here instead; and how that is shown.

Versions: verl b7dabd83 and 0.8.0, vLLM-Ascend 0.18.0 with vLLM 0.18.0, slime 0.2.2 to 0.2.4, SGLang 0.5.8 to
0.5.10.post1, mindstudio-probe 26.2.0. Nothing here was run on an NPU or a GPU.

Shown by: a test in **bold** is proved by a mutant, a small change of this project's own source that brings the defect
in; with it that test fails. `make test` tries these mutants, `make mutants` those marked "engines", whose tests need
the real engines. A plain one holds the behaviour without a mutant of its own in this list; `make test-engines` runs
those in `engines/`.

This page is written by `python -m tests.traps.page` from `tests/traps/traps.toml`.
"""


def page(traps: Sequence[Trap]) -> str:
    """The whole page."""
    parts = [HEAD]
    for section, title in SECTIONS.items():
        mine = [trap for trap in traps if _section(trap) == section]
        last = "why not" if section == "outside" else "shown by"
        parts.append(f"\n## {title}\n\n| trap | what goes wrong | here | {last} |\n|---|---|---|---|\n")
        parts += [f"| {trap.id} | {trap.wrong} | {trap.here} | {_shown(trap)} |\n" for trap in mine]
    return "".join(parts)


def _section(trap: Trap) -> str:
    return "outside" if trap.untested else trap.upstream


def _shown(trap: Trap) -> str:
    if trap.untested:
        return trap.untested
    proved: dict[str, bool] = {}
    for mutant in trap.mutants:
        for test in mutant.tests:
            proved[test] = proved.get(test, True) and mutant.engines
    shown = [f"**{_short(test)}**{' (engines)' if engines else ''}" for test, engines in proved.items()]
    return "<br>".join([*shown, *map(_short, _without(trap.tests, proved))])


def _without(tests: Iterable[str], others: Iterable[str]) -> list[str]:
    known = set(others)
    return [test for test in tests if test not in known]


def _short(test: str) -> str:
    file, _, name = test.partition("::")
    return f"`{file.removeprefix('tests/').removesuffix('.py')}: {name.removeprefix('test_')}`"


if __name__ == "__main__":
    PAGE.write_text(page(load_traps()), encoding="utf-8")
