"""The HTML page: a single well-formed file that contains all figures and the chart data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from trainstack.report import page as page_module
from trainstack.report.charts import MAX_LABELLED_MARKS, MAX_POINTS, charts_of
from trainstack.report.page import MissingLibrary, render_html
from trainstack.report.summary import Inputs, build_report
from trainstack.report.text import count, dollars, duration, duration_ticks, size, tick

ABOUT: dict[str, Any] = {
    "name": "demo",
    "run": "first",
    "run_digest": "a" * 64,
    "nodes": 2,
    "processes_per_node": 1,
    "settings": {"steps": 300, "model.preset": "demo", "optimizer.learning_rate": 0.0015, "threads": 1, "seed": None},
    "dataset": {
        "name": "text",
        "url": "s3://data/datasets/text",
        "tokens": {"train": 12345, "validation": 678},
        "vocabulary_size": 4096,
        "bytes_per_token": 3.1,
        "source_files": 30,
        "source_bytes": 1_234_567,
        "source_digest": "b" * 64,
    },
    "code": {"sha256": "c" * 64, "url": "s3://assets/code.zip"},
    "weights": {"url": "s3://checkpoints/runs/demo/first/checkpoints", "step": 300},
    "sample": {"prompt": "def ", "text": "def f(<x>): pass", "step": 300, "temperature": 0.8, "seed": 0},
}


class Outline(HTMLParser):
    """Checks that elements are properly nested; collects attributes and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def report_of(run: Any, deployment: Any, prices: Any, about: Any = None) -> dict[str, Any]:
    return build_report(Inputs(run["events"], run["records"], deployment, prices, about=about or {}))


@pytest.fixture
def page(with_notice: Any, deployment: Any, prices: Any) -> str:
    return render_html(report_of(with_notice, deployment, prices, ABOUT))


def test_page_is_well_formed_without_external_resources(page: str) -> None:
    parsed = outline(page)
    names = {name for _, name, _ in parsed.attributes}
    assert not names & {"src", "href", "onclick", "onload"}
    assert "url(" not in page.replace("url(#", "") and "@import" not in page
    assert page.startswith("<!doctype html>") and 'lang="en"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(page) < 200_000


def test_page_has_the_chart_library_and_its_data(page: str) -> None:
    data, library, labels, own = outline(page).scripts
    assert set(json.loads(data)) == {"loss", "learning-rate", "throughput"}
    assert "var uPlot=" in library and "placeLabels =" in labels and "new uPlot(" in own
    for name in json.loads(data):
        assert f'id="chart-{name}"' in page


def test_page_has_verdict_figures_and_sections(page: str) -> None:
    assert "<h1>Trained all 300 steps with 1 spot interruption" in page
    assert "Prices as of 2026-11-20" in page and "<td>c6i.xlarge</td>" in page and "$0.0612" in page
    assert "optimizer.learning_rate" in page and "<code>0.0015</code>" in page
    assert "12\u202f345 for train" in page and "1.2 MB" in page and "trainstack weights demo -o DIR" in page
    assert '<pre class="sample"><b>def </b>f(&lt;x&gt;): pass</pre>' in page
    folded = [each.partition("</summary>")[0] for each in page.split("<details><summary>")[1:]]
    assert folded == ["1 other settings", "Boot steps", "Resumes", "Resources", "Denied calls"]


def test_bars_have_hover_titles(page: str) -> None:
    titles = [value for _, name, value in outline(page).attributes if name == "title"]
    assert any(re.match(r"boot: python_env, 5\.2 s \(done\)", title) for title in titles)
    assert any(title.startswith("generation 1, rank 1 of 2: ") and title.endswith(", stopped") for title in titles)
    assert any("interruption, 120 s notice" in title for title in titles)


def test_bars_are_inside_the_timeline(page: str) -> None:
    styles = [value for tag, name, value in outline(page).attributes if name == "style" and "left:" in value]
    assert len(styles) > 20
    for style in styles:
        left = float(re.search(r"left:([\d.-]+)%", style)[1])  # type: ignore[index]
        width = re.search(r"width:([\d.-]+)%", style)
        assert left >= 0 and left + (float(width[1]) if width else 0) <= 100.2, style


def test_loss_chart_has_one_value_per_step_and_series(with_notice: Any, deployment: Any, prices: Any) -> None:
    chart = charts_of(report_of(with_notice, deployment, prices))["loss"]
    steps, train, validation, unigram = chart["columns"]
    assert steps == list(range(1, 301)) and all(len(column) == 300 for column in chart["columns"])
    assert train[0] > 8 and validation[19] is not None and validation[18] is None and set(unigram) == {6.31}
    assert [(mark["x"], mark["text"]) for mark in chart["marks"]] == [
        (140, "interruption, 120 s notice"),
        (140, "resume from step 140"),
    ]


def test_loss_chart_shows_steps_that_were_trained_again(without_notice: Any, deployment: Any, prices: Any) -> None:
    chart = charts_of(report_of(without_notice, deployment, prices))["loss"]
    labels = [series["label"] for series in chart["series"]]
    again = chart["columns"][1 + labels.index("trained again after a resume")]
    assert [step for step, value in zip(chart["columns"][0], again, strict=True) if value] == list(range(121, 141))


def test_throughput_has_a_gap_where_no_training_was(with_notice: Any, deployment: Any, prices: Any) -> None:
    chart = charts_of(report_of(with_notice, deployment, prices))["throughput"]
    times, speeds = chart["columns"]
    assert times == sorted(times) and speeds.count(None) == 1
    assert [mark["text"] for mark in chart["marks"]] == ["22 s of downtime"]
    assert chart["x"] == "seconds since the first launch"


