"""The objects in the deployment's buckets that nodes may access: the node role's S3 statements, and a table of them.

Add a row here for each new kind of object that nodes access. docs/security.md contains the table, and a test compares
them.

Sources (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes-enforce.html (If-None-Match
as a condition, which the calls of a multipart upload before its completion cannot meet), and
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html (`aws:userid` of an instance's role
is `role-id:ec2-instance-id`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bootstrap.documents.object_keys import control_prefix, heartbeat_key, report_prefix, run_prefix
from stacks.config import DeploymentConfig

BucketName = Literal["checkpoints", "control", "datasets"]

READ, WRITE, DELETE = ("s3:GetObject",), ("s3:PutObject",), ("s3:DeleteObject",)
ABORT = ("s3:AbortMultipartUpload",)
WRITE_ONCE: dict[str, object] = {"Null": {"s3:if-none-match": "false"}}
"""The request has If-None-Match, so S3 rejects it if the object exists. A role with this right must not be able to
delete the object, because it could then replace it."""
WRITE_PARTS: dict[str, object] = {"Bool": {"s3:ObjectCreationOperation": "false"}}
"""The request begins a multipart upload or uploads a part. The completion creates the object."""
CALLER = "${aws:userid}"
ANY = "*"


@dataclass(frozen=True)
class ObjectRight:
    """A statement of the node role that allows actions on objects.

    Attributes:
        sid: The statement's Sid.
        bucket: The bucket of the objects.
        keys: Patterns of keys.
        actions: The allowed actions.
        purpose: A short description of the objects.
        conditions: The statement's conditions.
    """

    sid: str
    bucket: BucketName
    keys: tuple[str, ...]
    actions: tuple[str, ...]
    purpose: str
    conditions: dict[str, object] | None = None

    @property
    def verbs(self) -> str:
        """Verbs that describe the allowed actions."""
        if self.conditions == WRITE_PARTS:
            return "upload parts"
        write = "create" if self.conditions == WRITE_ONCE else "write"
        words = {READ: "read", WRITE: write, DELETE: "delete"}
        return ", ".join(word for (action,), word in words.items() if action in self.actions)


def object_rights(config: DeploymentConfig, deployment: str) -> list[ObjectRight]:
    """Return the rights of the nodes of a fleet in a deployment."""
    fleet = config.name
    runs, control = run_prefix(fleet, ANY), control_prefix(fleet, ANY)
    checkpoints = f"{runs}/checkpoints"
    rights = [
        ObjectRight("ReadDataset", "datasets", ("datasets/*",), READ, "datasets"),
        ObjectRight("ReadRuns", "checkpoints", (f"{runs}/*",), READ, "checkpoints and results of the fleet's runs"),
        ObjectRight(
            "StoreCheckpoints",
            "checkpoints",
            tuple(f"{checkpoints}/{kind}/*" for kind in ("chunks", "dropped", "parts", "tags")),
            (*WRITE, *DELETE, *ABORT),
            "chunks and manifests, each rank's parts, tags and markers; retention deletes old ones",
        ),
        ObjectRight(
            "AppendLog", "checkpoints", (f"{checkpoints}/log/*",), WRITE, "entries of the checkpoint log", WRITE_ONCE
        ),
        ObjectRight("StoreResults", "checkpoints", (f"{runs}/results/*",), (*WRITE, *ABORT), "results of generations"),
        ObjectRight("ReadRecords", "control", (f"{control}*",), READ, "control records"),
        ObjectRight(
            "RecordGenerations", "control", (f"{control}generations/*",), WRITE, "elections of generations", WRITE_ONCE
        ),
        ObjectRight(
            "ReportRun",
            "control",
            (f"{control}outcome.json", f"{control}status.json"),
            WRITE,
            "the run's outcome and status, which any node may report",
        ),
        ObjectRight("BeatHeart", "control", (heartbeat_key(fleet, ANY, CALLER),), WRITE, "the node's own heartbeat"),
        ObjectRight("ReportFailures", "control", (f"{report_prefix(CALLER)}*",), WRITE, "the node's own reports"),
    ]
    if config.pipeline is not None:
        # The fleets of a deployment's slots have its name, and a dash and a suffix after it. No other deployment uses
        # the bucket.
        keys = tuple(f"{run_prefix(each, ANY)}/checkpoints/*" for each in (deployment, f"{deployment}-*"))
        rights.append(
            ObjectRight("ReadWeights", "checkpoints", keys, READ, "checkpoints of the pipeline's earlier steps")
        )
    return [*rights, *_preparation(config)]


def _preparation(config: DeploymentConfig) -> list[ObjectRight]:
    """Return the rights of nodes that prepare data."""
    prepare = config.training.prepare
    if prepare is None:
        return []
    prepared = "datasets/prepared/*"
    return [
        ObjectRight("ReadSource", "datasets", (f"{prepare.source}/*",), READ, "the source of prepared data"),
        ObjectRight("CreatePreparedData", "datasets", (prepared,), WRITE, "prepared data, claims, commits", WRITE_ONCE),
        ObjectRight(
            "UploadPreparedParts", "datasets", (prepared,), WRITE, "parts of large files of prepared data", WRITE_PARTS
        ),
        ObjectRight("AbortPreparedUploads", "datasets", (prepared,), ABORT, "failed uploads of prepared data"),
        ObjectRight(
            "ReportPreparation",
            "datasets",
            (f"datasets/prepared/*/progress/{CALLER}/*",),
            WRITE,
            "the progress of the node's own claim",
        ),
    ]


def rights_table(rights: Sequence[ObjectRight]) -> str:
    """Return the rights as a Markdown table."""
    lines = ["| bucket | keys | nodes may | objects | statement |", "|---|---|---|---|---|"]
    for right in rights:
        keys = ", ".join(f"`{key}`" for key in right.keys)
        verbs = right.verbs or "abort uploads"
        lines.append(f"| {right.bucket} | {keys} | {verbs} | {right.purpose} | `{right.sid}` |")
    return "\n".join(lines) + "\n"
