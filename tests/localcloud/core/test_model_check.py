"""Differences between values and botocore's models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from localcloud.cloud import LocalCloud
from localcloud.gateway import VIOLATION
from localcloud.http.model_check import violations


@pytest.mark.parametrize(
    ("service", "operation", "value", "words"),
    [
        ("logs", "PutMetricFilter", {"filterName": "f"}, "does not have the required member logGroupName"),
        ("logs", "CreateLogGroup", {"logGroupName": 5}, "is not of type string"),
        ("logs", "CreateLogGroup", {"logGroupName": ""}, "is below the minimum 1"),
        ("logs", "CreateLogGroup", {"logGroupName": "x" * 513}, "is above the maximum 512"),
        ("logs", "CreateLogGroup", {"logGroupName": "a b"}, "does not match"),
        ("logs", "CreateLogGroup", {"logGroupName": "a", "logGroupClass": "FAST"}, "is not one of STANDARD"),
        ("logs", "CreateLogGroup", {"logGroupName": "a", "tags": []}, "is not of type map"),
        ("logs", "DescribeLogGroups", {"limit": 51}, "limit: '51' is above the maximum 50"),
        ("logs", "DescribeLogGroups", {"limit": True}, "is not of type integer"),
        ("events", "PutTargets", {"Rule": "r", "Targets": [{"Id": "a"}]}, "Targets[0]: \"['Id']\" does not have"),
        ("logs", "CreateLogGroup", {"logGroupName": "/a/b", "tags": {"k": "v"}}, ""),
    ],
)
def test_violations_name_member_value_and_rule(service: str, operation: str, value: Any, words: str) -> None:
    model = boto3.client(service, region_name="us-east-1").meta.service_model.operation_model(operation)
    found = violations(model.input_shape, value)
    assert (words in "\n".join(found)) if words else found == []


def test_cloud_records_violations_of_requests_and_answers(tmp_path: Path) -> None:
    cloud = LocalCloud(tmp_path, check_models=True)
    cloud.start()
    try:
        events = cloud.clients.client("events")
        events.put_rule(Name="fine", EventPattern='{"source": ["a"]}')
        events.put_rule(Name="long", EventPattern='{"source": ["a"]}', Description="x" * 513)
        cloud.clients.client("s3").create_bucket(Bucket="stream")
        cloud.clients.client("s3").put_object(Bucket="stream", Key="k", Body=b"data")
        assert cloud.clients.client("s3").get_object(Bucket="stream", Key="k")["Body"].read() == b"data"
    finally:
        cloud.close()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    found = [(each["operation"], each["violation"]) for each in records if each["kind"] == VIOLATION]
    assert [operation for operation, _ in found] == ["events:PutRule"]
    assert "PutRuleRequest.Description" in found[0][1] and "is above the maximum 512" in found[0][1]
