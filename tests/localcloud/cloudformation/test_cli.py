"""Runs the unmodified CDK CLI against the embedded cloud: bootstrap, deploy, diff, update and destroy."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloud import LocalCloud
from localcloud.iam.identity import ACCOUNT, ROOT_ACCESS_KEY_ID

REPOSITORY = Path(__file__).parents[3]
CDK = REPOSITORY / "node_modules" / ".bin" / "cdk"
REGION = "us-east-1"
QUALIFIER = "hnb659fds"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path / "state", region=REGION)
    running.start()
    yield running
    running.close()


class CommandLine:
    """Runs `cdk` on a cloud assembly written by this test, without synthesizing an app."""

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.folder = folder
        self.assembly = folder / "assembly"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AWS_ENDPOINT_URL": cloud.endpoint_url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ROOT_ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": cloud.identity.root_secret,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "NO_COLOR": "1",
        }

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        command = [str(CDK), *arguments, "--no-notices"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, output
        return output

    def write(self, template: dict[str, Any]) -> None:
        """Write the output of `cdk synth`: one stack with its template as an asset and the bootstrap roles."""
        self.assembly.mkdir(exist_ok=True)
        body = json.dumps(template)
        (self.assembly / "App.template.json").write_text(body)
        digest = hashlib.sha256(body.encode()).hexdigest()
        bucket = f"cdk-{QUALIFIER}-assets-{ACCOUNT}-{REGION}"
        destination = {"bucketName": bucket, "objectKey": f"{digest}.json", "assumeRoleArn": _role("file-publishing")}
        asset = {
            "displayName": "App template",
            "source": {"path": "App.template.json", "packaging": "file"},
            "destinations": {"here": {**destination, "region": REGION}},
        }
        self._write("App.assets.json", {"version": "36.0.0", "files": {digest: asset}, "dockerImages": {}})
        version = {
            "requiresBootstrapStackVersion": 6,
            "bootstrapStackVersionSsmParameter": f"/cdk-bootstrap/{QUALIFIER}/version",
        }
        stack = {
            "type": "aws:cloudformation:stack",
            "environment": f"aws://{ACCOUNT}/{REGION}",
            "dependencies": ["App.assets"],
            "displayName": "App",
            "properties": {
                "templateFile": "App.template.json",
                "stackName": "App",
                "terminationProtection": False,
                "validateOnSynth": False,
                "assumeRoleArn": _role("deploy"),
                "cloudFormationExecutionRoleArn": _role("cfn-exec"),
                "stackTemplateAssetObjectUrl": f"s3://{bucket}/{digest}.json",
                "additionalDependencies": ["App.assets"],
                "lookupRole": {**version, "arn": _role("lookup")},
                **version,
            },
        }
        assets = {"type": "cdk:asset-manifest", "properties": {"file": "App.assets.json", **version}}
        self._write("manifest.json", {"version": "36.0.0", "artifacts": {"App.assets": assets, "App": stack}})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        (self.assembly / name).write_text(json.dumps(content))


def _role(name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:role/cdk-{QUALIFIER}-{name}-role-{ACCOUNT}-{REGION}"


def template(learning_rate: str, **more: Any) -> dict[str, Any]:
    run = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Name": "/run", "Value": learning_rate}}
    pointer = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": {"Fn::Sub": "at ${Run}"}}}
    metadata = {"Type": "AWS::CDK::Metadata", "Properties": {"Analytics": "v2:deflate64:"}}
    return {"Resources": {"Run": run, "Pointer": pointer, "CDKMetadata": metadata, **more}}


@pytest.mark.slow  # make test-flow covers the same commands
def test_bootstrap_deploy_diff_update_and_destroy(cloud: LocalCloud, tmp_path: Path) -> None:
    cdk = CommandLine(cloud, tmp_path)
    client = cloud.clients.client("cloudformation")
    environment = f"aws://{ACCOUNT}/{REGION}"
    assert f"Environment {environment} bootstrapped." in cdk("bootstrap", environment)
    assert "(no changes)" in cdk("bootstrap", environment)

    on_app = ("--app", str(tmp_path / "assembly"))
    cdk.write(template("0.1"))
    deployed = cdk("deploy", *on_app, "App", "--require-approval", "never")
    assert re.search(r"CREATE_COMPLETE\s+\| AWS::SSM::Parameter\s+\| Run", deployed), deployed
    assert client.describe_stacks(StackName="App")["Stacks"][0]["RoleARN"] == _role("cfn-exec")
    assert cloud.clients.client("ssm").get_parameter(Name="/run")["Parameter"]["Value"] == "0.1"

    unchanged = cdk("diff", *on_app, "App", "--method=change-set")
    assert "There were no differences" in unchanged
    assert "Could not create a change set" not in unchanged

    cdk.write(template("0.2"))
    changed = cdk("diff", *on_app, "App", "--method=change-set")
    assert "[~] AWS::SSM::Parameter Run" in changed
    assert "Pointer" not in changed
    assert "Number of stacks with differences: 1" in changed
    cdk("deploy", *on_app, "App", "--require-approval", "never")
    assert cloud.clients.client("ssm").get_parameter(Name="/run")["Parameter"]["Value"] == "0.2"
    assert "(no changes)" in cdk("deploy", *on_app, "App", "--require-approval", "never")

    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "not a name"}, "DependsOn": "Run"}
    cdk.write(template("0.3", Queue=queue))
    refused = cdk("deploy", *on_app, "App", "--require-approval", "never", fails=True)
    assert re.search(r"Queue.*Can only\s+include alphanumeric characters", refused, re.DOTALL), refused
    assert client.describe_stacks(StackName="App")["Stacks"][0]["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.clients.client("ssm").get_parameter(Name="/run")["Parameter"]["Value"] == "0.2"

    cdk("destroy", *on_app, "App", "--force")
    assert [s["StackName"] for s in client.describe_stacks()["Stacks"]] == ["CDKToolkit"]
    assert client.list_stacks(StackStatusFilter=["DELETE_COMPLETE"])["StackSummaries"][0]["StackName"] == "App"
