"""An FSx for Lustre file system with its security group, data repository association and node document entry."""

from __future__ import annotations

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from bootstrap.documents import Lustre
from stacks.config.storage import LustreConfig

# The ports that Lustre uses for traffic between clients and servers, and between servers.
# Source: https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html (2026-11).
PORTS = ((988, 988), (1018, 1023))
DATASETS = "datasets"
"""The dataset bucket folder that the file system imports under the same name."""
_DEFAULT_THROUGHPUT = 250


class LustreFileSystem(Construct):
    """The file system with its security group and data repository association."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: LustreConfig,
        vpc_id: str,
        subnet_id: str,
        nodes_group_id: str,
        key: kms.Key,
        datasets: s3.IBucket,
        removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        group = ec2.CfnSecurityGroup(
            self, "Group", group_description="Lustre servers: the ports of Lustre to nodes and servers", vpc_id=vpc_id
        )
        rules = self._rules(group.ref, nodes_group_id)
        persistent = config.deployment_type == "PERSISTENT_2"
        self.resource = fsx.CfnFileSystem(
            self,
            "Default",
            file_system_type="LUSTRE",
            file_system_type_version=config.version,
            storage_capacity=config.capacity_gib,
            storage_type="SSD",
            subnet_ids=[subnet_id],
            security_group_ids=[group.ref],
            # Scratch file systems always use an FSx-owned key.
            # Source: https://docs.aws.amazon.com/fsx/latest/LustreGuide/encryption-at-rest.html (2026-11).
            kms_key_id=key.key_arn if persistent else None,
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type=config.deployment_type,
                per_unit_storage_throughput=self._throughput(),
                data_compression_type=config.compression,
            ),
        )
        self.resource.apply_removal_policy(removal)
        for rule in rules:  # FSx checks the rules and rejects a security group that does not allow Lustre traffic
            self.resource.add_resource_dependency(rule)
        if config.import_datasets:
            self._import(datasets, key, removal)

    @property
    def document(self) -> Lustre:
        """The file system's entry in the node document."""
        return Lustre(
            dns_name=self.resource.attr_dns_name,
            mount_name=self.resource.attr_lustre_mount_name,
            mount=self._config.mount,
            options=self._config.mount_options,
            stripe_count=self._config.stripe_count,
        )

    def _throughput(self) -> int | None:
        if self._config.deployment_type != "PERSISTENT_2":
            return None
        return self._config.throughput_mib_per_second_per_tib or _DEFAULT_THROUGHPUT

    def _rules(self, servers: str, nodes: str) -> list[ec2.CfnSecurityGroupIngress | ec2.CfnSecurityGroupEgress]:
        """Open Lustre's ports between servers, and between nodes and servers in both directions (servers call back)."""
        made: list[ec2.CfnSecurityGroupIngress | ec2.CfnSecurityGroupEgress] = []
        directions = (
            ("ServersServers", servers, servers),
            ("NodesServers", nodes, servers),
            ("ServersNodes", servers, nodes),
        )
        for name, source, target in directions:
            for first, last in PORTS:
                out = ec2.CfnSecurityGroupEgress(
                    self,
                    f"{name}Out{first}",
                    group_id=source,
                    destination_security_group_id=target,
                    ip_protocol="tcp",
                    from_port=first,
                    to_port=last,
                    description="Lustre",
                )
                into = ec2.CfnSecurityGroupIngress(
                    self,
                    f"{name}In{first}",
                    group_id=target,
                    source_security_group_id=source,
                    ip_protocol="tcp",
                    from_port=first,
                    to_port=last,
                    description="Lustre",
                )
                made += [out, into]
        return made

    def _import(self, datasets: s3.IBucket, key: kms.Key, removal: RemovalPolicy) -> None:
        """Import the bucket's datasets into the file system, and let the FSx service role use the key.

        Source: https://docs.aws.amazon.com/fsx/latest/LustreGuide/s3-server-side-encryption-support.html (2026-11).
        """
        stack = Stack.of(self)
        role = (
            f"arn:{stack.partition}:iam::{stack.account}:role/aws-service-role/"
            "s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
        )
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="LustreReadsDatasets",
                principals=[iam.AnyPrincipal()],  # limited by a condition because the association creates the role
                actions=["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"],
                resources=["*"],
                conditions={
                    "StringEquals": {
                        "kms:CallerAccount": stack.account,
                        "kms:ViaService": f"s3.{stack.region}.amazonaws.com",
                    },
                    "ArnLike": {"aws:PrincipalArn": role},
                },
            )
        )
        association = fsx.CfnDataRepositoryAssociation(
            self,
            "Datasets",
            file_system_id=self.resource.ref,
            file_system_path=f"/{DATASETS}",
            data_repository_path=f"s3://{datasets.bucket_name}/{DATASETS}/",
            batch_import_meta_data_on_create=True,
            s3=fsx.CfnDataRepositoryAssociation.S3Property(
                auto_import_policy=fsx.CfnDataRepositoryAssociation.AutoImportPolicyProperty(
                    events=["NEW", "CHANGED", "DELETED"]
                )
            ),
        )
        association.apply_removal_policy(removal)
