"""A SageMaker HyperPod cluster.

Sources (2026-11): https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeCluster.html,
API_ListClusterNodes.html and API_ListClusterEvents.html in the same guide
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from stacks.config.clusters import cluster_name
from stacks.config.clusters.hyperpod import CONTROLLER, LOGIN
from trainstack.clusters.state import ClusterState, Part, ask
from trainstack.session import FAILED, CommandError

if TYPE_CHECKING:  # imports the node program
    from stacks.artifacts.lifecycle import LifecycleFolder

READY = ("InService", "SystemUpdating", "Updating")
DEGRADED = ("Failed", "Degraded")
SERVICE = "HyperPod"
MAX_EVENTS = 5
"""Newest events that a failure lists."""


class HyperPodCluster:
    """A deployment's cluster.

    Args:
        client: A boto3 client for `sagemaker`.
        deployment: Name of the deployment.
        has_shell: Whether the commands for the run need a shell in the cluster, as Slurm's do.
    """

    def __init__(self, client: Any, deployment: str, *, has_shell: bool) -> None:
        self._client, self._deployment, self._has_shell = client, deployment, has_shell

    def read(self) -> ClusterState:
        """Return the cluster's state. Raises CommandError."""
        name = cluster_name(self._deployment)
        try:
            cluster = ask(lambda: self._client.describe_cluster(ClusterName=name), name)
            nodes = self._list_nodes(name)
        except ClientError:
            return ClusterState.missing(SERVICE, name)
        status, groups = cluster["ClusterStatus"], cluster["InstanceGroups"]
        problems = list(_problems(cluster, nodes))
        if problems:
            problems += self._events(name)
        is_ready = status in READY and all(each.get("Status", "InService") not in DEGRADED for each in groups)
        is_ready = is_ready and all(each["CurrentCount"] >= 1 for each in groups if each["TargetCount"])
        parts = tuple(_part(group, nodes) for group in groups)
        return ClusterState(SERVICE, name, status, is_ready, parts, tuple(problems), self._access(cluster, nodes))

    def _list_nodes(self, name: str) -> list[Mapping[str, Any]]:
        pages = self._client.get_paginator("list_cluster_nodes").paginate(ClusterName=name)
        return [node for page in ask(lambda: list(pages), name) for node in page["ClusterNodeSummaries"]]

    def _events(self, name: str) -> Iterator[str]:
        """Yield the newest events with a level above Info. Without permission to list them, yield none."""
        request = {"ClusterName": name, "SortBy": "EventTime", "SortOrder": "Descending", "MaxResults": 20}
        try:
            found = ask(lambda: self._client.list_cluster_events(**request)["Events"], name)
        except (ClientError, CommandError):
            return
        errors = [event for event in found if event.get("EventLevel") in ("Error", "Warn") and event.get("Description")]
        for event in errors[:MAX_EVENTS]:
            source = event.get("InstanceId") or event.get("InstanceGroupName") or name
            yield f"event of {source}: {event['Description']}"

    def _access(self, cluster: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> str:
        """Return how to open a shell on the login node, or else on the controller.

        Source of the target's form (2026-11):
        https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-access-nodes.html
        """
        if not self._has_shell:
            return ""
        identifier = cluster["ClusterArn"].rpartition("/")[2]
        by_group = {node["InstanceGroupName"]: node["InstanceId"] for node in nodes}
        group = LOGIN if LOGIN in by_group else CONTROLLER
        target = f"sagemaker-cluster:{identifier}_{group}-{by_group.get(group, 'INSTANCE')}"
        return f"open a shell with `aws ssm start-session --target {target}`"


def _part(group: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> Part:
    name = group["InstanceGroupName"]
    states = Counter(each["InstanceStatus"]["Status"] for each in nodes if each["InstanceGroupName"] == name)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(states.items()))
    detail = f"{group['CurrentCount']} of {group['TargetCount']} x {group.get('InstanceType', 'several types')}"
    return Part("instance group", name, group.get("Status", ""), f"{detail} ({counts})" if counts else detail)


def _problems(cluster: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the failures of the cluster, its groups and its nodes."""
    if cluster["ClusterStatus"] in ("Failed", "RollingBack") or cluster.get("FailureMessage"):
        yield f"cluster: {cluster.get('FailureMessage') or cluster['ClusterStatus']}"
    for group in cluster["InstanceGroups"]:
        if group.get("Status") in DEGRADED:
            yield f"instance group {group['InstanceGroupName']}: {group['Status']}"
    for node in nodes:
        if node["InstanceStatus"]["Status"] == "Failure":
            message = node["InstanceStatus"].get("Message") or "no message"
            yield f"node {node['InstanceId']} of {node['InstanceGroupName']}: {message}"


def upload_scripts(s3: Any, cloudformation: Any, stack: str, folder: LifecycleFolder) -> str:
    """Upload the life-cycle scripts to the control bucket, and return their address.

    Args:
        s3: A boto3 client for `s3`.
        cloudformation: A boto3 client for `cloudformation`.
        stack: Name of StorageStack.
        folder: The scripts.

    Raises:
        CommandError: The stack does not exist, or an upload fails.
    """
    try:
        (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
        outputs = {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}
        bucket = outputs["ControlBucket"]
        for name, content in folder.files(bucket).items():
            s3.put_object(Bucket=bucket, Key=f"{folder.prefix}/{name}", Body=content)
    except KeyError as error:
        raise CommandError(FAILED, f"{stack}: has no output {error}; deploy StorageStack first") from error
    except (BotoCoreError, ClientError) as error:
        raise CommandError(FAILED, f"{stack}: the life-cycle scripts cannot be uploaded: {error}") from error
    return f"s3://{bucket}/{folder.prefix}"
