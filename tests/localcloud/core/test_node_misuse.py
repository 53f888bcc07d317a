"""Misuse of a node's role on the embedded cloud. Each call in the table is denied. The calls that a run makes are
allowed.

The role has exactly the statements that the stack gives it. The embedded cloud does not enforce endpoint policies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from botocore.exceptions import ClientError

from bootstrap.documents.object_keys import control_prefix, heartbeat_key, report_prefix, run_prefix, user_id
from localcloud.cloud import LocalCloud
from stacks.constructs.nodes.node_role import NodeRole
from stacks.constructs.nodes.object_rights import object_rights, rights_table
from stacks.loading import load
from tests.localcloud.compute.volume_nodes import resolved
from tests.localcloud.core.conftest import client_of, denied_calls

ROOT = Path(__file__).resolve().parents[3]
ACCOUNT, FLEET, OTHER_FLEET = "123456789012", "demo", "other"
ME, PEER = "i-00000000000000001", "i-00000000000000002"
CHECKPOINTS, CONTROL, DATASETS = "checkpoints", "control", "datasets"
RUN, OLD_RUN, FOREIGN = run_prefix(FLEET, "run-1"), run_prefix(FLEET, "run-0"), run_prefix(OTHER_FLEET, "run-1")
RECORDS, FOREIGN_RECORDS = control_prefix(FLEET, "run-1"), control_prefix(OTHER_FLEET, "run-1")
LOG, CHUNK = f"{RUN}/checkpoints/log/00000001.json", f"{RUN}/checkpoints/chunks/00000000/{'a' * 64}"
CLAIM, COMMIT = "datasets/prepared/d/claims/0001.json", "datasets/prepared/d/prepared.json"
PARAMETER, LOG_GROUP = "/trainstack/demo/run", "/trainstack/demo"
PREPARE = {"function": "training.data.prepare:tokenize", "source": "raw/text", "options": {}}
WEIGHTS = f"s3://{CHECKPOINTS}/{run_prefix('teacher', 'run-9')}/checkpoints#best"


def template(name: str, **training: Any) -> str:
    """Return the node role's statements as JSON, with the intrinsic functions resolved."""
    app = cdk.App()
    stack = cdk.Stack(app, name, env=cdk.Environment(account=ACCOUNT, region="us-east-1"))
    config = load(ROOT / "config" / "demo.yaml")
    changed = config.model_copy(update={"training": config.training.model_copy(update=training)})
    NodeRole(
        stack,
        "NodeRole",
        config=changed,
        deployment=config.name,
        datasets=s3.Bucket.from_bucket_name(stack, "Datasets", DATASETS),
        checkpoints=s3.Bucket.from_bucket_name(stack, "Checkpoints", CHECKPOINTS),
        control=s3.Bucket.from_bucket_name(stack, "Control", CONTROL),
        key=kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/none"),
    )
    resources = app.synth().get_stack_by_name(name).template["Resources"]
    (policy,) = [one for one in resources.values() if one["Type"] == "AWS::IAM::Policy"]
    text = json.dumps(resolved(policy["Properties"]["PolicyDocument"]))
    assert '"2012-10-17"' in text, "policy variables require this version"
    return text


@dataclass
class Nodes:
    """The role of a fleet, and clients for its instances."""

    cloud: LocalCloud
    arn: str
    role_id: str

    def client(self, service: str, instance_id: str = ME) -> Any:
        session = self.cloud.identity.issue(
            self.arn, instance_id, trusted_service="ec2.amazonaws.com", duration_seconds=900
        )
        return client_of(self.cloud, session, service)

    def filled(self, value: Any) -> Any:
        """Return parameters with the user IDs of this node and of another node."""
        if isinstance(value, str):
            return value.replace("<me>", user_id(self.role_id, ME)).replace("<peer>", user_id(self.role_id, PEER))
        if isinstance(value, dict):
            return {key: self.filled(item) for key, item in value.items()}
        return [self.filled(item) for item in value] if isinstance(value, list) else value

    def call(self, service: str, operation: str, parameters: dict[str, Any]) -> str:
        """Make a call; return "" or the error code."""
        try:
            getattr(self.client(service), operation)(**self.filled(parameters))
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return ""


def made(cloud: LocalCloud, name: str, policy: str) -> Nodes:
    iam = cloud.clients.client("iam")
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]
    iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=policy)
    return Nodes(cloud, role["Arn"], role["RoleId"])


