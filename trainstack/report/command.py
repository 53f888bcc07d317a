"""The command `report`: one HTML page about a run."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from bootstrap.documents import RunDocument
from stacks.capacity.catalogue import Purchase, catalogue
from trainstack import account
from trainstack.costs import cost
from trainstack.observe.current import observing
from trainstack.observe.node_events import EventReader
from trainstack.observe.status import status_of
from trainstack.report.about import about_run, text_sample
from trainstack.report.page import MissingLibrary, render_html
from trainstack.report.summary import Inputs, build_report
from trainstack.report.timeline import events_of_run, records_of
from trainstack.session import FAILED, MISSING, Account, CommandError, Name, Region, span_seconds

LEFT_OUT = ("trainer_output", "gpu_use", "text")
"""Events that a report does not show. The first two are most of the events of a long run."""
PATTERN = '{ $.event != "trainer_output" && $.event != "gpu_use" }'

PURCHASES: tuple[Purchase, ...] = ("on_demand", "spot")
"""The purchase options whose prices a report shows."""


def add(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("report")(write_report)


def write_report(
    name: Name,
    region: Region = None,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The page.")] = Path("report.html"),
    json_output: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="File for the same figures as JSON.")
    ] = None,
    since: Annotated[str, typer.Option(help="Age of the oldest event, such as 6h or 2d.")] = "30d",
    sample: Annotated[bool, typer.Option(help="Add a text that the newest checkpoint continues.")] = True,
    prompt: Annotated[str, typer.Option(help="Start of that text.")] = "The",
    cloud_records: Annotated[Path | None, typer.Option(hidden=True, exists=True, dir_okay=False)] = None,
) -> None:
    """Write one HTML page about the current run: curves, settings, data, weights, text, costs and nodes."""
    opened = observing(region).prepare("logs")
    deployment = account.find(opened.client, name)
    seen = account.observe(opened.client, deployment, time.time())
    if seen.run is None:
        raise CommandError(MISSING, "; ".join(seen.problems) or f"{name}: no run document; deploy it")
    cloud = None if cloud_records is None else json.loads(cloud_records.read_text(encoding="utf-8"))
    report = build_report(_inputs(opened, seen, seen.run, span_seconds(since), cloud))
    checkpoints = [point["step"] for point in report["series"]["checkpoints"]]
    about = about_run(opened.client, deployment, seen.run, max(checkpoints, default=None))
    if sample:
        _progress("sampling a text from the newest checkpoint")
        about["sample"] = text_sample(about, prompt)
    report["about"] = about
    try:
        page = render_html(report)
    except MissingLibrary as error:
        raise CommandError(FAILED, str(error)) from error
    for path, content in ((output, page), (json_output, json.dumps(report, indent=2) + "\n")):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    print(f"{output}: {report['verdict']}")


def _inputs(
    opened: Account, seen: account.Observation, run: RunDocument, since_seconds: float, cloud: dict[str, Any] | None
) -> Inputs:
    deployment, now = seen.deployment, time.time()
    _progress(f"reading the events of {deployment.name}")
    reader = EventReader(opened.client("logs"), deployment.log_group, now - since_seconds, pattern=PATTERN)
    events = [event for event in reader.poll() if event["event"] not in LEFT_OUT]
    timed = [event for event in events if isinstance(event["unix_seconds"], (int, float))]
    found = events_of_run(sorted(timed, key=lambda event: float(event["unix_seconds"])), run.run)
    phase = status_of(seen, catalogue(), opened.region, now).phase
    prices = _prices(opened.region)
    if cloud is not None:
        return Inputs(found, cloud["records"], cloud["deployment"], prices, notes=seen.problems)
    entries, problems = cost.entries(opened.client, deployment)
    templates = cost.templates(opened.client, deployment)
    types = Counter(
        str(resource.get("Type")) for each in templates.values() for resource in each.template["Resources"].values()
    )
    return Inputs(
        found,
        list(records_of(found, {node.instance_id for node in seen.nodes})),
        {"deployed_stacks": sorted(each.name for each in templates.values()), "resources_by_type": dict(types)},
        prices,
        ledger=[entry for entry in entries if entry.run == run.run],
        is_running=phase != "ended",
        knows_cloud=False,
        notes=[*problems, *seen.problems],
    )


def _prices(region: str) -> dict[str, Any]:
    """Return the catalogue's prices on demand and at spot; empty if it does not have the region."""
    known = catalogue().regions.get(region)
    if known is None:
        return {}
    sources = {name: known.sources[name].source for name in PURCHASES if name in known.sources}
    source = "; ".join(f"{name.replace('_', '-')}: {text}" for name, text in sources.items())
    return {**catalogue().prices(region), "source": source}


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
