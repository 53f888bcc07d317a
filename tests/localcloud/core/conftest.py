"""An embedded cloud, and clients that sign as roles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from localcloud.api import Credentials
from localcloud.cloud import LocalCloud


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"))
    running.start()
    yield running
    running.close()


def make_role(
    cloud: LocalCloud,
    name: str,
    *statements: dict[str, Any],
    trusted: str = "ec2.amazonaws.com",
    condition: dict[str, Any] | None = None,
) -> str:
    iam = cloud.clients.client("iam")
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": trusted}}
    document = {
        "Version": "2012-10-17",
        "Statement": [trust if condition is None else {**trust, "Condition": condition}],
    }
    arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(document))["Role"]["Arn"]
    if statements:
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **one} for one in statements]}
        iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(policy))
    return arn


def as_role(cloud: LocalCloud, arn: str, service: str) -> Any:
    session = cloud.identity.issue(arn, "test", trusted_service="ec2.amazonaws.com", duration_seconds=900)
    return client_of(cloud, session, service)


def client_of(cloud: LocalCloud, session: Credentials, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=cloud.endpoint_url,
        region_name=cloud.region,
        aws_access_key_id=session.access_key_id,
        aws_secret_access_key=session.secret_access_key,
        aws_session_token=session.session_token,
    )


def denied_calls(cloud: LocalCloud) -> list[dict[str, Any]]:
    path: Path = cloud.state_directory / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