@pytest.fixture(scope="module")
def nodes(cloud: LocalCloud) -> Iterator[Nodes]:
    """The role of a fleet that prepares its data, and the objects of its runs and of another fleet's run."""
    store = cloud.clients.client("s3")
    for bucket in (CHECKPOINTS, CONTROL, DATASETS, "elsewhere"):
        store.create_bucket(Bucket=bucket)
    store.put_bucket_versioning(Bucket=CHECKPOINTS, VersioningConfiguration={"Status": "Enabled"})
    nodes = made(cloud, "nodes", template("Nodes", prepare=prepare_config()))
    for bucket, key in (
        (CHECKPOINTS, LOG),
        (CHECKPOINTS, CHUNK),
        (CHECKPOINTS, f"{FOREIGN}/checkpoints/log/00000001.json"),
        (CHECKPOINTS, f"{run_prefix('teacher', 'run-9')}/checkpoints/log/00000001.json"),
        (CONTROL, f"{RECORDS}generations/00000001.json"),
        (CONTROL, heartbeat_key(FLEET, "run-1", "<peer>")),
        (CONTROL, f"{FOREIGN_RECORDS}outcome.json"),
        (CONTROL, f"controller/{FLEET}/run-1.json"),
        (CONTROL, f"{report_prefix('<peer>')}boot-failure.json"),
        (DATASETS, "datasets/words/dataset.json"),
        (DATASETS, CLAIM),
        (DATASETS, COMMIT),
        (DATASETS, "datasets/prepared/d/0001/train-00000.bin"),
        (DATASETS, "raw/secret/1.txt"),
        ("elsewhere", "key"),
    ):
        store.put_object(Bucket=bucket, Key=nodes.filled(key), Body=b"{}")
    for name in (PARAMETER, "/trainstack/other/run"):
        cloud.clients.client("ssm").put_parameter(Name=name, Value="{}", Type="String")
    for group in (LOG_GROUP, "/trainstack/other"):
        cloud.clients.client("logs").create_log_group(logGroupName=group)
    yield nodes


def prepare_config() -> Any:
    from stacks.config.run import PrepareConfig

    return PrepareConfig(**PREPARE)


def put(bucket: str, key: str, **conditions: str) -> tuple[str, str, dict[str, Any]]:
    return "s3", "put_object", {"Bucket": bucket, "Key": key, "Body": b"{}", **conditions}


def get(bucket: str, key: str) -> tuple[str, str, dict[str, Any]]:
    return "s3", "get_object", {"Bucket": bucket, "Key": key}


def delete(bucket: str, key: str) -> tuple[str, str, dict[str, Any]]:
    return "s3", "delete_object", {"Bucket": bucket, "Key": key}


def parts(bucket: str, key: str) -> tuple[str, str, dict[str, Any]]:
    return "s3", "create_multipart_upload", {"Bucket": bucket, "Key": key}