def test_a_long_run_has_few_points_and_its_extremes(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = report_of(with_notice, deployment, prices)
    point = report["series"]["train"][0]
    losses = {step: 3.0 + (7.0 if step == 54_321 else 0.0) for step in range(1, 100_001)}
    report["series"]["train"] = [{**point, "step": step, "loss": loss} for step, loss in losses.items()]
    report["series"]["validation"] = []
    steps, train, _ = charts_of(report)["loss"]["columns"]
    assert len(steps) <= MAX_POINTS + 2 and (steps[0], steps[-1]) == (1, 100_000)
    assert train[steps.index(54_321)] == 10.0


def test_a_chart_with_many_marks_explains_them_without_labels(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = report_of(with_notice, deployment, prices)
    assert charts_of(report)["loss"]["has_mark_labels"]
    assert "Red lines" not in render_html(report)
    report["interruptions"] *= MAX_LABELLED_MARKS
    assert not charts_of(report)["loss"]["has_mark_labels"]
    assert "Red lines are interruptions, and green lines are resumes." in render_html(report)


def test_input_text_is_escaped(with_notice: Any, deployment: Any, prices: Any) -> None:
    deployment["iam_denied_calls"] = [{"principal": "<b>", "action": "s3:*", "resource": "a&b"}]
    with_notice["records"][0]["zone"] = "<script>"
    about = {**ABOUT, "settings": {"entrypoint": "</script><i>"}, "name": "<u>"}
    page = render_html(report_of(with_notice, deployment, prices, about))
    outline(page)
    assert page.count("<script") == 4 and "<i>" not in page and "<u>" not in page
    assert "&lt;b&gt;" in page and "a&amp;b" in page


def test_script_data_cannot_end_its_element(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = report_of(with_notice, deployment, prices)
    report["interruptions"][0]["notice_seconds"] = None
    report["resumes"][0]["resumed_from_step"] = 7
    page = render_html(report)
    (data, *_) = outline(page).scripts
    assert "<" not in data and json.loads(data)["loss"]["marks"][0]["text"] == "interruption, no notice"


def test_sample_is_optional_and_its_problem_is_shown(with_notice: Any, deployment: Any, prices: Any) -> None:
    without = {name: value for name, value in ABOUT.items() if name != "sample"}
    assert "Text sample" not in render_html(report_of(with_notice, deployment, prices, without))
    failed = render_html(report_of(with_notice, deployment, prices, {**ABOUT, "sample": {"problem": "no <space>"}}))
    assert "Text sample" in failed and "no &lt;space&gt;" in failed


@pytest.mark.parametrize("kept", [0, 1, 5, 40, 200])
def test_incomplete_run_has_a_page(with_notice: Any, deployment: Any, kept: int) -> None:
    events = sorted(with_notice["events"], key=lambda event: event["unix_seconds"])[:kept]
    report = build_report(Inputs(events, with_notice["records"][: kept // 40], deployment, {}, about=ABOUT))
    outline(render_html(report))
    assert report["problems"]


def test_values_of_a_users_script_do_not_break_the_page(with_notice: Any, deployment: Any, prices: Any) -> None:
    extra = {"record": "step", "schema_version": 2, "unix_seconds": 1_800_000_500.0}
    odd = [{"step": "x", "loss": 1.0}, {"step": 301, "loss": float("nan")}, {"step": 302, "loss": {}}, {"step": 303}]
    for values in odd:
        event = {"event": "trainer", "unix_seconds": 1_800_000_500.0, "instance_id": "i-0aaa1111bbbb2222c"}
        with_notice["events"].append({**event, "schema_version": 2, "record": {**extra, **values}})
    outline(render_html(report_of(with_notice, deployment, prices)))


def test_missing_library_is_named(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, with_notice: Any) -> None:
    monkeypatch.setattr(page_module, "UPLOT", tmp_path)
    with pytest.raises(MissingLibrary, match="make install"):
        render_html(report_of(with_notice, {}, {}))


@pytest.mark.parametrize("seconds", [0.4, 7, 30, 74, 725, 11040, 90_000, 2_000_000])
def test_ticks_of_time_are_round_and_few(seconds: float) -> None:
    found = duration_ticks(seconds)
    assert found[0] == 0 and found[-1] <= seconds and len(found) <= 7
    labels = [tick(value) for value in found]
    assert len(set(labels)) == len(labels) and all(re.fullmatch(r"\d+ (s|min|h)", label) for label in labels)


def test_formats() -> None:
    assert [duration(s) for s in (0.0, 4.23, 74.4, 725.0, 11040.0, None)] == [
        "0 s", "4.2 s", "74 s", "12 min 5 s", "3 h 4 min", "\u2013",
    ]  # fmt: skip
    assert [dollars(v) for v in (0.00437, 12.3, 1234.5, None)] == ["$0.0044", "$12.30", "$1,234.50", "\u2013"]
    assert count(18540.4) == "18\u202f540"
    assert [size(v) for v in (12, 1234, 5e9, 3e13, None)] == ["12 B", "1.2 kB", "5.0 GB", "30.0 TB", "\u2013"]
    assert [tick(v) for v in (0, 30, 90, 300, 7200)] == ["0 s", "30 s", "90 s", "5 min", "2 h"]
