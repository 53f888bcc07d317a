"""Renders the report as a static HTML page without scripts or external resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from localcloud.demo.report_charts import loss_chart, throughput_chart, timeline_chart
from localcloud.demo.report_format import (
    MISSING,
    count,
    date_time,
    decimal,
    dollars,
    duration,
    percent,
    plural,
)
from localcloud.demo.report_style import STYLE

Record = Mapping[str, Any]
LOSS_LEGEND = (
    '<p class="legend"><span><i class="stroke" style="border-color:var(--train)"></i>train</span>'
    '<span><i class="stroke" style="border-color:var(--validation)"></i>validation</span>'
    '<span><i class="stroke dashed" style="border-color:var(--ink-muted)"></i>unigram baseline</span>'
    '<span><i class="stroke dashed" style="border-color:var(--bad)"></i>interruption</span>'
    '<span><i class="triangle" style="border-top:0;border-bottom:9px solid var(--good)"></i>resume</span></p>'
)
TIMELINE_LEGEND = (
    '<p class="legend"><span><i style="background:var(--life)"></i>instance lifetime</span>'
    '<span><i style="background:var(--boot)"></i>boot steps</span>'
    '<span><i style="background:var(--train)"></i>training, one bar per generation</span>'
    '<span><i class="triangle"></i>interruption by AWS</span></p>'
)


def render_html(report: Record) -> str:
    """Return the page for a report from `build_report`."""
    sections = [
        _problems(report),
        _section(
            "Loss",
            "The dots on the validation line are measurements on text that is excluded from training.",
            LOSS_LEGEND + _scroll(loss_chart(report)),
        ),
        _section(
            "Nodes", "Hover over a bar for its name and duration.", TIMELINE_LEGEND + _scroll(timeline_chart(report))
        ),
        _section("Throughput", _throughput_note(report), _scroll(throughput_chart(report))),
        _costs(report),
        '<div class="pair">' + _boot_steps(report) + _resumes(report) + "</div>",
        '<div class="pair">' + _resources(report) + _denied(report) + "</div>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Trainstack: {escape(report['verdict'])}</title><style>{STYLE}</style></head><body><main>"
        + _header(report)
        + _tiles(report)
        + "".join(sections)
        + "<footer>All figures come from the records of the nodes, the trainer and the embedded cloud. "
        "report.json in the same folder contains the same figures.</footer></main></body></html>\n"
    )


def _header(report: Record) -> str:
    badge = '<span class="badge">finished</span>' if report["succeeded"] else '<span class="badge bad">problems</span>'
    rows = report["timeline"]
    facts = [date_time(min(row["launched"] for row in rows))] if rows else []
    run = report["run"]
    if "parameters" in run:
        facts.append(f"{run['parameters'] / 1e6:.1f} M parameters")
    if "world_size" in run:
        facts.append(f"{run['world_size']} ranks")
    facts += [str(run[name]) for name in ("precision", "device") if name in run]
    line = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    return f'<header><p class="eyebrow">{badge}{line}</p><h1>{escape(report["verdict"])}</h1></header>'


def _tiles(report: Record) -> str:
    costs = report["costs"]
    last, unigram = report["validation_loss_last"], report["validation_loss_unigram"]
    better = "" if last is None or unigram is None else f"{unigram - last:.2f} nats below the unigram baseline"
    done = max((point["step"] for point in report["series"]["train"]), default=None)
    tiles = [
        ("steps", f"{count(done)}", f"of {count(report['steps_total'])}"),
        ("steps lost", count(report["steps_lost"]), plural(len(report["interruptions"]), "interruption")),
        ("downtime", duration(report["downtime_seconds"] if report["resumes"] else 0.0), "all resumes"),
        ("validation loss", decimal(last, 3), better),
        ("bits per byte", decimal(report["bits_per_byte_last"], 3), "last validation"),
        ("tokens/s", count(report["tokens_per_second"]), "median"),
        (
            "saved",
            percent(costs["saved_share"]),
            f"{dollars(costs['saved_usd'])} of {dollars(report['cost_on_demand_usd'])}",
        ),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span>{escape(name)}</span><b>{escape(figure)}</b><small>{escape(more)}</small></div>'
            for name, figure, more in tiles
        )
        + "</div>"
    )


def _problems(report: Record) -> str:
    if not report["problems"]:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in report["problems"])
    return f'<section class="problems"><h2>{plural(len(report["problems"]), "problem")}</h2><ul>{items}</ul></section>'


def _throughput_note(report: Record) -> str:
    if not report["resumes"]:
        return "All nodes together, as measured by the trainer."
    return f"All nodes together, as measured by the trainer; {duration(report['downtime_seconds'])} of downtime."


def _costs(report: Record) -> str:
    costs = report["costs"]
    rows = [
        [
            _code(line["instance_id"]),
            escape(line["type"]),
            escape(str(line["market"])),
            duration(line["seconds"]),
            dollars(line["hourly_usd"]),
            dollars(line["cost_usd"]),
            dollars(line["cost_on_demand_usd"]),
        ]
        for line in costs["lines"]
    ]
    total = [
        "total",
        "",
        "",
        duration(sum(line["seconds"] for line in costs["lines"])),
        "",
        dollars(report["cost_spot_usd"]),
        dollars(report["cost_on_demand_usd"]),
    ]
    table = _table(
        ["instance", "type", "market", "lifetime", "per hour", "cost", "on-demand"], rows, figures=4, total=total
    )
    saved = ""
    if costs["saved_usd"] is not None:
        saved = (
            f'<p><span class="saved">{dollars(costs["saved_usd"])} saved</span> ({percent(costs["saved_share"])}).</p>'
        )
    dated = f"Prices as of {costs['price_date'] or MISSING}, {costs['price_source'] or 'unknown source'}. "
    dated += "Billed per second, with a minimum of one minute."
    return _section("Costs at AWS prices", dated, f'<div class="scroll">{table}</div>{saved}')


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
    return _section(
        "Boot", "Median across the nodes. Independent steps overlap.", _table(["step", "", "duration"], rows, figures=1)
    )


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
    head = ["reached step", "resumed from", "lost", "downtime"]
    return _section("Resumes", "Lost steps and downtime for each resume.", _table(head, rows, figures=4))


def _resources(report: Record) -> str:
    types = report["resources_by_type"]
    rows = [
        [_code(name), count(number)] for name, number in sorted(types.items(), key=lambda item: (-item[1], item[0]))
    ]
    note = f"{plural(len(report['deployed_stacks']), 'stack')}: {', '.join(report['deployed_stacks']) or MISSING}."
    return _section("Resources", note, _table(["type", "number"], rows, figures=1))


def _denied(report: Record) -> str:
    calls: Counter[tuple[str, str, str]] = Counter()
    for call in report["iam_denied_calls"]:
        entry = call if isinstance(call, Mapping) else {"action": str(call)}
        calls[
            str(entry.get("principal", MISSING)), str(entry.get("action", MISSING)), str(entry.get("resource", MISSING))
        ] += 1
    rows = [
        [_code(action), f"{_code(resource)}<br>{_code(principal)}", count(number)]
        for (principal, action, resource), number in calls.most_common()
    ]
    note = "Calls denied by IAM." if rows else "No calls were denied. The roles have every permission that they need."
    return _section(
        "Denied calls", note, _table(["action", "resource, principal", "times"], rows, figures=1) if rows else ""
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, figures: int, total: Sequence[str] = ()) -> str:
    """Return a table whose last `figures` columns are numbers. Cells contain HTML."""
    rows = list(rows)
    if not rows:
        return '<p class="empty">None.</p>'
    first_figure = len(head) - figures

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=figure' if number >= first_figure else ''}>{value}</{tag}>"
            for number, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    foot = f"<tfoot><tr>{cells('td', total)}</tr></tfoot>" if total else ""
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody>{foot}</table>"


def _section(title: str, note: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{content}</section>'


def _scroll(content: str) -> str:
    return f'<div class="scroll">{content}</div>'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
