"""Runs the demo's steps, from an empty machine to a report.

The demo runs the same commands as a user: `cdk bootstrap`, `cdk deploy` and `python -m training tokenize`. The embedded
cloud replaces AWS.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml

from localcloud.cloudformation.resource_types import ACCEPTED_TYPES
from localcloud.demo.commands import Command
from localcloud.demo.watch import EventLog, Fault, follow
from localcloud.state import MARKER, mark_of

CDK = "node_modules/.bin/cdk"
DATASET_INDEX = "dataset.json"
DATASET_BYTES = 12_000_000
VOCABULARY_SIZE = 4096
FAULT_AT_SHARE = 0.45
PROMPT = "def "
"""Start of the report's text sample after training on Python code."""
STALL_SECONDS = 150.0
TIMEOUTS_SECONDS = {
    "up": 300.0,
    "synth": 180.0,
    "bootstrap": 180.0,
    "deploy": 300.0,
    "tokenize": 300.0,
    "report": 300.0,
}


@dataclass
class Demo:
    """A demo run. It writes files to `build` and takes its figures from the nodes' and the cloud's records."""

    config: Path
    build: Path
    data: Path | None
    fault: str
    log: Callable[[float, str, str], None]
    """Called with the Unix time, source and text of each line."""

    def run(self) -> dict[str, Any]:
        """Run the demo, write the report to report.json and report.html, and return it.

        Raises:
            CommandFailed: A child command failed. Later steps are not started.
            RunFailed: The training run did not finish.
        """
        self._check_inputs()
        try:
            self._cloud("up")
            return self._run_in_cloud()
        finally:
            # A second Ctrl-C must not interrupt the clean-up. Child processes inherit the ignored signals.
            former = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
            self._cloud("down")
            for number, handler in former:
                signal.signal(number, handler)

    def _run_in_cloud(self) -> dict[str, Any]:
        environment = self._environment()
        tokenize = self._start_tokenize()
        try:
            self._command("synth", [CDK, "synth", "--quiet", *self._app(synthesise=True)], environment)
            tokenize.raise_if_failed()
            self._command("bootstrap", [CDK, "bootstrap", *self._app()], environment)
            tokenize.raise_if_failed()
            self._deploy(environment, "NetworkStack", "StorageStack")
            self._deploy(environment, "TrainingStack")
            self._deploy(environment, "ObservabilityStack")
            # As in the runbook, upload the dataset after the deploy. The run starts when the dataset's index arrives.
            tokenize.wait(timeout_seconds=TIMEOUTS_SECONDS["tokenize"])
            self._upload(environment, self._outputs())
        finally:
            tokenize.kill()
        self._train(environment)
        return self._report(environment)

    def _check_inputs(self) -> None:
        """Check the deployment file before starting anything."""
        self._command("check", [sys.executable, "-m", "stacks", "check", str(self.config)], {})

    def _source(self) -> Path:
        return self.data if self.data is not None else Path(sysconfig.get_path("stdlib"))

    def _tokenize_options(self) -> list[str]:
        options = ["--output", str(self.build / "datasets"), "--name", self._dataset()]
        options += ["--vocabulary-size", str(VOCABULARY_SIZE), "--max-bytes", str(DATASET_BYTES)]
        options += ["--skip-files"]  # the standard library has test files with invalid encodings
        return options if self.data is not None else [*options, "--extensions", ".py"]

    def _start_tokenize(self) -> Command:
        self.log(time.time(), "data", f"tokenizing {self._source()}")
        arguments = [sys.executable, "-m", "training", "tokenize", *self._tokenize_options()]
        arguments += ["--input", str(self._source())]
        return self._start("tokenize", arguments, {})

    def _app(self, *, synthesise: bool = False) -> list[str]:
        """Return the CDK options: for synthesis, the configuration and the output; afterward, the cloud assembly."""
        assembly = str(self.build / "cdk.out")
        if synthesise:
            return ["--context", f"config={self.config}", "--output", assembly]
        return ["--app", assembly]

    def _deploy(self, environment: Mapping[str, str], *stacks: str) -> None:
        options = ["--require-approval", "never", "--progress", "events", "--concurrency", "2", "--exclusively"]
        outputs = ["--outputs-file", str(self.build / f"outputs-{stacks[-1]}.json")]
        self._command("deploy", [CDK, "deploy", *stacks, *self._app(), *options, *outputs], environment, deploy=True)

    def _outputs(self) -> dict[str, str]:
        """Return the outputs of all stacks deployed so far, by output name."""
        found: dict[str, str] = {}
        for path in sorted(self.build.glob("outputs-*.json")):
            for stack_outputs in json.loads(path.read_text()).values():
                found.update(stack_outputs)
        return found

    def _upload(self, environment: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        target = f"s3://{outputs['DatasetBucket']}/datasets/{self._dataset()}/"
        source = f"{self.build / 'datasets' / self._dataset()}/"
        upload = {**environment, "S3_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"]}
        self._command("upload", ["s5cmd", "cp", "--exclude", DATASET_INDEX, source, target], upload)
        self._command("upload", ["s5cmd", "cp", f"{source}{DATASET_INDEX}", target], upload)

    def _dataset(self) -> str:
        return str(self._settings()["training"]["dataset"])

    def _name(self) -> str:
        return str(self._settings()["name"])

    def _settings(self) -> dict[str, Any]:
        loaded: dict[str, Any] = yaml.safe_load(self.config.read_text())
        return loaded

    def _train(self, environment: Mapping[str, str]) -> None:
        logs = self._client("logs", environment)
        log = EventLog(logs, self._outputs()["LogGroup"])
        fault = Fault(self.fault, FAULT_AT_SHARE, interrupt=self._interrupt)
        self.log(time.time(), "fleet", "waiting for the run controller to launch the nodes")
        follow(log, fault, report=self.log, running_instances=self._running_instances, stall_seconds=STALL_SECONDS)

    def _running_instances(self) -> int:
        kinds = [str(record["kind"]) for record in self._records()]
        return kinds.count("instance_launched") - kinds.count("instance_ended")

    def _records(self) -> list[dict[str, Any]]:
        path = self.state / "records.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _interrupt(self, instance_id: str, notice_seconds: float | None) -> None:
        notice = ["--no-notice"] if notice_seconds is None else ["--notice-seconds", str(notice_seconds)]
        self._command("interrupt", [*self._localcloud("interrupt"), instance_id, *notice], {})

    def _report(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Write the report as a user does, and add what only the embedded cloud records."""
        records = self.build / "cloud-records.json"
        known = {"records": self._records(), "deployment": self._deployment(environment)}
        records.write_text(json.dumps(known) + "\n", encoding="utf-8")
        target = self.build / "report.json"
        arguments = ["--output", str(self.build / "report.html"), "--json", str(target)]
        arguments += ["--cloud-records", str(records), "--prompt", PROMPT if self.data is None else "The"]
        self._command("report", [sys.executable, "-m", "trainstack", "report", self._name(), *arguments], environment)
        report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return report

    def _deployment(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the deployed stacks and resources and the denied calls."""
        cloudformation = self._client("cloudformation", environment)
        stacks = [s["StackName"] for s in cloudformation.describe_stacks()["Stacks"]]
        types: dict[str, int] = {}
        for stack in stacks:
            for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack):
                for resource in page["StackResourceSummaries"]:
                    types[resource["ResourceType"]] = types.get(resource["ResourceType"], 0) + 1
        calls = self.state / "calls.jsonl"
        denied = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
        return {
            "deployed_stacks": sorted(stacks),
            "resources_by_type": dict(sorted(types.items())),
            "unsupported_resources": sorted(types.keys() & ACCEPTED_TYPES.keys()),
            "iam_denied_calls": denied,
        }

    @property
    def state(self) -> Path:
        """The embedded cloud's state directory."""
        return self.build / "cloud"

    def _localcloud(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "localcloud", verb, "--state", str(self.state)]

    def _cloud(self, verb: str) -> None:
        if verb == "up":
            self._command("down", self._localcloud("down"), {})
        self._command(verb, self._localcloud(verb), {})
        self.log(time.time(), "cloud", verb)

    def _environment(self) -> dict[str, str]:
        """Return the environment variables that point AWS tools at the embedded cloud."""
        text = self._command("env", [*self._localcloud("env"), "--json"], {})
        loaded: dict[str, str] = json.loads(text)
        return loaded

    def _client(self, service: str, environment: Mapping[str, str]) -> Any:
        return boto3.client(
            service,
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            region_name=environment["AWS_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )

    def _start(
        self, title: str, arguments: list[str], environment: Mapping[str, str], *, deploy: bool = False
    ) -> Command:
        # Use this Python environment's programs (node, s5cmd, the app's python3) even if it is not activated.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        marked = {"PATH": path, **environment, MARKER: mark_of(self.state)}
        log = self.build / "logs" / f"{title}.log"
        return Command(title, arguments, environment=marked, log=log, on_line=self._log_deploy if deploy else None)

    def _command(
        self, title: str, arguments: list[str], environment: Mapping[str, str], *, deploy: bool = False
    ) -> str:
        started = time.monotonic()
        command = self._start(title, arguments, environment, deploy=deploy)
        output = command.wait(timeout_seconds=TIMEOUTS_SECONDS.get(title, 60.0))
        if title in TIMEOUTS_SECONDS:
            self.log(time.time(), title, f"done in {time.monotonic() - started:.1f} s")
        return output

    def _log_deploy(self, line: str) -> None:
        if "| CREATE_COMPLETE" in line or "FAILED" in line or "ROLLBACK" in line:
            columns = [column.strip() for column in line.split("|")]
            self.log(time.time(), "deploy", " ".join(columns[-3:]))
