"""HyperPodStack: a SageMaker HyperPod cluster that runs the jobs or the pods of `engine: hyperpod`.

Source (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sagemaker-cluster.html
"""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from bootstrap.slurm.hyperpod.settings import COMPUTE
from stacks.artifacts.lifecycle import PREFIX, REPORTS, lifecycle_folder, script_name
from stacks.config import DeploymentConfig
from stacks.config.clusters import cluster_name
from stacks.config.clusters.hyperpod import CONTROLLER, LOGIN
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.nodes.hyperpod_role import HyperPodRole
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack

Group = sagemaker.CfnCluster.ClusterInstanceGroupProperty


class HyperPodStack(Stack):
    """The cluster with its instance groups, and their role.

    With Slurm, HyperPod sets up the scheduler and mounts the file system, and the life-cycle script then checks the
    node. With EKS, the nodes join the existing cluster.
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
        section = config.hyperpod
        assert section is not None, "stacks.validators.hyperpod.has_section"
        self._config, self._section, self._storage = config, section, storage
        self._folder = lifecycle_folder(config)
        self._role = HyperPodRole(
            self, "NodeRole", config=config, control=storage.control, key=storage.key, scripts=PREFIX, reports=REPORTS
        )
        cluster = sagemaker.CfnCluster(
            self,
            "Cluster",
            cluster_name=cluster_name(config.name),
            instance_groups=list(self._groups()),
            node_recovery="Automatic" if section.node_recovery else "None",
            orchestrator=self._orchestrator(),
            vpc_config=sagemaker.CfnCluster.VpcConfigProperty(
                security_group_ids=[network.nodes.ref, *section.security_group_ids], subnets=self._subnets(network)
            ),
        )
        cluster.add_resource_dependency(self._role.policy)  # until the nodes have terminated, they need it
        CfnOutput(self, "ClusterArn", value=cluster.attr_cluster_arn)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _subnets(self, network: NetworkStack) -> list[str]:
        """Return the subnet in the file system's zone, or the first one."""
        lustre = self._config.storage.lustre
        return [network.subnet_ids[0] if lustre is None else network.subnet_of(lustre.zone)]

    def _orchestrator(self) -> sagemaker.CfnCluster.OrchestratorProperty:
        properties = sagemaker.CfnCluster
        if self._section.eks_cluster_arn is not None:
            eks = properties.ClusterOrchestratorEksConfigProperty(cluster_arn=self._section.eks_cluster_arn)
            return properties.OrchestratorProperty(eks=eks)
        # HyperPod derives the partitions from the instance groups.
        slurm = properties.ClusterOrchestratorSlurmConfigProperty(slurm_config_strategy="Managed")
        return properties.OrchestratorProperty(slurm=slurm)

    def _groups(self) -> list[Group]:
        section, config = self._section, self._config
        spot = config.capacity.market == "spot"
        capacity = sagemaker.CfnCluster.ClusterCapacityRequirementsProperty(spot={} if spot else None)
        groups = [
            self._group(
                COMPUTE,
                f"ml.{config.capacity.instance_types[0]}",
                config.capacity.nodes,
                "Compute",
                threads_per_core=section.threads_per_core,
                capacity_requirements=capacity if spot else None,
                training_plan_arn=section.training_plan_arn,
                on_start_deep_health_checks=list(section.deep_health_checks) or None,
            )
        ]
        if section.orchestrator == "slurm":
            groups.append(self._group(CONTROLLER, section.controller_instance_type, 1, "Controller"))
            if section.login_instance_type is not None:
                groups.append(self._group(LOGIN, section.login_instance_type, 1, "Login"))
        return groups

    def _group(self, name: str, instance_type: str, count: int, node_type: str, **options: Any) -> Group:
        slurm = self._config.slurm if self._config.runs_slurm_jobs else None
        uri = f"s3://{self._storage.control.bucket_name}/{self._folder.prefix}"
        script = script_name(name)
        lifecycle = sagemaker.CfnCluster.ClusterLifeCycleConfigProperty
        partitions = [slurm.partition] if slurm is not None and slurm.partition and node_type == "Compute" else None
        return Group(
            instance_group_name=name,
            instance_type=instance_type,
            instance_count=count,
            execution_role=self._role.role.role_arn,
            life_cycle_config=(
                lifecycle(source_s3_uri=uri, on_create=script)
                if slurm is None
                else lifecycle(source_s3_uri=uri, on_init_complete=script)
            ),
            slurm_config=(
                None
                if slurm is None
                else sagemaker.CfnCluster.ClusterSlurmConfigProperty(node_type=node_type, partition_names=partitions)
            ),
            instance_storage_configs=self._storages(),
            **options,
        )

    def _storages(self) -> list[sagemaker.CfnCluster.ClusterInstanceStorageConfigProperty]:
        """Return the encrypted volumes and, with Slurm, the shared file system of an instance group."""
        properties = sagemaker.CfnCluster
        key = self._storage.key.key_arn
        volumes = [
            properties.ClusterEbsVolumeConfigProperty(root_volume=True, volume_kms_key_id=key),
            properties.ClusterEbsVolumeConfigProperty(
                volume_size_in_gb=self._section.volume_gib, volume_kms_key_id=key
            ),
        ]
        found = [properties.ClusterInstanceStorageConfigProperty(ebs_volume_config=volume) for volume in volumes]
        lustre = self._storage.lustre
        if lustre is not None and self._config.runs_slurm_jobs:
            mounted = properties.ClusterFsxLustreConfigProperty(
                dns_name=lustre.dns_name, mount_name=lustre.mount_name, mount_path=lustre.mount
            )
            found.append(properties.ClusterInstanceStorageConfigProperty(fsx_lustre_config=mounted))
        return found
