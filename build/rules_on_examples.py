"""Write docs/rules-on-public-examples.md: what `consistency check` says of the scripts that upstreams publish.

    python build/rules_on_examples.py \\
        --tree "verl 0.8.0 (7aed6b23)" verl-0.8 PATH --tree "verl b7dabd83" verl-b7dabd83 PATH \\
        --tree "slime 0.2.2 (2418a784)" slime-0.2.2 PATH --tree "slime 0.2.4 (bd217a63)" slime-0.2.4 PATH

Each ``--tree`` is the title of a section, the stack whose rules are tried, and a checkout at that version.
The page has the trees that are given, and no other.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from train_infer_consistency.launch import inputs
from train_infer_consistency.launch.check import Report, check

PAGE = Path(__file__).parents[1] / "docs" / "rules-on-public-examples.md"
#: Where verl and slime keep the scripts that launch a run.
FOLDERS = ("examples", "scripts", "verl/experimental")
WRITTEN = """\
# The rules on the upstreams' public examples

Written by `python build/rules_on_examples.py` (which says how to give it the upstreams' checkouts): do not edit this
page.

What `consistency check` says of the launch scripts that verl and slime publish, by name and version; the scripts
themselves are not here. None of them is meant to collect anything, so each breaks the rules that any other run
breaks. What the table is for: no script stopped the check, and each code was looked at once for a finding that makes
no sense. Codes are those of [rules.md](rules.md). "Not checked": rules on values that reading alone cannot know (a
variable that is set nowhere); "not read": parts such as a model's file that the script sources, or a `runtime_env`
that is no JSON.

Some findings are the upstreams' own slips, met by reading as a shell does: in slime 0.2.2
`scripts/run-qwen3-235B-A22B.sh` and `scripts/run-qwen3-next-80B-A3B.sh` build a `runtime_env` that lacks a comma;
`scripts/run-kimi-k2-Instruct.sh` (0.2.2, 0.2.4) and `scripts/run-kimi-k2-Thinking.sh` (0.2.2) lack a line's
continuation, so that the command ends after `--update-weight-buffer-size`.
"""
HEAD = "| script | other codes | without, of the frequent ones | not checked | not read |\n|---|---|---|---|---|"


def reports(tree: Path, stack: str) -> Iterator[tuple[str, Report]]:
    """Every script below a checkout's folders of scripts, by its path there, and what the check says of it."""
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.sh")):
            yield path.relative_to(tree).as_posix(), check(*inputs.read([str(path)], None, stack))


def section(title: str, stack: str, tree: Path) -> str:
    """One upstream's section: the scripts that start a run as a table, and the folders of the others."""
    found = dict(reports(tree, stack))
    if not found:
        raise SystemExit(f"{tree}: no scripts in {', '.join(FOLDERS)}; name a checkout of verl or slime")
    runs = {name: report for name, report in found.items() if any(run.scenario for run in report.runs)}
    codes = {name: {finding.rule.code for finding in report.findings} for name, report in runs.items()}
    count = Counter(code for one in codes.values() for code in one)
    frequent = sorted((code for code in count if 4 * count[code] >= 3 * len(runs)), key=_order)
    statuses = ", ".join(
        f"{number} with status {status}"
        for status, number in sorted(Counter(report.status for report in runs.values()).items())
    )
    said = ", ".join(f"{code} ({count[code]})" for code in frequent)
    lines = [f"## {title}", "", f"{len(runs)} scripts that start a run: {statuses}."]
    lines[-1] += f" Found in at least three of four of them, and left out of the table where found: {said}."
    lines += ["", HEAD]
    for name, report in runs.items():
        others = sorted(codes[name] - set(frequent), key=_order)
        without = [code for code in frequent if code not in codes[name]]
        unchecked = sum(not one.target for one in report.unchecked)
        cells = [name, " ".join(others), " ".join(without), unchecked, len(report.unread)]
        lines.append(f"| {' | '.join(str(cell or '–') for cell in cells)} |")
    rest = Counter(name.rpartition("/")[0] for name in found.keys() - runs.keys())
    if rest:
        where = ", ".join(f"{folder} ({number})" for folder, number in sorted(rest.items()))
        lines += ["", f"{rest.total()} start no run that is known here, and are named as not read, in {where}."]
    return "\n".join(lines) + "\n"


def _order(code: str) -> tuple[int, str]:
    """The rules of the framework first, then those of the environment and of the card."""
    return "VSMEN".index(code[0]), code


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", nargs=3, action="append", required=True, metavar=("TITLE", "STACK", "PATH"))
    sections = [section(title, stack, Path(path)) for title, stack, path in parser.parse_args().tree]
    PAGE.write_text("\n".join([WRITTEN, *sections]), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
