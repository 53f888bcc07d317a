"""EksStack: an EKS cluster in Auto Mode that runs the pods of `engine: kubernetes`.

Sources (2026-11): https://docs.aws.amazon.com/eks/latest/userguide/automode-get-started-cli.html,
https://docs.aws.amazon.com/eks/latest/userguide/create-node-class.html (access entry) and
https://docs.aws.amazon.com/eks/latest/userguide/pod-id-association.html
"""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.config.clusters import cluster_name
from stacks.config.clusters.eks import node_role_name
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.nodes.instance_role import use_key_through_s3
from stacks.constructs.suppressions import suppress
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack

CLUSTER_POLICIES = (
    *("AmazonEKSClusterPolicy", "AmazonEKSComputePolicy", "AmazonEKSBlockStoragePolicy"),
    *("AmazonEKSLoadBalancingPolicy", "AmazonEKSNetworkingPolicy"),
)
NODE_POLICIES = ("AmazonEKSWorkerNodeMinimalPolicy", "AmazonEC2ContainerRegistryPullOnly")
LOGS = ("api", "audit", "authenticator", "controllerManager", "scheduler")
READ, WRITE = ("s3:GetObject",), ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


class EksStack(Stack):
    """The cluster, the roles of its nodes and pods, and access entries.

    Karpenter, which is part of Auto Mode, reads the node class and the node pool in the manifests, launches nodes for
    the pods, and removes empty ones.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        network: NetworkStack,
        storage: StorageStack,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        section = config.eks
        assert section is not None and config.kubernetes is not None, "stacks.validators"
        self._config, self._section, self._kubernetes = config, section, config.kubernetes
        node_role = self._node_role()
        self._cluster = self._create_cluster(network, storage, node_role)
        if not section.addons:  # for the role of its own node pools, EKS creates the entry
            self._access("NodeAccess", node_role.role_arn, "AmazonEKSAutoNodePolicy", kind="EC2")
        for index, arn in enumerate(section.admins):
            self._access(f"Admin{index}", arn, "AmazonEKSClusterAdminPolicy", kind="STANDARD")
        pod_role = self._pod_role(storage)
        eks.CfnPodIdentityAssociation(
            self,
            "PodIdentity",
            cluster_name=self._cluster.ref,
            namespace=config.kubernetes.namespace,
            service_account=config.kubernetes.service_account,
            role_arn=pod_role.role_arn,
        )
        for name in section.addons:
            eks.CfnAddon(self, f"Addon{name.title().replace('-', '')}", addon_name=name, cluster_name=self._cluster.ref)
        CfnOutput(self, "ClusterName", value=self._cluster.ref)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _create_cluster(self, network: NetworkStack, storage: StorageStack, node_role: iam.Role) -> eks.CfnCluster:
        cluster = eks.CfnCluster
        section = self._section
        # The node pool in the manifests has a taint, so the pods of add-ons need EKS's own node pools.
        pools = ["general-purpose", "system"] if section.addons else []
        role = iam.Role(self, "ClusterRole", assumed_by=_sessions_of("eks.amazonaws.com"))
        self._add_policies(role, CLUSTER_POLICIES)
        self._permit_tags(role)
        # The boundary of the other roles denies what Karpenter needs, such as instance profiles.
        iam.PermissionsBoundary.of(role).clear()
        types = [cluster.LoggingTypeConfigProperty(type=name) for name in LOGS]
        created = cluster(
            self,
            "Cluster",
            name=cluster_name(self._config.name),
            version=section.version,
            role_arn=role.role_arn,
            access_config=cluster.AccessConfigProperty(
                authentication_mode="API", bootstrap_cluster_creator_admin_permissions=False
            ),
            compute_config=cluster.ComputeConfigProperty(
                enabled=True, node_pools=pools, node_role_arn=node_role.role_arn if pools else None
            ),
            kubernetes_network_config=cluster.KubernetesNetworkConfigProperty(
                elastic_load_balancing=cluster.ElasticLoadBalancingProperty(enabled=True)
            ),
            storage_config=cluster.StorageConfigProperty(block_storage=cluster.BlockStorageProperty(enabled=True)),
            bootstrap_self_managed_addons=False,
            encryption_config=[
                cluster.EncryptionConfigProperty(
                    provider=cluster.ProviderProperty(key_arn=storage.key.key_arn), resources=["secrets"]
                )
            ],
            logging=cluster.LoggingProperty(cluster_logging=cluster.ClusterLoggingProperty(enabled_types=types)),
            resources_vpc_config=cluster.ResourcesVpcConfigProperty(
                subnet_ids=network.subnet_ids,
                endpoint_private_access=True,
                endpoint_public_access=bool(section.public_access_cidrs),
                public_access_cidrs=section.public_access_cidrs or None,
            ),
        )
        if section.public_access_cidrs:
            suppress(created, "AwsSolutions-EKS1", "The API is accessible only from the ranges in the deployment file")
        return created

    def _permit_tags(self, role: iam.Role) -> None:
        """Permit the tags of the node class, which EKS's policies do not permit.

        Source (2026-11): https://docs.aws.amazon.com/eks/latest/userguide/auto-cluster-iam-role.html
        """
        own = {"aws:RequestTag/eks:eks-cluster-name": "${aws:PrincipalTag/eks:eks-cluster-name}"}
        for sid, actions, tags in (
            (
                "TagNodes",
                ["ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateLaunchTemplate"],
                ["kubernetes-node-class-name", "kubernetes-node-pool-name"],
            ),
            ("TagNetworkInterfaces", ["ec2:CreateNetworkInterface"], ["kubernetes-cni-node-name"]),
        ):
            present = {f"aws:RequestTag/eks:{tag}": "*" for tag in tags}
            conditions = {"StringEquals": own, "StringLike": present}
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=actions, resources=["*"], conditions=conditions))
        policy = role.node.find_child("DefaultPolicy")
        reason = "EKS names the resources; the conditions limit the grant to requests with the tags of this cluster"
        suppress(policy, "AwsSolutions-IAM5", reason)
        suppress(policy, "CKV_AWS_111", reason)

    def _node_role(self) -> iam.Role:
        role = iam.Role(
            self,
            "NodeRole",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            role_name=node_role_name(self._config.name, self._config.region),
        )
        self._add_policies(role, NODE_POLICIES)
        return role

    def _pod_role(self, storage: StorageStack) -> iam.Role:
        """Create the role of the pods, with access to the run's objects in the buckets of the kubernetes section."""
        section = self._kubernetes
        role = iam.Role(self, "PodRole", assumed_by=_sessions_of("pods.eks.amazonaws.com"))
        data, control = section.dataset_bucket or section.bucket, section.control_bucket or section.bucket
        arn = f"arn:{self.partition}:s3:::"
        buckets = list(dict.fromkeys([section.bucket, data, control]))
        for sid, actions, resources in (
            ("ListBuckets", ("s3:ListBucket",), [f"{arn}{bucket}" for bucket in buckets]),
            ("ReadObjects", READ, [f"{arn}{bucket}/*" for bucket in buckets]),
            ("WriteRecords", WRITE, [f"{arn}{bucket}/{each}/*" for bucket in buckets for each in ("runs", "nodes")]),
            ("PrepareDatasets", WRITE, [f"{arn}{data}/datasets/prepared/*"]),
        ):
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=list(actions), resources=resources))
        role.add_to_policy(use_key_through_s3(self, storage.key))
        suppress(
            role.node.find_child("DefaultPolicy"),
            "AwsSolutions-IAM5",
            "The names of objects are not known in advance; the grants cover the buckets of the kubernetes section",
            applies_to=[rf"Resource::arn:.*:s3:::{bucket}/.*\*" for bucket in buckets],
        )
        return role

    def _add_policies(self, role: iam.Role, names: tuple[str, ...]) -> None:
        for name in names:
            role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(name))
        reason = "EKS Auto Mode requires these policies, which AWS extends together with the service"
        suppress(role, "AwsSolutions-IAM4", reason)

    def _access(self, id_: str, principal_arn: str, policy: str, *, kind: str) -> None:
        """Let a principal use the Kubernetes API with one of EKS's access policies."""
        entry = eks.CfnAccessEntry
        entry(
            self,
            id_,
            cluster_name=self._cluster.ref,
            principal_arn=principal_arn,
            type=kind,
            access_policies=[
                entry.AccessPolicyProperty(
                    policy_arn=f"arn:{self.partition}:eks::aws:cluster-access-policy/{policy}",
                    access_scope=entry.AccessScopeProperty(type="cluster"),
                )
            ],
        )


def _sessions_of(service: str) -> iam.IPrincipal:
    """Return a service that assumes a role with session tags, as EKS does."""
    return iam.SessionTagsPrincipal(iam.ServicePrincipal(service))
