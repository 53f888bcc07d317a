"""IAM policies for reading runs (`status`, `why`, `events`, `metrics`, `cost`) and for operating them.

The policy for operating runs adds the calls made by `stop`, `resume`, `restart` and `retry`. The statements for models
add those made by `weights`, `sample` and `evaluate`.

Sources (2026-11): https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
(DescribeInstances does not support resource-level permissions) and
https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html (without s3:ListBucket, a missing object is reported
as 403).
"""

from __future__ import annotations

from typing import Any

from bootstrap.documents.desired_state import desired_parameter
from bootstrap.documents.object_keys import control_prefix, results_prefix, run_prefix
from bootstrap.supervise.membership.control import OUTCOME_NAME, STATUS_NAME
from stacks.functions.run_controller.events import RETRY, SOURCE
from stacks.functions.run_controller.records import state_key
from stacks.functions.zombie_watch.stack_names import candidates
from trainstack.account import DEPLOYMENT_TAG, STORAGE_STACK, Deployment, claim_key


def reader_policy(deployment: Deployment, region: str, account_id: str, partition: str = "aws") -> dict[str, Any]:
    """Return the policy document for one deployment. `runs` shows only stacks that DescribeStacks may list."""
    place = f"{region}:{account_id}"
    bucket = f"arn:{partition}:s3:::{deployment.control_bucket}"
    checkpoints = f"arn:{partition}:s3:::{deployment.checkpoint_bucket}"
    results = results_prefix(deployment.name, "*")
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow(
                "FindDeployment",
                "cloudformation:DescribeStacks",
                # The name of a slot could also be the name of a deployment, so `find` looks for both.
                [
                    f"arn:{partition}:cloudformation:{place}:stack/{name}/*"
                    for name in (*map(str, candidates(deployment.name)), f"{deployment.owner}-{STORAGE_STACK}")
                ],
            ),
            _allow(
                "ReadRunDocument",
                "ssm:GetParameters",
                [
                    f"arn:{partition}:ssm:{place}:parameter{name}"
                    for name in (deployment.run_parameter, desired_parameter(deployment.name))
                ],
            ),
            _allow(
                "ReadRecords",
                "s3:GetObject",
                [
                    f"{bucket}/{control_prefix(deployment.name, '*')}{STATUS_NAME}",
                    f"{bucket}/{state_key(deployment.name, '*')}",
                ],
            ),
            _allow("DistinguishMissing", "s3:ListBucket", bucket),
            _allow("ReadEventFiles", "s3:GetObject", f"{checkpoints}/{results}*tfevents*"),
            {
                **_allow("ListResults", "s3:ListBucket", checkpoints),
                "Condition": {"StringLike": {"s3:prefix": f"{results}*"}},
            },
            {
                **_allow("DecryptRecords", "kms:Decrypt", f"arn:{partition}:kms:{place}:key/*"),
                "Condition": _through_s3(deployment, region),
            },
            _allow("FindInstances", "ec2:DescribeInstances", "*"),
            _allow(
                "EstimateCosts",
                "cloudformation:GetTemplate",
                f"arn:{partition}:cloudformation:{place}:stack/{deployment.owner}-*/*",
            ),
            # Neither call supports resource-level permissions. Source (2026-11): list_amazonec2.html and
            # list_amazoncloudwatch.html in https://docs.aws.amazon.com/service-authorization/latest/reference/
            _allow("FindSnapshots", "ec2:DescribeSnapshots", "*"),
            _allow("ReadSizes", "cloudwatch:GetMetricStatistics", "*"),
            _allow(
                "ReadEvents",
                "logs:FilterLogEvents",
                f"arn:{partition}:logs:{place}:log-group:{deployment.log_group}:*",
            ),
        ],
    }


def operator_policy(deployment: Deployment, region: str, account_id: str, partition: str = "aws") -> dict[str, Any]:
    """Return the policy document for one deployment's operators: the reader's statements, and those for changing it.

    Sources (2026-11): https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazoneventbridge.html
    (PutEvents is authorized by event bus, source and detail type) and
    https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html (needs no permission).
    """
    place = f"{region}:{account_id}"
    policy = reader_policy(deployment, region, account_id, partition)
    if deployment.slot:
        policy["Statement"] += _start_runs(deployment, place, region, partition)
    policy["Statement"] += [
        _allow(
            "StopAndResume",
            "ssm:PutParameter",
            f"arn:{partition}:ssm:{place}:parameter{desired_parameter(deployment.name)}",
        ),
        {
            **_allow("Retry", "events:PutEvents", f"arn:{partition}:events:{place}:event-bus/default"),
            "Condition": {"StringEquals": {"events:source": SOURCE, "events:detail-type": RETRY}},
        },
    ]
    return policy


def _start_runs(deployment: Deployment, place: str, region: str, partition: str) -> list[dict[str, Any]]:
    """Return the statements that `run` needs to start a run in a slot.

    Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html (an upload needs
    kms:GenerateDataKey).
    """
    bucket = f"arn:{partition}:s3:::{deployment.control_bucket}"
    claim, outcome = claim_key(deployment.name), f"{control_prefix(deployment.name, '*')}{OUTCOME_NAME}"
    first = [f"/trainstack/{deployment.owner}/run", desired_parameter(deployment.owner)]
    return [
        # `run` lists all stacks to find the slots.
        _allow("FindSlots", "cloudformation:DescribeStacks", "*"),
        _allow(
            "ReadFirstRunDocument",
            "ssm:GetParameters",
            [f"arn:{partition}:ssm:{place}:parameter{name}" for name in first],
        ),
        _allow("ReadOutcomeAndClaim", "s3:GetObject", [f"{bucket}/{outcome}", f"{bucket}/{claim}"]),
        _allow("ClaimSlot", "s3:PutObject", f"{bucket}/{claim}"),
        {
            **_allow("EncryptClaim", "kms:GenerateDataKey", f"arn:{partition}:kms:{place}:key/*"),
            "Condition": _through_s3(deployment, region),
        },
        _allow("StartRun", "ssm:PutParameter", f"arn:{partition}:ssm:{place}:parameter{deployment.run_parameter}"),
    ]


def model_statements(deployment: Deployment, partition: str = "aws") -> list[dict[str, Any]]:
    """Return the statements that `weights`, `sample` and `evaluate` need in addition to the reader's.

    They read the checkpoints of all runs of the deployment, and all datasets in its bucket.
    """
    checkpoints = f"arn:{partition}:s3:::{deployment.checkpoint_bucket}"
    datasets = f"arn:{partition}:s3:::{deployment.dataset_bucket}"
    prefix = f"{run_prefix(deployment.name, '*')}/checkpoints/"
    return [
        _allow("ReadModels", "s3:GetObject", [f"{checkpoints}/{prefix}*", f"{datasets}/datasets/*"]),
        {
            **_allow("ListModels", "s3:ListBucket", [checkpoints, datasets]),
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}*", "datasets/*"]}},
        },
    ]


def _allow(sid: str, action: str, resource: str | list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": resource}


def _through_s3(deployment: Deployment, region: str) -> dict[str, Any]:
    """Return a condition for the deployment's key that permits only requests from S3."""
    owned = {f"aws:ResourceTag/{DEPLOYMENT_TAG}": deployment.owner}
    return {"StringEquals": {"kms:ViaService": f"s3.{region}.amazonaws.com", **owned}}
