"""An EKS cluster in Auto Mode.

Source (2026-11): https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from stacks.config.clusters import cluster_name
from trainstack.clusters.state import ClusterState, Part, ask

READY = ("ACTIVE", "UPDATING")
SERVICE = "EKS"


class EksCluster:
    """A deployment's cluster.

    Args:
        client: A boto3 client for `eks`.
        deployment: Name of the deployment.
        region: AWS region.
    """

    def __init__(self, client: Any, deployment: str, region: str) -> None:
        self._client, self._deployment, self._region = client, deployment, region

    def read(self) -> ClusterState:
        """Return the cluster's state. Raises CommandError."""
        name = cluster_name(self._deployment)
        command = f"aws eks update-kubeconfig --name {name} --alias {name} --region {self._region}"
        access = f"`{command}` creates the context {name}, which kubectl needs"
        try:
            cluster = ask(lambda: self._client.describe_cluster(name=name)["cluster"], name)
        except ClientError:
            return ClusterState.missing(SERVICE, name)
        issues = cluster.get("health", {}).get("issues", [])
        problems = [f"{each.get('code', 'issue')}: {each.get('message', 'no message')}" for each in issues]
        if cluster["status"] == "FAILED" and not problems:
            problems.append("cluster: FAILED")
        vpc = cluster.get("resourcesVpcConfig", {})
        where = "private and public" if vpc.get("endpointPublicAccess") else "private"
        part = Part("Kubernetes API", cluster.get("version", ""), cluster["status"], f"{where} access")
        is_ready = cluster["status"] in READY
        return ClusterState(SERVICE, name, cluster["status"], is_ready, (part,), tuple(problems), access)
