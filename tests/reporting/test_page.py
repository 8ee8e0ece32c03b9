"""What is in the page: every number with its place, both languages, nothing from outside. test_browser.py opens it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.errors import UnfinishedError
from train_infer_consistency.pairing.model import Reason
from train_infer_consistency.reporting import page as page_module
from train_infer_consistency.reporting.page import page, plotting_library
from train_infer_consistency.reporting.payload import payload

Shape = dict[str, Any]


def packed(text: str, name: str) -> str:
    """What is packed in a page under a name."""
    found = re.search(f'<script type="text/plain" id="packed-{name}">([^<]*)</script>', text)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def words() -> dict[str, Shape]:
    found: dict[str, Shape] = json.loads((Path(page_module.__file__).parent / "assets" / "words.json").read_text())
    return found


def test_the_page_holds_the_data_and_the_library(planted: Comparison) -> None:
    text = "".join(page(planted, "zh"))
    assert json.loads(packed(text, "data")) == payload(planted, "zh")
    assert packed(text, "library") == plotting_library()
    assert text.startswith("<!DOCTYPE html>")
    assert "{{" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert len(text) < 2_500_000


def test_nothing_is_loaded_from_anywhere(planted: Comparison) -> None:
    text = "".join(page(planted))
    assert re.findall(r"""\b(?:src|href)=["'](?!#|data:,)[^"']*["']""", text) == []
    assert re.findall(r"url\(|@import|https?://", text) == []


def test_the_same_comparison_is_the_same_page(planted: Comparison) -> None:
    assert list(page(planted)) == list(page(planted))


def test_every_number_has_its_file_step_rank_and_entry(planted: Comparison) -> None:
    shown = payload(planted, None)
    (pair,) = shown["pairs"]
    rows = 0
    for module, result in zip(pair["modules"], planted.pairs[0].modules, strict=True):
        assert module["module"] == result.module
        for row, record in zip(module["rows"], result.rows, strict=True):
            for side, quantity in (("inference", record.inference), ("training", record.training)):
                assert quantity is not None
                rows += 1
                assert row[side]["stats"] == list(quantity.summary)
                places = [(shown["files"][number], entry, slot) for number, entry, slot in row[side]["places"]]
                assert places == [
                    (
                        {"path": str(piece.dump.path), "step": piece.dump.step, "rank": piece.dump.rank},
                        piece.call.name,
                        piece.slot,
                    )
                    for piece in quantity.pieces
                ]
    assert rows > 80
    assert {file["path"] for file in shown["files"]} == {
        str(side.dumps[0].path) for side in (planted.pairs[0].inference, planted.pairs[0].training) if side is not None
    }


def test_missing_and_partnerless_modules_name_their_side_and_place(planted: Comparison) -> None:
    shown = payload(planted, None)
    modules = {module["module"]: module for module in shown["pairs"][0]["modules"]}
    missing = modules["layers.0.attn.o"]
    assert (missing["word"], missing["on"], missing["reason"]) == (
        "missing", "inference", "only the inference side has it",
    )  # fmt: skip
    assert {entry for _, entry, _ in missing["places"]} == {
        "Module.model.layers.0.self_attn.o_proj.RowParallelLinear.forward.0"
    }
    assert (modules["layers.0.attn.core"]["word"], modules["layers.0.attn.core"]["on"]) == ("partnerless", "inference")
    assert (modules["layers.0.mlp.act"]["word"], modules["layers.0.mlp.act"]["on"]) == ("partnerless", "training")
    assert shown["pairs"][0]["counts"] == {
        "equal": 18, "within rounding": 0, "differs": 1, "not compared": 0, "missing": 1, "partnerless": 10,
    }  # fmt: skip


def test_pairs_that_do_not_fit_are_named_without_their_modules(run: Comparison) -> None:
    whole, short = payload(run, None), payload(run, None, most_rows=1)
    assert [pair["modules"] is not None for pair in whole["pairs"]] == [True, True]
    assert [pair["modules"] is not None for pair in short["pairs"]] == [True, False], "the first speaks for the whole"
    assert short["main"] == 0
    assert short["pairs"][1]["training"]["files"] == whole["pairs"][1]["training"]["files"]


def test_rejected_steps_by_reason(run: Comparison) -> None:
    rejected = payload(run, None)["rejected"]
    assert sorted(rejected["counts"]) == [
        ["inference", "several-requests", "several requests in one forward", 2],
        ["training", "several-requests", "several requests in one forward", 6],
    ]
    assert len(rejected["steps"]) == 8
    assert rejected["steps"][0][-1] == "dispatch_log.jsonl:2"


def test_markup_in_a_name_stays_data(equal: Comparison) -> None:
    pair = replace(equal.pairs[0], request_id="</script><script>alert(1)</script>")
    text = "".join(page(replace(equal, pairs=[pair], reason="<b>")))
    assert "alert(1)" not in text
    assert text.count("<script") == 4


def test_both_languages_have_every_word() -> None:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items() if key != "reasons"}
        return sorted(re.findall(r"\{\w+\}", value)) if isinstance(value, str) else len(value)

    found = words()
    assert shape(found["en"]) == shape(found["zh"])
    assert found["zh"]["reasons"].keys() == {reason.value for reason in Reason if reason is not Reason.USED}


def test_every_word_that_the_page_asks_for_is_there() -> None:
    assets = Path(page_module.__file__).parent / "assets"
    script, markup = (assets / "page.js").read_text(), (assets / "page.html").read_text()
    asked = set(re.findall(r"""\bword\("(\w+)\"""", script)) | set(re.findall(r'data-word="(\w+)"', markup))
    assert asked
    assert asked <= words()["en"].keys()


def test_without_plotly_one_line_says_what_to_install(planted: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UnfinishedError, match=r"pip install 'train-infer-consistency\[analysis\]'"):
        list(page(planted))


def test_the_wheel_has_the_parts_of_the_page(own_wheel: Path) -> None:
    with zipfile.ZipFile(own_wheel) as wheel:
        names = {name.rpartition("/")[2] for name in wheel.namelist() if "/reporting/assets/" in name}
    assert names == {"page.html", "page.css", "page.js", "words.json"}


def test_what_both_sides_have_without_a_row_in_common_is_on_both(gaps: Comparison) -> None:
    shown = payload(gaps, None)
    (module,) = [module for module in shown["pairs"][0]["modules"] if module["module"] == "layers.0.mlp.down"]
    assert (module["word"], module["on"]) == ("not compared", None)
    assert {entry for _, entry, _ in module["places"]} == {
        "Module.model.layers.0.mlp.down_proj.RowParallelLinear.forward.0"
    }
    assert shown["pairs"][0]["counts"]["not compared"] == 2
