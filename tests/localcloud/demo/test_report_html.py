"""The HTML page: a single well-formed file with all figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from localcloud.demo.report import build_report
from localcloud.demo.report_charts import ticks
from localcloud.demo.report_format import count, dollars, duration
from localcloud.demo.report_html import render_html

VOID = {"meta", "br", "line", "rect", "circle", "path", "polyline"}


class Outline(HTMLParser):
    """Checks that elements are properly nested; collects attributes and titles."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture
def page(with_notice: Any, deployment: Any, prices: Any) -> str:
    return render_html(build_report(with_notice["events"], with_notice["records"], deployment, prices))


def test_page_is_well_formed_without_external_resources(page: str) -> None:
    parsed = outline(page)
    names = {name for _, name, _ in parsed.attributes}
    assert not names & {"src", "href", "onclick", "onload"}
    assert "<script" not in page and "url(" not in page and "@import" not in page
    assert page.startswith("<!doctype html>") and 'lang="en"' in page
    assert "prefers-color-scheme: dark" in page


def test_page_has_verdict_figures_and_marks(page: str) -> None:
    assert "<h1>Trained all 300 steps with 1 spot interruption" in page
    assert "unigram 6.31" in page and "interruption \u00b7 120 s notice" in page
    assert "22 s of downtime" in page
    assert "Prices as of 2026-11-20" in page and "saved</span>" in page
    assert "No calls were denied" in page
    assert page.count("<svg") == 3


def test_bars_have_hover_titles(page: str) -> None:
    titles = outline(page).titles
    assert any(re.match(r"boot: python_env, 5\.2 s \(done\)", title) for title in titles)
    assert any(title.startswith("generation 1, rank 1 of 2: ") and title.endswith(", stopped") for title in titles)
    assert any("interruption, 120 s notice" in title for title in titles)
    assert any(title.startswith("step 20: validation loss") for title in titles)


def test_coordinates_are_inside_the_charts(page: str) -> None:
    for _, name, value in outline(page).attributes:
        if name in ("x", "x1", "x2", "cx"):
            assert -1 <= float(value) <= 1001, value
        assert "nan" not in value.lower().split() and "inf" not in value.lower().split()


def test_input_text_is_escaped(with_notice: Any, deployment: Any, prices: Any) -> None:
    deployment["iam_denied_calls"] = [{"principal": "<b>", "action": "s3:*", "resource": "a&b"}]
    with_notice["records"][0]["zone"] = "<script>"
    page = render_html(build_report(with_notice["events"], with_notice["records"], deployment, prices))
    outline(page)
    assert "<script>" not in page and "&lt;b&gt;" in page and "a&amp;b" in page


@pytest.mark.parametrize("kept", [0, 1, 5, 40, 200])
def test_incomplete_run_has_a_page(with_notice: Any, deployment: Any, kept: int) -> None:
    events = sorted(with_notice["events"], key=lambda event: event["unix_seconds"])[:kept]
    report = build_report(events, with_notice["records"][: kept // 40], deployment, {})
    outline(render_html(report))
    assert report["problems"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 300, [0, 50, 100, 150, 200, 250, 300]), (2.1, 8.4, [4, 6, 8]), (0, 0, [0]), (0, 0.011, None)],
)
def test_ticks_are_round_and_in_range(low: float, high: float, expected: Any) -> None:
    found = ticks(low, high)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    assert expected is None or found == pytest.approx(expected)


def test_formats() -> None:
    assert [duration(s) for s in (0.0, 4.23, 74.4, 725.0, 11040.0, None)] == [
        "0 s", "4.2 s", "74 s", "12 min 5 s", "3 h 4 min", "\u2013",
    ]  # fmt: skip
    assert [dollars(v) for v in (0.00437, 12.3, 1234.5, None)] == ["$0.0044", "$12.30", "$1,234.50", "\u2013"]
    assert count(18540.4) == "18\u202f540"
