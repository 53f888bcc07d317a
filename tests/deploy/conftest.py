"""A person's copy of the project beside an empty cloud without machines, and the unmodified CDK CLI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.config import read
from stacks.execution_policy.ceiling import NAME as CEILING_NAME
from stacks.execution_policy.ceiling import ceiling
from stacks.execution_policy.documents import Deployments, documents
from stacks.execution_policy.needed import needed
from tests.deploy.edits import IN_PLACE
from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli
from tests.stacks.conftest import synthesis

__all__ = ["synthesis", "workplace"]

CDK = ROOT / "node_modules" / ".bin" / "cdk"
DEADLINE_SECONDS = 300.0


@dataclass
class Outcome:
    """How a command ended, and what it said."""

    exit_code: int
    output: str


@dataclass
class Workplace:
    """The project, a deployment file that changes, and the cloud; `context` goes with every command of the CDK."""

    project: Path
    cloud: Cli
    context: Mapping[str, str] = field(default_factory=lambda: {"allow-destroy": "true"})

    def cdk(self, verb: str, *arguments: str, synthesise: bool = True) -> Outcome:
        """Run the CDK on the deployment file as it is now, or on what was synthesised of it last."""
        reach = json.loads(self.cloud.good("env", "--json"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**NO_MARK, **reach, "PATH": path, "CDK_DISABLE_CLI_TELEMETRY": "true", "NO_COLOR": "1"}
        context = [f"--context={key}={value}" for key, value in self.context.items()]
        app = ["--context", "config=config/deployed.yaml"] if synthesise else ["--app", "build/cdk.out"]
        done = subprocess.run(
            [str(CDK), verb, *arguments, *app, *context],
            cwd=self.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Outcome(done.returncode, done.stdout)

    def deploy(self, config: Mapping[str, Any]) -> Outcome:
        """Write the deployment file and deploy every stack of it."""
        (self.project / "config" / "deployed.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
        return self.cdk("deploy", "--all", "--require-approval", "never", "--concurrency", "2")

    def destroy(self) -> Outcome:
        """Destroy every stack, the buckets emptied in between as a person has to, once nothing writes to them."""
        first = self.cdk("destroy", "ObservabilityStack", "TrainingStack", "--force", synthesise=False)
        if first.exit_code != 0:
            return first
        s3 = self.cloud.client("s3")
        for stack in self.stacks():
            for kind, bucket in self.physical_ids(stack).values():
                if kind == "AWS::S3::Bucket":
                    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                        for item in page.get("Contents", []):
                            s3.delete_object(Bucket=bucket, Key=item["Key"])
        return self.cdk("destroy", "--all", "--force", synthesise=False)

    def no_machines(self, instance_types: list[str], region: str) -> None:
        """Take the capacity of these types away: what is deployed is looked at, nothing is booted."""
        endpoint = json.loads((self.cloud.state / "cloud.json").read_text())["endpoint_url"]
        for name in instance_types:
            for letter in "abcdef":
                for market in ("spot", "on-demand"):
                    order = {"instance_type": name, "zone": region + letter, "market": market, "available": 0}
                    request = urllib.request.Request(
                        f"{endpoint}/_localcloud/compute/capacity", json.dumps(order).encode(), method="POST"
                    )
                    with urllib.request.urlopen(request, timeout=10) as answer:
                        assert answer.status == 200

    def physical_ids(self, stack: str) -> dict[str, tuple[str, str]]:
        """Return type and physical id of each resource of a stack, by logical id."""
        pages = self.cloud.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
        return {
            each["LogicalResourceId"]: (each["ResourceType"], each["PhysicalResourceId"])
            for page in pages
            for each in page["StackResourceSummaries"]
        }

    def stacks(self) -> list[str]:
        """Return the names of the stacks that are there, without the toolkit's."""
        described = self.cloud.client("cloudformation").describe_stacks()["Stacks"]
        return sorted(stack["StackName"] for stack in described if stack["StackName"] != "CDKToolkit")

    def template_versions(self) -> dict[str, int]:
        """Return the latest version of each launch template: a new one replaces nodes."""
        described = self.cloud.client("ec2").describe_launch_templates()["LaunchTemplates"]
        return {each["LaunchTemplateId"]: each["LatestVersionNumber"] for each in described}

    def denied(self) -> list[dict[str, Any]]:
        path = self.cloud.state / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def execution_policies(cloud: Cli) -> list[str]:
    """Make the policies of CloudFormation's role; return the options of `cdk bootstrap`, as the runbook has them.

    They are the committed ones but for one ceiling more: an edit puts another one over the roles.
    """
    files = sorted((ROOT / "config").rglob("*.yaml"))
    deployments = Deployments.of(read(path) for path in files)
    deployments = replace(deployments, ceilings=(*deployments.ceilings, IN_PLACE["node.permissions_boundary"]))
    iam, arns = cloud.client("iam"), []
    for number, document in enumerate(documents(needed(), deployments), start=1):
        name = f"trainstack-execution-policy-{number}"
        arns.append(iam.create_policy(PolicyName=name, PolicyDocument=json.dumps(document))["Policy"]["Arn"])
    boundary = ceiling(list(needed()), deployments)
    iam.create_policy(PolicyName=CEILING_NAME, PolicyDocument=json.dumps(boundary))
    return ["--cloudformation-execution-policies", ",".join(arns), "--custom-permissions-boundary", CEILING_NAME]


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """The project in a folder of its own, and one empty, bootstrapped cloud."""
    project = tmp_path / "project"
    (project / "config").mkdir(parents=True)
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    for name in ("bootstrap", "stacks", "training"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "config", project / "config", dirs_exist_ok=True)
    shutil.copy(ROOT / "config" / "demo.yaml", project / "config" / "deployed.yaml")
    cloud = Cli(tmp_path / "cloud")
    cloud.good("up", "--port", "0")
    try:
        workplace = Workplace(project, cloud)
        toolkit = workplace.cdk("bootstrap", *execution_policies(cloud))
        assert toolkit.exit_code == 0, toolkit.output
        yield workplace
    finally:
        cloud.run("down")