PEER_BEAT = heartbeat_key(FLEET, "run-1", "<peer>")
NEW_LOG, NEW_GENERATION = f"{RUN}/checkpoints/log/00000009.json", f"{RECORDS}generations/00000009.json"
MISUSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "overwrite a log entry": put(CHECKPOINTS, LOG),
    "append to the log without the condition": put(CHECKPOINTS, NEW_LOG),
    "delete a log entry": delete(CHECKPOINTS, LOG),
    "copy over a log entry": (
        *("s3", "copy_object"),
        {"Bucket": CHECKPOINTS, "Key": LOG, "CopySource": {"Bucket": CHECKPOINTS, "Key": CHUNK}},
    ),
    "write a log entry in parts": parts(CHECKPOINTS, NEW_LOG),
    "delete a version of a chunk": (
        *("s3", "delete_object"),
        {"Bucket": CHECKPOINTS, "Key": CHUNK, "VersionId": "null"},
    ),
    "suspend versioning": (
        *("s3", "put_bucket_versioning"),
        {"Bucket": CHECKPOINTS, "VersioningConfiguration": {"Status": "Suspended"}},
    ),
    "expire all versions": ("s3", "delete_bucket_lifecycle", {"Bucket": CHECKPOINTS}),
    "read another fleet's checkpoint": get(CHECKPOINTS, f"{FOREIGN}/checkpoints/log/00000001.json"),
    "write another fleet's checkpoint": put(CHECKPOINTS, f"{FOREIGN}/checkpoints/chunks/0/a", IfNoneMatch="*"),
    "delete another fleet's checkpoint": delete(CHECKPOINTS, f"{FOREIGN}/checkpoints/chunks/00000000/a"),
    "append to another fleet's log": put(CHECKPOINTS, f"{FOREIGN}/checkpoints/log/00000009.json", IfNoneMatch="*"),
    "read another fleet's records": get(CONTROL, f"{FOREIGN_RECORDS}outcome.json"),
    "end another fleet's run": put(CONTROL, f"{FOREIGN_RECORDS}outcome.json"),
    "write another fleet's results": put(CHECKPOINTS, f"{FOREIGN}/results/gen-1/node-0/metrics.jsonl"),
    "write an object that is not part of a run": put(CHECKPOINTS, f"{RUN}/exfiltrated"),
    "overwrite an election": put(CONTROL, f"{RECORDS}generations/00000001.json"),
    "write an election without the condition": put(CONTROL, NEW_GENERATION),
    "delete an election": delete(CONTROL, f"{RECORDS}generations/00000001.json"),
    "overwrite another node's heartbeat": put(CONTROL, PEER_BEAT),
    "delete another node's heartbeat": delete(CONTROL, PEER_BEAT),
    "write a heartbeat without a role ID": put(CONTROL, f"{RECORDS}heartbeats/{PEER}.json"),
    "delete the outcome": delete(CONTROL, f"{RECORDS}outcome.json"),
    "overwrite another node's report": put(CONTROL, f"{report_prefix('<peer>')}boot-failure.json"),
    "read another node's report": get(CONTROL, f"{report_prefix('<peer>')}boot-failure.json"),
    "read the run controller's state": get(CONTROL, f"controller/{FLEET}/run-1.json"),
    "write the run controller's state": put(CONTROL, f"controller/{FLEET}/run-1.json"),
    "overwrite a dataset": put(DATASETS, "datasets/words/dataset.json"),
    "delete a dataset": delete(DATASETS, "datasets/words/dataset.json"),
    "overwrite a claim": put(DATASETS, CLAIM),
    "delete a claim": delete(DATASETS, CLAIM),
    "overwrite the commit of prepared data": put(DATASETS, COMMIT),
    "delete the commit of prepared data": delete(DATASETS, COMMIT),
    "overwrite prepared data": put(DATASETS, "datasets/prepared/d/0001/train-00000.bin"),
    "report another node's progress": put(DATASETS, "datasets/prepared/d/progress/<peer>/0001.json"),
    "read objects outside the data source": get(DATASETS, "raw/secret/1.txt"),
    "read another bucket": get("elsewhere", "key"),
    "write another bucket": put("elsewhere", "exfiltrated"),
    "list another bucket": ("s3", "list_objects_v2", {"Bucket": "elsewhere"}),
    "make a bucket public": ("s3", "put_bucket_policy", {"Bucket": CHECKPOINTS, "Policy": "{}"}),
    "change the run document": (
        *("ssm", "put_parameter"),
        {"Name": PARAMETER, "Value": "{}", "Type": "String", "Overwrite": True},
    ),
    "read another deployment's run document": ("ssm", "get_parameters", {"Names": ["/trainstack/other/run"]}),
    "write another deployment's events": (
        *("logs", "create_log_stream"),
        {"logGroupName": "/trainstack/other", "logStreamName": ME},
    ),
    "delete the events": ("logs", "delete_log_group", {"logGroupName": LOG_GROUP}),
    "launch instances": ("ec2", "run_instances", {"ImageId": "ami-12345678", "MinCount": 1, "MaxCount": 1}),
    "create a user": ("iam", "create_user", {"UserName": "thief"}),
}
"""The calls that must be denied: service, operation and parameters. `<me>` and `<peer>` are nodes' user IDs."""

