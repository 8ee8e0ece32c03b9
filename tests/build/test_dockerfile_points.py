"""The counts of build/dockerfile_points.py, on small Dockerfiles that hold each habit once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from build.dockerfile_points import Points, measure, table

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = Path(__file__).parents[2] / "build" / "dockerfile_points.py"


@pytest.fixture(scope="module")
def plain() -> Points:
    return measure("FROM scratch\n")


def test_a_bare_file_has_nothing_to_count(plain: Points) -> None:
    assert plain == Points(*[0] * 13)


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        ("LABEL a=1 \\\n  b=2\nLABEL c=3", {"labels": 2}),
        ("# LABEL a=1\nUSER 1000", {"users": 1}),
        ("HEALTHCHECK CMD true", {"health": 1}),
        ("RUN git clone --depth 1 -b v1 https://host.invalid/a.git", {"clones": 1, "unpinned": 1}),
        (f"RUN git clone https://host.invalid/a.git && cd a && git checkout {COMMIT}", {"clones": 1}),
        (f"ARG AT={COMMIT}\nRUN git clone https://host.invalid/a.git a && git -C a checkout ${{AT}}", {"clones": 1}),
        ("ARG AT=main\nRUN git clone https://host.invalid/a a && git -C a checkout $AT", {"clones": 1, "unpinned": 1}),
        (
            f"RUN git clone https://h.invalid/a && git clone https://h.invalid/b && \\\n    git -C b checkout {COMMIT}",
            {"clones": 2, "unpinned": 1},
        ),
        ("RUN sed -i '34s/cuda/npu/;51s/cuda/npu/' file.py", {"line_edits": 1}),
        ("RUN sed -i 's/cuda/npu34/' file.py", {}),
        ("RUN mkdir b && cmake .. && make -j", {"compiles": 2}),
        ("RUN pip install a==1 && python3 -m pip install --require-hashes -r r.txt", {"installs": 2, "hashed": 1}),
        ("ENV GIT_SSL_NO_VERIFY=true", {"no_tls": 1}),
        ("RUN pip config set global.index-url https://host.invalid/simple", {"indexes": 1}),
    ],
)
def test_each_habit_is_counted_where_it_is(plain: Points, lines: str, change: dict[str, int]) -> None:
    found = measure(f"FROM scratch\n{lines}\n")
    assert replace(found, findings=0) == replace(plain, **change)


def test_a_script_that_is_run_counts_as_if_it_stood_there(plain: Points) -> None:
    script = "#!/bin/sh\n# pip install nothing\npip install \\\n  --require-hashes -r r.txt || exit 4\n"
    assert replace(measure("FROM scratch\nRUN sh it.sh\n", [script]), findings=0) == replace(
        plain, installs=1, hashed=1
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("FROM debian:12\n", 1),
        ("ARG TAG=12\nFROM debian:${TAG}\n", 1),
        (f"FROM debian@sha256:{COMMIT}\n", 0),
        ("ARG BASE\nFROM ${BASE}\n", 0),
        ("FROM --platform=linux/arm64 debian:12 AS one\nFROM one\n", 1),
    ],
)
def test_a_base_without_a_digest_is_counted(text: str, count: int) -> None:
    assert measure(text).bases == count


def test_an_ignore_comment_hides_no_finding() -> None:
    finding = "FROM scratch\nRUN cd /tmp && ls\n"
    hidden = finding.replace("RUN", "# hadolint ignore=DL3003\nRUN")
    assert measure(finding).findings == measure(hidden).findings == 1


def test_the_table_has_a_column_for_each_file(plain: Points) -> None:
    rows = table({"one": plain, "two": replace(plain, users=7)}).splitlines()
    assert rows[0] == "| point | one | two |"
    assert "| `USER` instructions | 0 | 7 |" in rows


@pytest.mark.parametrize(
    ("words", "status", "said"), [([], 2, "NAME=PATH"), (["a=docker/Dockerfile,missing-file"], 3, "missing-file")]
)
def test_bad_input_is_one_line(words: list[str], status: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words], cwd=PROGRAM.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
