"""The command behind `make demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from localcloud.demo.console import run_demo
from localcloud.demo.driver import Demo

FAULTS = ("notice", "no-notice", "none")


def main(
    data: Annotated[
        Path | None, typer.Option(help="Folder of text files (default: Python's standard library).")
    ] = None,
    fault: Annotated[
        str, typer.Option(help="Injected fault: notice (spot interruption), no-notice (kill a node) or none.")
    ] = "notice",
    config: Annotated[Path, typer.Option(help="Deployment file.")] = Path("config/demo.yaml"),
    build: Annotated[Path, typer.Option(file_okay=False, help="Folder for logs and the report.")] = Path("build/demo"),
) -> None:
    """Deploy to the embedded cloud, train, interrupt a node, resume and write a report, without an AWS account."""
    console = Console(highlight=False, soft_wrap=True)
    if fault not in FAULTS:
        raise typer.BadParameter(f"{fault}: must be one of {', '.join(FAULTS)}", param_hint="--fault")
    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"{data}: not a folder; use a folder of text files", param_hint="--data")
    started = time.time()
    report = run_demo(console, build, ("report.json", "report.html"), lambda log: Demo(config, build, data, fault, log))
    console.print(_summary(report))
    console.print(
        f"Finished in {time.time() - started:.0f} s. Report: {build / 'report.html'}, {build / 'report.json'}"
    )
    if report["problems"]:
        for problem in report["problems"]:
            console.print(f"problem: {problem}", style="red", markup=False)
        raise typer.Exit(1)


def _summary(report: dict[str, Any]) -> Table:
    """Return a run's summary table."""
    table = Table(title="Summary", show_header=False, title_justify="left")
    rows = [
        ("stacks", ", ".join(report["deployed_stacks"])),
        ("resources", f"{sum(report['resources_by_type'].values())} ({len(report['resources_by_type'])} types)"),
        ("nodes", ", ".join(f"{n['id']} ({n['market']} {n['type']})" for n in report["instances"])),
        ("interruptions", str(len(report["interruptions"]))),
        ("steps", f"{report['steps_total']}, lost {report['steps_lost']}, resumed from {report['resumed_from_step']}"),
        ("training loss", f"{report['train_loss_first']:.3f} -> {report['train_loss_last']:.3f}"),
        (
            "validation loss",
            f"{report['validation_loss_last']:.3f} (unigram baseline: {report['validation_loss_unigram']:.3f})",
        ),
        ("bits per byte", f"{report['bits_per_byte_last']:.3f}"),
        ("tokens per second", f"{report['tokens_per_second']:,.0f}"),
        ("downtime", f"{report['downtime_seconds']:.1f} s"),
        ("cost", f"${report['cost_spot_usd']:.4f} at spot, ${report['cost_on_demand_usd']:.4f} on demand"),
        ("denied calls", str(len(report["iam_denied_calls"]))),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    typer.run(main)
