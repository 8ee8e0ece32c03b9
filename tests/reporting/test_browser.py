"""The page in a real headless Chromium, opened from its file with no network: what a reader sees and can do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.comparing.cases import direct, dump_of
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.pairing.plan import Plan
from train_infer_consistency.reporting.files import write_text
from train_infer_consistency.reporting.page import page
from train_infer_consistency.reporting.profile import curve, heat_map

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1300,2400",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--lang=en-US",
)  # fmt: skip

Open = Callable[..., "Page"]


class Page:
    """An opened report."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def modules(self) -> list[str]:
        """The modules of the table as it is shown."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll('#table tr.module')].map(r => r.dataset.module)"
        )
        return found


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    browser, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        pytest.skip("no chromium and chromedriver on this machine (Debian: apt-get install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = Chrome(options=options, service=ChromeService(executable_path=chromedriver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def held() -> dict[str, Comparison]:
    """What the browser has open, as it was opened."""
    return {}


@pytest.fixture
def opened(driver: Chrome, held: dict[str, Comparison], tmp_path: Path) -> Iterator[Open]:
    def act(comparison: Comparison, language: str | None = "en") -> Page:
        if language == "en" and held.get("en") is comparison:
            driver.find_element(By.ID, "reset").click()  # loading a page anew costs seconds
            return Page(driver)
        held.clear()
        held[str(language)] = comparison
        path = tmp_path / "report.html"
        write_text(path, page(comparison, language))
        driver.get(path.as_uri())
        shown = Page(driver)
        WebDriverWait(driver, 30).until(
            lambda _: shown.run("return document.body.dataset.ready || document.getElementById('failure').textContent")
        )
        assert shown.text("#failure") == ""
        return shown

    yield act
    assert driver.get_log("browser") == [], "the page complains in the browser's console"  # type: ignore[no-untyped-call]
    assert driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []


def test_a_difference_at_first_sight(opened: Open, planted: Comparison) -> None:
    shown = opened(planted)
    assert shown.text("#verdict") == "Different"
    assert shown.text("#headline") == planted.reason
    assert shown.text("#coverage") == "95.0 %"
    assert shown.text("#difference-module") == "layers.1.mlp.down"
    difference = planted.first_difference
    assert difference is not None
    body = shown.text("#difference-body")
    for quantity in (difference.row.inference, difference.row.training):
        assert quantity is not None
        assert str(quantity.pieces[0].dump.path) in body
        assert f"step 0 · rank 0 · {quantity.pieces[0].call.name} · output" in body
        norm = quantity.stats.norm
        assert norm is not None
        assert f"{norm:.7g}" in body


def test_the_plots_show_the_profile(opened: Open, planted: Comparison) -> None:
    shown = opened(planted)
    points = curve(planted.pairs[0])
    drawn = shown.run(
        "const p = document.getElementById('curve'); return [p.data[0].y, p.layout.xaxis.ticktext, p.layout.shapes]"
    )
    errors = [point.worst.error for point in points if point.worst is not None]
    assert drawn[1] == [point.column for point in points]
    assert [value for value, error in zip(drawn[0], errors, strict=True) if error] == [
        error for error in errors if error
    ]
    assert [shape["x0"] for shape in drawn[2]] == [2], "the line of the first difference stands at layer 1"
    assert len(shown.all("#curve .scatterlayer .trace")) == 3
    heat = heat_map(planted.pairs[0])
    drawn = shown.run("const p = document.getElementById('heat'); return [p.data[0].z, p.data[1].z, p.data[0].y]")
    assert drawn[2] == heat.rows
    for r, row in enumerate(heat.rows):
        for c, column in enumerate(heat.columns):
            cell = heat.cells.get((row, column))
            other, shade = drawn[0][r][c], drawn[1][r][c]
            if cell is None:
                assert (other, shade) == (None, None)
            elif cell.word in ("missing", "partnerless"):
                assert (other, shade) == ({"missing": 1, "partnerless": 2}[cell.word], None)
            else:
                assert other is None
                assert (shade > 1) == (cell.word == "differs")
                assert (shade == 0) == (cell.word == "equal")
    assert len(shown.all("#heat .heatmaplayer image")) == 2


def test_search_and_filters(opened: Open, planted: Comparison) -> None:
    shown = opened(planted)
    everything = [module.module for module in planted.pairs[0].modules]
    assert shown.modules() == everything
    shown.one("#search").send_keys("mlp.down")
    by_reason = ["layers.0.mlp.act_and_mul", "layers.1.mlp.act_and_mul"]  # "the result is mlp.down's input"
    assert set(shown.modules()) == {"layers.0.mlp.down", "layers.1.mlp.down", *by_reason}
    shown.one("[data-state='differs']").click()
    assert shown.modules() == ["layers.1.mlp.down"]
    shown.one("#search").send_keys(" layers.0")
    assert shown.modules() == []
    assert "No module fits." in shown.text("#table")
    shown.one("#reset").click()
    assert shown.modules() == everything
    shown.one("#layer option[value='1']").click()
    assert shown.modules() == [name for name in everything if name.startswith("layers.1")]
    shown.one("#layer option[value='outside']").click()
    assert shown.modules() == [name for name in everything if not name.startswith("layers")]


def test_a_module_opens_with_its_figures_by_mouse_and_by_keyboard(opened: Open, planted: Comparison) -> None:
    shown = opened(planted)
    row = shown.one("#table tr[data-module='layers.0.attn.qkv']")
    row.click()
    detail = shown.text("#table tr.detail")
    (result,) = [module for module in planted.pairs[0].modules if module.module == "layers.0.attn.qkv"]
    pieces = [piece for record in result.rows if record.training is not None for piece in record.training.pieces]
    assert len({piece.call.name for piece in pieces}) == 3
    for piece in pieces:
        assert f"{piece.dump.path} · step 0 · rank 0 · {piece.call.name} · {piece.slot}" in detail
    assert "put together from 3 tensors" in detail
    row.click()
    assert shown.all("#table tr.detail") == []
    row.send_keys(Keys.ENTER)
    assert len(shown.all("#table tr.detail")) == 1


def test_a_click_on_a_cell_leads_to_its_module(opened: Open, planted: Comparison) -> None:
    shown = opened(planted)
    heat = heat_map(planted.pairs[0])
    plot = shown.one("#heat")
    shown.run("arguments[0].scrollIntoView({block: 'center'})", plot)
    x, y, width, height = shown.run(
        "const p = arguments[0], a = p._fullLayout.xaxis, b = p._fullLayout.yaxis, r = p.getBoundingClientRect();"
        "return [a._offset + a.c2p(arguments[1]), b._offset + b.c2p(arguments[2]), r.width, r.height]",
        plot,
        heat.columns.index("1"),
        heat.rows.index("mlp.down"),
    )
    over = ActionChains(shown.driver).move_to_element_with_offset(plot, x - width / 2, y - height / 2)
    over.pause(0.3).click().perform()
    WebDriverWait(shown.driver, 10).until(lambda _: shown.all("#table tr.detail"))
    assert shown.modules() == ["layers.1.mlp.down"]


def test_missing_and_partnerless_are_listed(opened: Open, planted: Comparison) -> None:
    shown = opened(planted)
    missing = shown.text("#missing")
    assert "layers.#.attn.o" in missing
    assert "only the inference side has it" in missing
    assert "o_proj.RowParallelLinear.forward.0" in missing
    partnerless = [row.text for row in shown.all("#partnerless tbody tr")]
    assert any(row.startswith("layers.#.attn.core 0–1 Inference") for row in partnerless)
    assert len(partnerless) == 6, "one line for a module of all layers"


def test_pairs_and_steps_that_were_not_used(opened: Open, run: Comparison) -> None:
    shown = opened(run)
    assert shown.text("#verdict") == "Consistent"
    first, second = (str(pair.request_id) for pair in run.pairs)
    assert first in shown.text("#sides")
    buttons = shown.all("#used button")
    assert [button.get_attribute("aria-pressed") for button in buttons] == ["true", "false"]
    buttons[1].click()
    assert second in shown.text("#sides")
    counts = [row.text for row in shown.all("#rejected > .wide tbody tr")]
    assert counts == [
        "Training several requests in one forward [several-requests] 6",
        "Inference several requests in one forward [several-requests] 2",
    ]
    shown.one("#rejected summary").click()
    WebDriverWait(shown.driver, 10).until(lambda _: len(shown.all("#rejected details tbody tr")) == 8)
    assert "dispatch_log.jsonl:2" in shown.text("#rejected details")


def test_the_plan_is_named_and_one_of_another_run_is_said_to_be_one(opened: Open, planned: Comparison) -> None:
    shown = opened(planned)
    named = "Plan: verl-hybrid, stack verl-0.8, run t · /plans/<a> (/dumps/plan.toml)"
    assert shown.text("#plan") == named
    shown.one("[data-lang='zh']").click()
    assert shown.text("#plan").startswith("方案：verl-hybrid，版本组合 verl-0.8，运行编号 t")
    assert planned.plan is not None
    for plan, doubt in (
        (replace(planned.plan, runs=("u", "v")), "This is NOT the plan of these dumps: their logs are of run u, v."),
        (replace(planned.plan, runs=()), "The dumps carry no run id that would show that this plan is theirs."),
    ):
        shown = opened(replace(planned, plan=plan))
        assert shown.text("#plan") == f"{named} {doubt}"
        assert shown.text("#plan strong") == doubt
    unread = Plan("/dumps/plan.toml", problem="/dumps/plan.toml is no valid TOML")
    assert opened(replace(planned, plan=unread)).text("#plan") == "/dumps/plan.toml is no valid TOML"
    assert not opened(replace(planned, plan=None)).one("#plan").is_displayed()


def test_the_language_is_switched_in_the_page_and_by_option(opened: Open, planted: Comparison) -> None:
    shown = opened(planted, None)
    assert shown.text("#verdict") == "Different", "the browser's own language is English"
    shown.one("[data-lang='zh']").click()
    assert shown.text("#verdict") == "不一致"
    assert shown.text("#headline").startswith("layers.1.mlp.down 的 输出：相对误差 0.083")
    assert [head.text for head in shown.all("#table th")] == [
        "模块",
        "结果",
        "最差的一行",
        "相对误差",
        "误差 / 上限",
        "原因",
    ]
    assert "首个差异" in shown.text("#curve")
    shown.one("[data-lang='en']").click()
    assert shown.text("#verdict") == "Different"
    assert opened(planted, "zh").text("#verdict") == "不一致"


def test_too_little_evidence_has_no_plots_and_says_why(opened: Open, nothing: Comparison) -> None:
    shown = opened(nothing)
    assert shown.text("#verdict") == "Not enough evidence"
    assert "has no data" in shown.text("#headline")
    assert not shown.one("#depth").is_displayed()
    assert opened(replace(nothing, pairs=[])).text("#verdict") == "Not enough evidence"


def test_equal_models_say_that_there_is_no_error_to_draw(opened: Open, dumps: Path) -> None:
    one = dump_of(dumps / "lookalike" / "vllm_fp32_stat")
    shown = opened(direct(one, one))
    assert "every module that was compared is equal" in shown.text("#curve")


def test_names_from_dumps_are_never_markup(opened: Open, equal: Comparison) -> None:
    evil = "<img src=x onerror='document.title=1'><b>&amp;"
    modules = [replace(module, reason=evil) for module in equal.pairs[0].modules]
    shown = opened(replace(equal, reason=evil, pairs=[replace(equal.pairs[0], request_id=evil, modules=modules)]))
    assert shown.text("#headline") == evil
    assert evil in shown.text("#sides")
    assert evil in shown.text("#table")
    assert shown.all("main img, main b b") == []
