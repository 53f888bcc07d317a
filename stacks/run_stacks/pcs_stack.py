"""PcsStack: a Slurm cluster of AWS Parallel Computing Service (PCS) that runs the job script of `engine: pcs`.

Source (2026-11): https://docs.aws.amazon.com/pcs/latest/userguide/getting-started.html
"""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_pcs as pcs
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.config.clusters import cluster_name
from stacks.config.clusters.pcs import LOGIN, NODES
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.nodes.cluster_nodes import ClusterNodeRole, mount_script, user_data
from stacks.constructs.nodes.launch_template import NodeLaunchTemplate, TemplateVariant
from stacks.constructs.nodes.placement_group import placement_group
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from stacks.validators.pcs import MARKETS


class PcsStack(Stack):
    """The cluster, its queue, and the groups of compute nodes and login nodes.

    All nodes run in the zone of the shared file system. The stack can be recreated at any time, because the file system
    holds the jobs' records and checkpoints.
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
        section, slurm, lustre = config.pcs, config.slurm, config.storage.lustre
        assert section is not None and slurm is not None, "stacks.validators.pcs.has_section"
        assert lustre is not None and storage.lustre is not None, "stacks.validators.pcs.directory"
        self._config, self._section, self._network, self._storage = config, section, network, storage
        self._subnet_id = network.subnet_of(lustre.zone)
        self._role = ClusterNodeRole(self, "NodeRole", config=config)
        self._user_data = user_data(mount_script(storage.lustre, slurm.directory))
        settings = pcs.CfnCluster.SlurmConfigurationProperty
        accounting = pcs.CfnCluster.AccountingProperty(mode="STANDARD")
        self._cluster = pcs.CfnCluster(
            self,
            "Cluster",
            name=cluster_name(config.name),
            size=section.size,
            scheduler=pcs.CfnCluster.SchedulerProperty(type="SLURM", version=section.slurm_version),
            networking=pcs.CfnCluster.NetworkingProperty(
                subnet_ids=[self._subnet_id], security_group_ids=[network.nodes.ref]
            ),
            slurm_configuration=settings(
                scale_down_idle_time_in_seconds=section.idle_minutes * 60,
                accounting=accounting if section.accounting else None,
            ),
        )
        groups = self._compute_nodes()
        pcs.CfnQueue(
            self,
            "Queue",
            cluster_id=self._cluster.attr_id,
            name=slurm.partition,
            compute_node_group_configurations=[
                pcs.CfnQueue.ComputeNodeGroupConfigurationProperty(compute_node_group_id=group.attr_id)
                for group in groups
            ],
        )
        self._login_node()
        CfnOutput(self, "ClusterId", value=self._cluster.attr_id)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _compute_nodes(self) -> list[pcs.CfnComputeNodeGroup]:
        """Create one group for each layout of network interfaces."""
        config, section = self._config, self._section
        template = self._template("NodeTemplate", config, placement_group(self, config), label="node")
        spot = pcs.CfnComputeNodeGroup.SpotOptionsProperty(allocation_strategy=config.capacity.allocation_strategy)
        return [
            self._group(
                "Nodes" if index == 0 else f"Nodes{index}",
                NODES if index == 0 else f"{NODES}-{index}",
                variant,
                minimum=section.always_on if index == 0 else 0,
                maximum=config.capacity.nodes,
                purchase_option=MARKETS[config.capacity.market],
                spot_options=spot if config.capacity.market == "spot" and config.capacity.allocation_strategy else None,
            )
            for index, variant in enumerate(template.variants)
        ]

    def _login_node(self) -> None:
        name = self._section.login_instance_type
        if name is None:
            return
        plain = {"instance_types": [name], "nodes": 1, "market": "on_demand", "placement": "none"}
        capacity = self._config.capacity.model_copy(update=plain)
        config = self._config.model_copy(update={"capacity": capacity})
        (variant,) = self._template("LoginTemplate", config, None, label=LOGIN).variants
        group = self._group("Login", LOGIN, variant, minimum=1, maximum=1, purchase_option="ONDEMAND")
        CfnOutput(self, "LoginGroupId", value=group.attr_id)

    def _template(
        self, id_: str, config: DeploymentConfig, group: ec2.CfnPlacementGroup | None, *, label: str
    ) -> NodeLaunchTemplate:
        return NodeLaunchTemplate(
            self,
            id_,
            config=config,
            document=self._user_data,
            role=None,
            security_group_id=self._network.nodes.ref,
            key=self._storage.key,
            group=group,
            label=label,
        )

    def _group(
        self,
        id_: str,
        name: str,
        variant: TemplateVariant,
        *,
        minimum: int,
        maximum: int,
        **options: Any,
    ) -> pcs.CfnComputeNodeGroup:
        group = pcs.CfnComputeNodeGroup(
            self,
            id_,
            cluster_id=self._cluster.attr_id,
            name=name,
            subnet_ids=[self._subnet_id],
            iam_instance_profile_arn=self._role.profile.attr_arn,
            custom_launch_template=pcs.CfnComputeNodeGroup.CustomLaunchTemplateProperty(
                template_id=variant.template.ref, version=variant.template.attr_latest_version_number
            ),
            instance_configs=[
                pcs.CfnComputeNodeGroup.InstanceConfigProperty(instance_type=each) for each in variant.instance_types
            ],
            scaling_configuration=pcs.CfnComputeNodeGroup.ScalingConfigurationProperty(
                min_instance_count=minimum, max_instance_count=maximum
            ),
            **options,
        )
        group.add_resource_dependency(self._role.policy)  # until the nodes have terminated, they need their permissions
        return group
