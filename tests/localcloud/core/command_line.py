"""Runs the embedded cloud's CLI, and finds the cloud's processes on this machine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil

from localcloud.state import MARKER, mark_of

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 90.0
USER_DATA = "#!/bin/sh\necho booted\nsetsid sleep 86400 &\nexec sleep 86400\n"
TRUST = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "lambda.amazonaws.com"}}
NO_MARK = {name: value for name, value in os.environ.items() if name != MARKER}


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"condition not met within {DEADLINE_SECONDS} s"
        time.sleep(0.05)
    return found


@dataclass
class Cli:
    state: Path

    def run(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "localcloud", verb, "--state", str(self.state), *options]
        return subprocess.run(command, cwd=ROOT, env=NO_MARK, capture_output=True, text=True, timeout=300)

    def good(self, verb: str, *options: str) -> str:
        done = self.run(verb, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, verb: str, *options: str) -> str:
        done = self.run(verb, *options)
        assert done.returncode == 1
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.good("status", "--json"))
        return found

    def client(self, service: str) -> Any:
        cloud = json.loads((self.state / "cloud.json").read_text())
        return boto3.client(
            service,
            endpoint_url=cloud["endpoint_url"],
            region_name=cloud["region"],
            aws_access_key_id=cloud["access_key_id"],
            aws_secret_access_key=cloud["secret_access_key"],
        )

    def processes(self) -> list[psutil.Process]:
        """Return the processes marked as the cloud's, found independently of the code under test."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER) == mark_of(self.state):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def sleepers(self) -> int:
        return sum(process.name() == "sleep" for process in self.processes())

    def run_instances(self, count: int = 1) -> list[str]:
        """Launch instances with two sleeping processes, one of them in its own session; return their IDs."""
        ec2 = self.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="127.64.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="127.64.0.0/20")["Subnet"]["SubnetId"]
        image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        launched = ec2.run_instances(
            ImageId=image,
            InstanceType="c7i.large",
            InstanceMarketOptions={"MarketType": "spot"},
            MinCount=count,
            MaxCount=count,
            SubnetId=subnet,
            UserData=USER_DATA,
        )
        wait_for(lambda: self.sleepers() == 2 * count)
        return [instance["InstanceId"] for instance in launched["Instances"]]

    def invoke_function(self) -> int:
        """Create and invoke a function; return the ID of its process, which stays alive for the next call."""
        document = {"Version": "2012-10-17", "Statement": [TRUST]}
        iam = self.client("iam")
        role = iam.create_role(RoleName="f", AssumeRolePolicyDocument=json.dumps(document))["Role"]["Arn"]
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr("main.py", "import os\ndef handler(event, context):\n    return os.getpid()\n")
        functions = self.client("lambda")
        functions.create_function(
            FunctionName="f",
            Runtime="python3.11",
            Handler="main.handler",
            Role=role,
            Code={"ZipFile": package.getvalue()},
        )
        return int(functions.invoke(FunctionName="f")["Payload"].read())
