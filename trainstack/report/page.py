"""Renders a report as one HTML page without external resources. The charts need scripts; the tables do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from trainstack.report.charts import charts_of
from trainstack.report.run_sections import run_sections
from trainstack.report.tables import code, details, section, table
from trainstack.report.text import MISSING, count, date_time, decimal, dollars, duration, percent, plural, short_id
from trainstack.report.timeline_bars import timeline_bars

Record = Mapping[str, Any]

HERE = Path(__file__).parent
UPLOT = HERE.parents[1] / "node_modules" / "uplot" / "dist"
"""The chart library, pinned with its hash in package-lock.json. Source: https://github.com/leeoniya/uPlot (MIT)."""
CHART_NOTES = {
    "loss": "In nats per token. The dots are measurements on text that is excluded from training.",
    "learning-rate": "",
    "throughput": "Tokens per second of all nodes together, as measured by the trainer.",
}
UNLABELLED_MARKS = {
    "loss": "Red lines are interruptions, and green lines are resumes.",
    "throughput": "Training resumed at each red line.",
}
"""Notes for charts with too many vertical marks for labels."""


class MissingLibrary(Exception):
    """The chart library is not installed."""


def render_html(report: Record) -> str:
    """Return the page for a report from `build_report`.

    Raises:
        MissingLibrary: uPlot is not installed.
    """
    charts = charts_of(report)
    internals = [
        details("Boot steps", _boot_steps(report)),
        details("Resumes", _resumes(report)),
        details("Resources", _resources(report)),
        details("Denied calls", _denied(report)),
    ]
    sections = [
        _problems(report),
        *(_chart(name, charts) for name in ("loss", "learning-rate", "throughput")),
        *run_sections(report["about"]),
        _costs(report),
        section("Nodes", "Point at a bar for its name and duration. All times are UTC.", timeline_bars(report)),
        "".join(internals),
    ]
    # "</" in a string would end the script element. Source (2026-11):
    # https://html.spec.whatwg.org/multipage/scripting.html#restrictions-for-contents-of-script-elements
    data = json.dumps(charts, allow_nan=False).replace("<", "\\u003c")
    library, style = _library()
    scripts = f'<script type="application/json" id="charts">{data}</script>'
    own = ((HERE / name).read_text(encoding="utf-8") for name in ("mark_labels.js", "page.js"))
    scripts += "".join(f"<script>{script}</script>" for script in (library, *own))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Trainstack: {escape(report['verdict'])}</title>"
        f"<style>{style}{(HERE / 'page.css').read_text(encoding='utf-8')}</style></head><body><main>"
        + _header(report)
        + _tiles(report)
        + "".join(sections)
        + "<footer>All figures come from the records of the nodes, the trainer and the run controller. "
        f"{escape(_prices_note(report))}</footer></main>{scripts if charts else ''}</body></html>\n"
    )


def _library() -> tuple[str, str]:
    try:
        script, style = UPLOT / "uPlot.iife.min.js", UPLOT / "uPlot.min.css"
        return script.read_text(encoding="utf-8"), style.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingLibrary(f"{UPLOT}: the chart library is not installed; run `make install`") from error


def _header(report: Record) -> str:
    badge = '<span class="badge">finished</span>' if report["succeeded"] else '<span class="badge bad">problems</span>'
    if report["is_running"] and not report["problems"]:
        badge = '<span class="badge">running</span>'
    rows = report["timeline"]
    about, run = report["about"], report["run"]
    facts = [f"{about['run']} of {about['name']}"] if about else []
    facts += [date_time(min(row["launched"] for row in rows))] if rows else []
    if "parameters" in run:
        facts.append(f"{run['parameters'] / 1e6:.1f} M parameters")
    if "world_size" in run:
        facts.append(plural(run["world_size"], "rank"))
    facts += [str(run[name]) for name in ("precision", "device") if name in run]
    line = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    return f'<header><p class="eyebrow">{badge}{line}</p><h1>{escape(report["verdict"])}</h1></header>'


def _tiles(report: Record) -> str:
    costs = report["costs"]
    last, unigram = report["validation_loss_last"], report["validation_loss_unigram"]
    better = "" if last is None or unigram is None else f"unigram baseline {unigram:.2f}"
    done = max((point["step"] for point in report["series"]["train"]), default=None)
    saved = "" if costs["saved_share"] is None else f"{percent(costs['saved_share'])} below on-demand"
    tiles = [
        ("steps", f"{count(done)}", f"of {count(report['steps_total'])}"),
        ("steps lost", count(report["steps_lost"]), plural(len(report["interruptions"]), "interruption")),
        ("downtime", duration(report["downtime_seconds"] if report["resumes"] else 0.0), "all resumes"),
        ("train loss", decimal(report["train_loss_last"], 3), f"first {decimal(report['train_loss_first'], 3)}"),
        ("validation loss", decimal(last, 3), better),
        ("bits per byte", decimal(report["bits_per_byte_last"], 3), "last validation"),
        ("tokens/s", count(report["tokens_per_second"]), "median"),
        ("cost", dollars(report["cost_spot_usd"]), saved),
    ]
    cells = (
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(figure)}</b><small>{escape(more)}</small></div>'
        for name, figure, more in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _problems(report: Record) -> str:
    if not report["problems"]:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in report["problems"])
    return f'<section class="problems"><h2>{plural(len(report["problems"]), "problem")}</h2><ul>{items}</ul></section>'


