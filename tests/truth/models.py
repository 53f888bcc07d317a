"""Compares the calls in a demo run with botocore's models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from localcloud.gateway import VIOLATION

ANSWERS_OF_AWS = {
    "cloudformation:DescribeStackEvents: "
    "DescribeStackEventsOutput.StackEvents[].ResourceStatus: 'REVIEW_IN_PROGRESS'": (
        "https://github.com/localstack/localstack/blob/8b9a79f/tests/aws/services/cloudformation/api/"
        "test_stacks.snapshot.json, recorded from AWS"
    ),
    "ec2:CreateVpcEndpoint: CreateVpcEndpointResult.VpcEndpoint.State: 'available'": (
        "https://docs.aws.amazon.com/cli/latest/reference/ec2/create-vpc-endpoint.html, example output"
    ),
    "ec2:DescribeVpcEndpoints: DescribeVpcEndpointsResult.VpcEndpoints[].State: 'available'": (
        "https://docs.aws.amazon.com/cli/latest/reference/ec2/describe-vpc-endpoints.html, example output"
    ),
}
"""Responses that AWS returns although its models do not allow them, each with its source."""


def models(folder: Path) -> Counter[str]:
    """Run the demo in a folder with a cloud that checks all calls; print the differences and count them."""
    environment = {**os.environ, "LOCALCLOUD_CHECK_MODELS": "1"}
    command = [sys.executable, "-m", "localcloud.demo", "--build", str(folder)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout)
        return Counter(failed=1)
    return compare((folder / "cloud" / "records.jsonl").read_text())


def compare(records: str) -> Counter[str]:
    """Print the differences in a cloud's records that AWS's own responses do not show, and return the counts."""
    found = [record for record in map(json.loads, records.splitlines()) if record["kind"] == VIOLATION]
    broken = {re.sub(r"\[\d+\]", "[]", f"{record['operation']}: {record['violation']}") for record in found}
    allowed = {one for one in broken if any(one.startswith(f"{known} ") for known in ANSWERS_OF_AWS)}
    absent = {known for known in ANSWERS_OF_AWS if not any(one.startswith(f"{known} ") for one in broken)}
    failures = sorted(broken - allowed) + [f"does not occur: {known}" for known in sorted(absent)]
    for failure in failures:
        print(failure)
    return Counter({"passed": int(not failures), "failed": len(failures), "out of scope": len(allowed)})
