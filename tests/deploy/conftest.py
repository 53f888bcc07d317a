"""A copy of the project, an empty cloud that launches no instances, and the unmodified CDK CLI."""

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

from localcloud.state import read_cloud_file
from localcloud.tokens import TOKEN_HEADER
from stacks.execution_policy.boundary import NAME as BOUNDARY_NAME
from stacks.execution_policy.boundary import execution_boundary
from stacks.execution_policy.documents import Deployments, documents
from stacks.execution_policy.needed import needed
from stacks.loading import read
from tests.deploy.edits import IN_PLACE
from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli
from tests.stacks.conftest import synthesis

__all__ = ["synthesis", "workplace"]

CDK = ROOT / "node_modules" / ".bin" / "cdk"
DEADLINE_SECONDS = 300.0


@dataclass
class Outcome:
    """The exit code and the output of a command."""

    exit_code: int
    output: str


@dataclass
class Workplace:
    """The project, its deployment file, and the cloud; `context` is passed to every CDK command."""

    project: Path
    cloud: Cli
    context: Mapping[str, str] = field(default_factory=lambda: {"allow-destroy": "true"})

    def cdk(self, verb: str, *arguments: str, synthesise: bool = True) -> Outcome:
        """Run the CDK on the current deployment file, or on the last synthesized assembly."""
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
        """Write the deployment file and deploy all its stacks."""
        (self.project / "config" / "deployed.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
        return self.cdk("deploy", "--all", "--require-approval", "never", "--concurrency", "2")

    def destroy(self) -> Outcome:
        """Destroy every stack. Empty the buckets first, as a user must, once no process writes to them."""
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
        """Remove the capacity for these types, because the test checks the deployment without booting nodes."""
        running = read_cloud_file(self.cloud.state)
        assert running is not None
        headers = {TOKEN_HEADER: running.control_token}
        for name in instance_types:
            for letter in "abcdef":
                for market in ("spot", "on-demand"):
                    order = {"instance_type": name, "zone": region + letter, "market": market, "available": 0}
                    request = urllib.request.Request(
                        f"{running.endpoint_url}/_localcloud/compute/capacity", json.dumps(order).encode(), headers
                    )
                    with urllib.request.urlopen(request, timeout=10) as answer:
                        assert answer.status == 200

    def physical_ids(self, stack: str) -> dict[str, tuple[str, str]]:
        """Return the type and physical ID of each resource in a stack, by logical ID."""
        pages = self.cloud.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
        return {
            each["LogicalResourceId"]: (each["ResourceType"], each["PhysicalResourceId"])
            for page in pages
            for each in page["StackResourceSummaries"]
        }

    def stacks(self) -> list[str]:
        """Return the names of the existing stacks, except the toolkit's."""
        described = self.cloud.client("cloudformation").describe_stacks()["Stacks"]
        return sorted(stack["StackName"] for stack in described if stack["StackName"] != "CDKToolkit")

    def template_versions(self) -> dict[str, int]:
        """Return the latest version of each launch template; a new version replaces nodes."""
        described = self.cloud.client("ec2").describe_launch_templates()["LaunchTemplates"]
        return {each["LaunchTemplateId"]: each["LatestVersionNumber"] for each in described}

    def denied(self) -> list[dict[str, Any]]:
        path = self.cloud.state / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def execution_policies(cloud: Cli) -> list[str]:
    """Create the policies of CloudFormation's role; return the options of `cdk bootstrap`, as in the runbook.

    They are the committed policies with an additional boundary, which an edit sets on the roles.
    """
    files = sorted((ROOT / "config").rglob("*.yaml"))
    deployments = Deployments.of(read(path) for path in files)
    deployments = replace(deployments, boundaries=(*deployments.boundaries, IN_PLACE["node.permissions_boundary"]))
    iam, arns = cloud.client("iam"), []
    for number, document in enumerate(documents(needed(), deployments), start=1):
        name = f"trainstack-execution-policy-{number}"
        arns.append(iam.create_policy(PolicyName=name, PolicyDocument=json.dumps(document))["Policy"]["Arn"])
    boundary = execution_boundary(list(needed()), deployments)
    iam.create_policy(PolicyName=BOUNDARY_NAME, PolicyDocument=json.dumps(boundary))
    return ["--cloudformation-execution-policies", ",".join(arns), "--custom-permissions-boundary", BOUNDARY_NAME]


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """A copy of the project and an empty, bootstrapped cloud."""
    project = tmp_path / "project"
    (project / "config").mkdir(parents=True)
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    for name in ("bootstrap", "hardware", "stacks", "training"):
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
