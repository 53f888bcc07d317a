"""The nodes' launch templates: image, volumes, metadata service, network and user data.

There is one template per network interface layout, because types with different network cards cannot share a template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws_cdk import CfnTag, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from bootstrap.documents import NodeDocument
from stacks.capacity.efa_layouts import Layout
from stacks.capacity.plan import layouts
from stacks.config import AMI_ID, DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.nodes.capacity_reservation import MARKET_TYPES, ReservationTarget, all_reserved
from stacks.constructs.nodes.node_role import NodeRole

SHIM = Path(__file__).resolve().with_name("shim.sh")


@dataclass(frozen=True)
class TemplateVariant:
    """A launch template and the instance types that use it."""

    template: ec2.CfnLaunchTemplate
    instance_types: tuple[str, ...]


class NodeLaunchTemplate(Construct):
    """The launch templates. Changing them replaces nodes.

    Args:
        document: The node document, or user data for nodes that do not run the node program.
        role: The role of the nodes; None: the service that launches them passes it.
        label: End of the instances' names.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        document: NodeDocument | str,
        role: NodeRole | None,
        security_group_id: str,
        key: kms.IKey,
        group: ec2.CfnPlacementGroup | None = None,
        reservation: ReservationTarget | None = None,
        volumes: Sequence[ec2.CfnLaunchTemplate.BlockDeviceMappingProperty] = (),
        label: str = "node",
    ) -> None:
        super().__init__(scope, id_)
        self._config, self._label = config, label
        self._key = key
        self._group = group
        self._reservation = reservation
        self._security_group_id = security_group_id
        tags = [CfnTag(key=name, value=value) for name, value in sorted(self._tags().items())]
        image = self._image()
        user_data = Fn.base64(document if isinstance(document, str) else self._user_data(document))
        profile = ec2.CfnLaunchTemplate.IamInstanceProfileProperty
        self.variants: list[TemplateVariant] = []
        for index, (layout, names) in enumerate(layouts(config).items()):
            data = ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                image_id=image,
                instance_type=names[0] if config.capacity.market in MARKET_TYPES else None,
                iam_instance_profile=None if role is None else profile(arn=role.profile.attr_arn),
                block_device_mappings=[self._root_volume(), *volumes],
                instance_initiated_shutdown_behavior="terminate",
                metadata_options=ec2.CfnLaunchTemplate.MetadataOptionsProperty(
                    http_tokens="required",
                    http_endpoint="enabled",
                    http_put_response_hop_limit=1,
                    instance_metadata_tags="enabled",
                ),
                monitoring=ec2.CfnLaunchTemplate.MonitoringProperty(enabled=True),
                network_interfaces=self._interfaces(layout),
                placement=self._placement(),
                instance_market_options=self._market(),
                capacity_reservation_specification=self._reserved(),
                tag_specifications=[
                    ec2.CfnLaunchTemplate.TagSpecificationProperty(resource_type=kind, tags=tags)
                    for kind in ("instance", "volume")
                ],
                user_data=user_data,
            )
            name = "Default" if index == 0 else f"Layout{index}"
            template = ec2.CfnLaunchTemplate(self, name, launch_template_data=data)
            self.variants.append(TemplateVariant(template, tuple(names)))

    def _root_volume(self) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
        root = self._config.node.root_volume
        ebs = ec2.CfnLaunchTemplate.EbsProperty(
            volume_type="gp3",
            volume_size=root.gib,
            iops=root.iops,
            throughput=root.throughput,
            encrypted=True,
            kms_key_id=self._key.key_arn,
            delete_on_termination=True,
        )
        return ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(device_name=self._config.node.root_device, ebs=ebs)

    def _interfaces(self, layout: Layout) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
        """Return the network interfaces. If there are several, EC2 rejects any setting for public addresses."""
        return [
            ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
                network_card_index=one.card,
                device_index=one.device,
                interface_type=one.kind,
                groups=[self._security_group_id],
                associate_public_ip_address=False if len(layout) == 1 else None,
                delete_on_termination=True,
            )
            for one in layout
        ]

    def _placement(self) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
        return None if self._group is None else ec2.CfnLaunchTemplate.PlacementProperty(group_name=self._group.ref)

    def _market(self) -> ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty | None:
        """Return the market options if the template specifies the market. For spot, the fleet specifies it instead."""
        kind = MARKET_TYPES.get(self._config.capacity.market)
        return None if kind is None else ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(market_type=kind)

    def _reserved(self) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
        if self._reservation is None or not all_reserved(self._config):
            return None
        return self._reservation.for_launch_template()

    def _tags(self) -> dict[str, str]:
        return {**self._config.tags, "Name": f"{self._config.name}-{self._label}", DEPLOYMENT_TAG: self._config.name}

    def _image(self) -> str:
        ami = self._config.node.ami
        if AMI_ID.match(ami):
            return ami
        return ssm.StringParameter.value_for_typed_string_parameter_v2(
            self, ami, ssm.ParameterValueType.AWS_EC2_IMAGE_ID
        )

    def _user_data(self, document: NodeDocument) -> str:
        """Return the shim with its values filled in and its comment lines removed, followed by the node document."""
        values: dict[str, Any] = {
            "REGION": self._config.region,
            "LOGS": document.control_bucket,
            "ROLE": document.role_id,
            "BUCKET": document.bundle.bucket,
            "KEY": document.bundle.key,
            "SHA256": document.bundle.sha256,
            "PYTHON": document.python.interpreter,
        }
        lines = SHIM.read_text(encoding="utf-8").splitlines(keepends=True)
        script = "".join(line for line in lines if not line.startswith("# "))
        for name, value in values.items():
            script = script.replace(f"@{name}@", value)
        return script + Stack.of(self).to_json_string(document.to_json()) + "\n"
