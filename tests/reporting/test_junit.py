"""JUnit XML: the structure that Jenkins asks for, and a red build wherever the verdict is not "consistent"."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from train_infer_consistency.comparing.record import Comparison, ModuleResult
from train_infer_consistency.reporting.junit import junit_lines

COUNTS = {"tests", "failures", "errors", "skipped"}
# Of Jenkins' junit-10.xsd: (attributes that are needed, attributes that are allowed, children in their order).
SCHEMA = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "disabled", "errors"}, ["testsuite"]),
    "testsuite": (
        {"name"},
        {"name", *COUNTS, "time", "timestamp", "hostname", "disabled", "id", "package"},
        ["properties", "testcase", "system-out", "system-err"],
    ),
    "properties": (set(), set(), ["property"]),
    "property": ({"name", "value"}, {"name", "value"}, []),
    "testcase": (
        {"name"},
        {"name", "assertions", "time", "classname", "status"},
        ["skipped", "error", "failure", "system-out", "system-err"],
    ),
    "skipped": (set(), {"type", "message"}, []),
    "error": (set(), {"type", "message"}, []),
    "failure": (set(), {"type", "message"}, []),
}


def check(element: ET.Element) -> None:
    """Hold an element and what is below it against the schema."""
    needed, allowed, children = SCHEMA[element.tag]
    assert needed <= set(element.attrib) <= allowed, element.attrib
    places = [children.index(child.tag) for child in element]
    assert places == sorted(places)
    if element.tag in ("testsuites", "testsuite", "testcase", "properties"):
        assert not (element.text or "").strip()
    if element.tag in ("testsuites", "testsuite"):
        cases = list(element.iter("testcase"))
        tags = {"tests": "", "failures": "failure", "errors": "error", "skipped": "skipped"}
        for name in COUNTS & element.attrib.keys():
            found = len(cases) if name == "tests" else sum(case.find(tags[name]) is not None for case in cases)
            assert int(element.attrib[name]) == found, (element.attrib["name"], name)
    for child in element:
        check(child)


def parse(comparison: Comparison) -> ET.Element:
    root = ET.fromstring("".join(junit_lines(comparison)))
    check(root)
    return root


def red(root: ET.Element) -> list[tuple[str, str]]:
    return [
        (case.attrib["name"], tag)
        for case in root.iter("testcase")
        for tag in ("failure", "error")
        if case.find(tag) is not None
    ]


def test_a_case_per_module(equal: Comparison) -> None:
    root = parse(equal)
    assert red(root) == []
    names = [case.attrib["name"] for case in root.iter("testcase") if case.attrib["name"] != "verdict"]
    assert names == [module.module for module in equal.pairs[0].modules]


def test_a_difference_is_a_failure_with_figures_and_places(planted: Comparison) -> None:
    root = parse(planted)
    assert red(root) == [("verdict", "failure"), ("verdict", "failure"), ("layers.1.mlp.down", "failure")]
    (case,) = [case for case in root.iter("testcase") if case.attrib["name"] == "layers.1.mlp.down"]
    failure = case.find("failure")
    assert failure is not None
    assert failure.text is not None
    assert failure.attrib["message"].startswith("output: relative error 0.0826, bound ")
    difference = planted.first_difference
    assert difference is not None
    for quantity in (difference.row.inference, difference.row.training):
        assert quantity is not None
        assert f"norm {quantity.stats.norm:.7g}" in failure.text
        assert str(quantity.pieces[0].dump.path) in failure.text
        assert quantity.pieces[0].call.name in failure.text
    skipped = {
        case.attrib["name"]: element.attrib["message"]
        for case in root.iter("testcase")
        if (element := case.find("skipped")) is not None
    }
    assert skipped["layers.0.attn.o"] == "only the inference side has it"


def test_too_little_evidence_is_an_error_and_not_green(nothing: Comparison) -> None:
    assert red(parse(nothing)) == [("verdict", "error"), ("verdict", "error")]
    assert red(parse(replace(nothing, pairs=[]))) == [("verdict", "error")]


def test_suites_of_a_run(run: Comparison) -> None:
    root = parse(run)
    names = [suite.attrib["name"] for suite in root]
    assert names == ["verdict", *(f"pair {n + 1} {pair.request_id}" for n, pair in enumerate(run.pairs))]


@pytest.mark.parametrize("text", ["<&\">'", "\x00\x0b\ud800", "层 \U0001f600", "a\nb"])
def test_any_text_of_a_dump_is_well_formed(equal: Comparison, text: str) -> None:
    module = ModuleResult(text, "not compared", text, counted=True)
    pair = replace(equal.pairs[0], request_id=text, modules=[module], verdict="different", reason=text)
    root = parse(replace(equal, pairs=[pair], verdict="different", reason=text))
    if "\x00" not in text:
        assert text.replace("\n", " ") in [case.attrib["name"].replace("\n", " ") for case in root.iter("testcase")]


def test_the_plan_is_a_property_of_the_verdict(planned: Comparison) -> None:
    properties = parse(planned).find("testsuite[@name='verdict']/properties")
    assert properties is not None
    assert {(one.get("name"), one.get("value")) for one in properties} == {
        ("plan.scenario", "verl-hybrid"),
        ("plan.stack", "verl-0.8"),
        ("plan.run_id", "t"),
        ("plan.folder", "/plans/<a>"),
        ("plan.file", "/dumps/plan.toml"),
    }
    assert planned.plan is not None
    other = replace(planned, plan=replace(planned.plan, runs=("u",)))
    assert 'name="plan.note" value="NOT the plan of these dumps, which are of run u"' in "".join(junit_lines(other))