USES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "read the dataset": get(DATASETS, "datasets/words/dataset.json"),
    "append to the log": put(CHECKPOINTS, f"{RUN}/checkpoints/log/00000002.json", IfNoneMatch="*"),
    "store a chunk": put(CHECKPOINTS, f"{RUN}/checkpoints/chunks/00000000/b"),
    "store a large chunk": parts(CHECKPOINTS, f"{RUN}/checkpoints/chunks/00000000/c"),
    "delete a chunk": delete(CHECKPOINTS, f"{RUN}/checkpoints/chunks/00000000/b"),
    "write the last save of a renamed run": put(
        CHECKPOINTS, f"{OLD_RUN}/checkpoints/log/00000001.json", IfNoneMatch="*"
    ),
    "store results": put(CHECKPOINTS, f"{RUN}/results/gen-1/node-0/metrics.jsonl"),
    "elect a generation": put(CONTROL, f"{RECORDS}generations/00000002.json", IfNoneMatch="*"),
    "read another node's heartbeat": get(CONTROL, PEER_BEAT),
    "send a heartbeat": put(CONTROL, heartbeat_key(FLEET, "run-1", "<me>")),
    "report the outcome": put(CONTROL, f"{RECORDS}outcome.json"),
    "report the status": put(CONTROL, f"{RECORDS}status.json"),
    "report a failed boot": put(CONTROL, f"{report_prefix('<me>')}boot-failure.json"),
    "claim a preparation": put(DATASETS, "datasets/prepared/e/claims/0001.json", IfNoneMatch="*"),
    "upload prepared data in parts": parts(DATASETS, "datasets/prepared/e/0001/train-00000.bin"),
    "report the progress of a preparation": put(DATASETS, "datasets/prepared/e/progress/<me>/0001.json"),
    "read the run document": ("ssm", "get_parameters", {"Names": [PARAMETER]}),
    "open a log stream": ("logs", "create_log_stream", {"logGroupName": LOG_GROUP, "logStreamName": ME}),
}
DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}


def test_no_misuse_succeeds(nodes: Nodes) -> None:
    assert len(MISUSES) >= 30
    codes = {name: nodes.call(*misuse) for name, misuse in MISUSES.items()}
    assert {name: code for name, code in codes.items() if code not in DENIED} == {}
    assert len(denied_calls(nodes.cloud)) >= len(MISUSES)


def test_the_calls_of_a_run_succeed(nodes: Nodes) -> None:
    codes = {name: nodes.call(*use) for name, use in USES.items()}
    assert {name: code for name, code in codes.items() if code} == {}


def test_an_entry_that_exists_is_not_replaced_under_the_condition(nodes: Nodes) -> None:
    for use in (put(CHECKPOINTS, LOG, IfNoneMatch="*"), put(DATASETS, COMMIT, IfNoneMatch="*")):
        assert nodes.call(*use) == "PreconditionFailed"


def test_completion_of_prepared_data_requires_the_condition(nodes: Nodes) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes-enforce.html (2026-11)."""
    client, name = nodes.client("s3"), {"Bucket": DATASETS, "Key": "datasets/prepared/f/0001/train-00000.bin"}
    upload = {**name, "UploadId": client.create_multipart_upload(**name)["UploadId"]}
    etag = client.upload_part(**upload, PartNumber=1, Body=b"1")["ETag"]
    complete = {**upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}}
    assert nodes.call("s3", "complete_multipart_upload", complete) == "AccessDenied"
    assert nodes.call("s3", "complete_multipart_upload", {**complete, "IfNoneMatch": "*"}) == ""


def test_deleted_chunk_can_be_restored(nodes: Nodes) -> None:
    assert nodes.call(*delete(CHECKPOINTS, CHUNK)) == ""
    store = nodes.cloud.clients.client("s3")
    (marker,) = store.list_object_versions(Bucket=CHECKPOINTS, Prefix=CHUNK)["DeleteMarkers"]
    store.delete_object(Bucket=CHECKPOINTS, Key=CHUNK, VersionId=marker["VersionId"])
    assert store.get_object(Bucket=CHECKPOINTS, Key=CHUNK)["Body"].read() == b"{}"


def test_initial_weights_of_another_run_are_readable_only(cloud: LocalCloud, nodes: Nodes) -> None:
    config = load(ROOT / "config" / "demo.yaml").training.config
    policy = template("Student", config=config.model_copy(update={"initial_weights": WEIGHTS}))
    student = made(cloud, "student", policy)
    entry = f"{run_prefix('teacher', 'run-9')}/checkpoints/log/00000001.json"
    assert nodes.call(*get(CHECKPOINTS, entry)) == "AccessDenied"
    assert student.call(*get(CHECKPOINTS, entry)) == ""
    assert student.call(*put(CHECKPOINTS, entry, IfNoneMatch="*")) == "AccessDenied"
    assert student.call(*delete(CHECKPOINTS, entry)) == "AccessDenied"
    assert student.call(*get(CHECKPOINTS, f"{FOREIGN}/checkpoints/log/00000001.json")) == "AccessDenied"


def test_security_page_contains_the_table_of_rights() -> None:
    config = load(ROOT / "config" / "demo.yaml")
    prepared = config.model_copy(
        update={"name": "<fleet>", "training": config.training.model_copy(update={"prepare": prepare_config()})}
    )
    table = rights_table(object_rights(prepared, prepared.name)).replace(PREPARE["source"], "<source>")
    assert table in (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
