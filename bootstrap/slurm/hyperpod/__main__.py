"""The life-cycle script of a node: `python3 -m bootstrap.slurm.hyperpod settings.json GROUP`.

HyperPod runs the script when it creates or replaces a node, and removes a node whose script fails. Each step that has
passed leaves a marker, so that a second run repeats only the others. The node reports to S3, through the VPC's
endpoint; the same text is in the cluster's log group in CloudWatch.
Source (2026-11): https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-lifecycle-best-practices-slurm.html
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bootstrap.slurm.hyperpod.checks import COMPUTE_STEPS, OTHER_STEPS, CheckError
from bootstrap.slurm.hyperpod.settings import COMPUTE, Settings, read_settings

STATE = Path("/var/lib/trainstack")
UPLOAD_SECONDS = 60
UPLOADS = 3


def run(settings: Settings, group: str, state: Path) -> list[dict[str, Any]]:
    """Run the steps of an instance group, and return one record per step. A failed step does not end the others."""
    state.mkdir(parents=True, exist_ok=True)
    records = []
    for name, step in (COMPUTE_STEPS if group == COMPUTE else OTHER_STEPS).items():
        marker, begun = state / f"{name}.done", time.monotonic()
        record: dict[str, Any] = {"step": name, "result": "passed"}
        if marker.exists() and marker.read_text(encoding="utf-8") == settings.to_text():
            record["result"] = "passed before"
        else:
            try:
                step(settings)
                marker.write_text(settings.to_text(), encoding="utf-8")
            except CheckError as error:
                record.update(result="failed", message=str(error), remedy=error.remedy)
        record["seconds"] = round(time.monotonic() - begun, 3)
        records.append(record)
        print(json.dumps(record), flush=True)
    return records


def report(settings: Settings, group: str, records: list[dict[str, Any]], state: Path) -> None:
    """Write the report, and upload it with the AWS CLI. A failed upload prints a message."""
    name = socket.gethostname()
    path = state / "report.json"
    found = {"deployment": settings.deployment, "node": name, "group": group, "unix_seconds": time.time()}
    path.write_text(json.dumps({**found, "steps": records}, indent=2) + "\n", encoding="utf-8")
    target = f"{settings.reports}/{group}/{name}.json"
    command = ["aws", "s3", "cp", "--only-show-errors", "--region", settings.region, str(path), target]
    message = ""
    for attempt in range(UPLOADS):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=UPLOAD_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            message = str(error)
        else:
            if done.returncode == 0:
                return
            message = done.stderr.strip()
        time.sleep(min(2.0**attempt, float(os.environ.get("TRAINSTACK_WAIT_SECONDS", 8.0))))
    print(f"{target}: cannot be written: {message}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Run the script. Return 1 if the node cannot train. A report that cannot be written does not fail the node."""
    state = Path(os.environ.get("TRAINSTACK_STATE", STATE))
    try:
        file, group = arguments
        settings = read_settings(Path(file))
    except (OSError, ValueError) as error:
        print(f"settings: {error}", file=sys.stderr)
        return 1
    records = run(settings, group, state)
    report(settings, group, records, state)
    return 1 if any(one["result"] == "failed" for one in records) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