def _chart(name: str, charts: Record) -> str:
    if name not in charts:
        return section("Loss", "", '<p class="empty">No training steps were recorded.</p>') if name == "loss" else ""
    title, note = charts[name]["title"], CHART_NOTES[name]
    if charts[name]["marks"] and not charts[name]["has_mark_labels"]:
        note += f" {UNLABELLED_MARKS[name]}"
    place = f'<div class="chart" id="chart-{name}" role="img" aria-label="{escape(title)}"></div>'
    return section(title, note, f"{place}<noscript>The charts need JavaScript.</noscript>")


def _costs(report: Record) -> str:
    costs = report["costs"]
    rows = [
        [
            f'<code title="{escape(line["instance_id"])}">{escape(short_id(line["instance_id"]))}</code>'
            f"<small>{escape(' '.join(filter(None, (line['type'], line['market']))))}</small>",
            duration(line["seconds"]),
            dollars(line["hourly_usd"]),
            dollars(line["cost_usd"]),
            dollars(line["cost_on_demand_usd"]),
        ]
        for line in costs["lines"]
    ]
    lived = duration(sum(line["seconds"] for line in costs["lines"]))
    total = ["total", lived, "", dollars(report["cost_spot_usd"]), dollars(report["cost_on_demand_usd"])]
    head = ["instance", "lifetime", "USD/h", "cost", "on-demand"]
    prices = [
        [escape(each["type"]), *(dollars(each[market]) for market in ("on_demand", "spot"))] for each in costs["prices"]
    ]
    note = f"From the {costs['source']}. Billed per second, with a minimum of one minute. An estimate, not a bill."
    listed = table(["type", "on-demand, USD/h", "spot, USD/h"], prices, figures=2)
    return section("Costs", note, table(head, rows, figures=4, total=total) + f"<h3>List prices</h3>{listed}")


def _prices_note(report: Record) -> str:
    costs = report["costs"]
    return f"Prices as of {costs['price_date'] or MISSING}; {costs['price_source'] or 'unknown source'}."


def _boot_steps(report: Record) -> str:
    steps = report["boot_steps_seconds"]
    longest = max(steps.values(), default=0.0) or 1.0
    rows = [
        [
            escape(step),
            f'<div class="meter" style="width:{max(1.0, seconds / longest * 100):.0f}%"></div>',
            duration(seconds),
        ]
        for step, seconds in steps.items()
    ]
    note = '<p class="note">Median across the nodes. Independent steps overlap.</p>'
    return note + table(["step", "", "duration"], rows, figures=1)


def _resumes(report: Record) -> str:
    rows = [
        [
            count(resume["highest_step_before"]),
            count(resume["resumed_from_step"]),
            count(resume["steps_lost"]),
            duration(resume["downtime_seconds"]),
        ]
        for resume in report["resumes"]
    ]
    return table(["reached step", "resumed from", "lost", "downtime"], rows, figures=4)


def _resources(report: Record) -> str:
    types = report["resources_by_type"]
    rows = [[code(name), count(number)] for name, number in sorted(types.items(), key=lambda item: (-item[1], item[0]))]
    stacks = ", ".join(report["deployed_stacks"]) or MISSING
    note = f'<p class="note">{plural(len(report["deployed_stacks"]), "stack")}: {escape(stacks)}.</p>'
    return note + table(["type", "number"], rows, figures=1)


def _denied(report: Record) -> str:
    calls: Counter[tuple[str, str, str]] = Counter()
    for call in report["iam_denied_calls"]:
        entry = call if isinstance(call, Mapping) else {"action": str(call)}
        calls[
            str(entry.get("principal", MISSING)), str(entry.get("action", MISSING)), str(entry.get("resource", MISSING))
        ] += 1
    rows: Iterable[Sequence[str]] = [
        [code(action), f"{code(resource)}<br>{code(principal)}", count(number)]
        for (principal, action, resource), number in calls.most_common()
    ]
    if not calls:
        return '<p class="note">No denied call is known. The embedded cloud records them; an AWS account does not.</p>'
    return table(["action", "resource, principal", "times"], rows, figures=1)
