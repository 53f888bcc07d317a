"""Runs LocalStack's snapshot tests, whose responses were recorded on AWS, against an embedded cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import boto3

HERE = Path(__file__).parent
TESTS = "tests/aws/services/cloudformation"
PYTHON = "LOCALSTACK_PYTHON"
EQUAL = ("equal", "cosmetic")
KNOWN = HERE / "known.json"


def recorded(folder: Path, build: Path) -> Counter[str]:
    """Run the CloudFormation tests in a checkout of LocalStack; print the differences and count the results."""
    python = Path(os.environ.get(PYTHON) or folder / ".venv/bin/python").absolute()
    if not (folder / TESTS).exists() or not python.exists():
        print(
            f"LOCALSTACK={folder}: must be a checkout of https://github.com/localstack/localstack with an environment "
            f"of Python 3.12 or newer in .venv (make install-test there), or set {PYTHON} to its interpreter"
        )
        return Counter(failed=1)
    state, results = build / "localstack", (build / "localstack-results.jsonl").absolute()
    state.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "localcloud", "up", "--state", str(state)], check=True)
    try:
        cloud = json.loads((state / "cloud.json").read_text())
        _create_role(cloud)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.absolute()), str((folder / "localstack-core").absolute())]),
            "TEST_SKIP_LOCALSTACK_START": "1",
            "TEST_AWS_ENDPOINT_URL": cloud["endpoint_url"],
            "TEST_AWS_ACCOUNT_ID": cloud["account"],
            "TEST_AWS_ACCESS_KEY_ID": cloud["access_key_id"],
            "TEST_AWS_SECRET_ACCESS_KEY": cloud["secret_access_key"],
            "TRUTH_RESULTS": str(results),
        }
        options = [
            "-q",
            "--no-header",
            "--tb=no",
            "--no-summary",
            "-p",
            "plugin",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
        ]
        subprocess.run([str(python), "-m", "pytest", *options, TESTS], cwd=folder, env=environment)
    finally:
        subprocess.run([sys.executable, "-m", "localcloud", "down", "--state", str(state)])
    return compare(results.read_text() if results.exists() else "", json.loads(KNOWN.read_text()))


def _create_role(cloud: dict[str, str]) -> None:
    """Create the role for functions that a test creates on AWS, but not on LocalStack, which does not check roles."""
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    client = boto3.client(
        "iam",
        region_name="us-east-1",
        endpoint_url=cloud["endpoint_url"],
        aws_access_key_id=cloud["access_key_id"],
        aws_secret_access_key=cloud["secret_access_key"],
    )
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    client.create_role(RoleName="LambdaExecutionRole", AssumeRolePolicyDocument=document)


def compare(results: str, known: dict[str, str]) -> Counter[str]:
    """Compare the results with the known differences and count them. `known` maps test names to reasons.

    A new difference is a failure. A known difference that no longer occurs or was not tested is also a failure.
    """
    found = {one["test"].removeprefix(TESTS + "/"): one for one in map(json.loads, results.splitlines())}
    outcomes = Counter(one["outcome"] for one in found.values())
    differ = {name for name, one in found.items() if one["outcome"] == "differs"}
    for name in sorted(differ - known.keys()):
        print(f"differs: {name}")
        for line in found[name].get("differences") or [found[name].get("failure", "")[-300:]]:
            print(f"  {line}")
    for name in sorted(known.keys() - differ):
        print(f"no longer differs; remove it from {KNOWN.name}: {name}")
    in_scope = sum(outcomes[one] for one in (*EQUAL, "differs"))
    equal = sum(outcomes[one] for one in EQUAL)
    share = f", {100 * equal / in_scope:.1f}%" if in_scope else ""
    print(
        f"recorded responses: {outcomes['equal']} equal, {outcomes['cosmetic']} cosmetic, of {in_scope} in scope{share}"
    )
    return Counter(
        {
            "passed": equal,
            "failed": len(differ ^ known.keys()),
            "out of scope": outcomes["out of scope"] + len(differ & known.keys()),
        }
    )
