"""A cluster of AWS Parallel Computing Service.

Source (2026-11): https://docs.aws.amazon.com/pcs/latest/APIReference/API_Operations.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from stacks.config.clusters import cluster_name
from stacks.config.clusters.pcs import LOGIN
from trainstack.clusters.state import ClusterState, Part, ask

READY = ("ACTIVE", "UPDATING")
SERVICE = "PCS"


class PcsCluster:
    """A deployment's cluster.

    Args:
        client: A boto3 client for `pcs`.
        deployment: Name of the deployment.
        file: The deployment file, as it appears in messages.
    """

    def __init__(self, client: Any, deployment: str, file: str) -> None:
        self._client, self._deployment, self._file = client, deployment, file

    def read(self) -> ClusterState:
        """Return the cluster's state. Raises CommandError."""
        name = cluster_name(self._deployment)
        try:
            cluster = ask(lambda: self._client.get_cluster(clusterIdentifier=name)["cluster"], name)
            resources = list(self._resources(cluster["id"]))
        except ClientError:
            return ClusterState.missing(SERVICE, name)
        problems = [text for kind, each in (("cluster", cluster), *resources) for text in _problems(kind, each)]
        statuses = [cluster["status"], *(each["status"] for _, each in resources)]
        is_ready = all(status in READY for status in statuses) and any(kind == "queue" for kind, _ in resources)
        parts = tuple(Part(kind, each["name"], each["status"], _detail(each)) for kind, each in resources)
        return ClusterState(SERVICE, name, cluster["status"], is_ready, parts, tuple(problems), self._access(parts))

    def _resources(self, cluster_id: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the node groups and queues, each with its kind."""
        for kind, name, items, identifier, described in (
            ("node group", "compute_node_group", "computeNodeGroups", "computeNodeGroupIdentifier", "computeNodeGroup"),
            ("queue", "queue", "queues", "queueIdentifier", "queue"),
        ):
            pages = self._client.get_paginator(f"list_{name}s").paginate(clusterIdentifier=cluster_id)
            for found in ask(lambda pages=pages: list(pages), cluster_id):  # type: ignore[misc]
                for item in found[items]:
                    get, request = getattr(self._client, f"get_{name}"), {identifier: item["id"]}
                    try:
                        answer = ask(
                            lambda get=get, request=request: get(clusterIdentifier=cluster_id, **request),  # type: ignore[misc]
                            item["id"],
                        )
                    except ClientError:  # deleted since the list
                        continue
                    yield kind, answer[described]

    def _access(self, parts: tuple[Part, ...]) -> str:
        if not any(each.name == LOGIN for each in parts):
            return f"run `trainstack status {self._file}` on a machine with Slurm's commands and the shared file system"
        find = f"aws ec2 describe-instances --filters Name=tag:Name,Values={self._deployment}-{LOGIN}"
        return f"open a shell on the login node (`{find}`, `aws ssm start-session --target INSTANCE`)"


def _problems(kind: str, resource: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of a resource."""
    errors = resource.get("errorInfo") or []
    for error in errors:
        yield f"{kind} {resource['name']}: {error.get('code', 'error')}: {error.get('message', 'no message')}"
    if not errors and resource["status"].endswith("_FAILED"):
        yield f"{kind} {resource['name']}: {resource['status']}"
    if resource["status"].startswith("SUSPEND"):
        yield f"{kind} {resource['name']}: {resource['status']}: its version of Slurm is no longer supported"


def _detail(resource: Mapping[str, Any]) -> str:
    if "scalingConfiguration" not in resource:
        return ""
    scaling = resource["scalingConfiguration"]
    types = ", ".join(each["instanceType"] for each in resource["instanceConfigs"])
    counts = f"{scaling['minInstanceCount']} to {scaling['maxInstanceCount']}"
    return f"{counts} x ({types}), {resource.get('purchaseOption', 'ONDEMAND')}"
