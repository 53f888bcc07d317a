"""The launch template of the nodes: image, volume, metadata service, network, and the user data that starts it all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnTag, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from bootstrap.documents import NodeDocument
from stacks.config import AMI_ID, DeploymentConfig
from stacks.constructs.node_role import NodeRole

SHIM = Path(__file__).resolve().parent.parent / "shim.sh"


class NodeTemplate(Construct):
    """Launch template; an edit of anything in it replaces nodes."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        document: NodeDocument,
        role: NodeRole,
        security_group_id: str,
        key: kms.IKey,
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        root = config.node.root_volume
        ebs = ec2.CfnLaunchTemplate.EbsProperty(
            volume_type="gp3",
            volume_size=root.gib,
            iops=root.iops,
            throughput=root.throughput,
            encrypted=True,
            kms_key_id=key.key_arn,
            delete_on_termination=True,
        )
        tags = [CfnTag(key=name, value=value) for name, value in sorted(self._tags().items())]
        self.template = ec2.CfnLaunchTemplate(
            self,
            "Default",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                image_id=self._image(),
                iam_instance_profile=ec2.CfnLaunchTemplate.IamInstanceProfileProperty(arn=role.profile.attr_arn),
                block_device_mappings=[
                    ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(device_name=config.node.root_device, ebs=ebs)
                ],
                instance_initiated_shutdown_behavior="terminate",
                metadata_options=ec2.CfnLaunchTemplate.MetadataOptionsProperty(
                    http_tokens="required",
                    http_endpoint="enabled",
                    http_put_response_hop_limit=1,
                    instance_metadata_tags="enabled",
                ),
                monitoring=ec2.CfnLaunchTemplate.MonitoringProperty(enabled=True),
                security_group_ids=[security_group_id],
                tag_specifications=[
                    ec2.CfnLaunchTemplate.TagSpecificationProperty(resource_type=kind, tags=tags)
                    for kind in ("instance", "volume")
                ],
                user_data=Fn.base64(self._user_data(document)),
            ),
        )

    def _tags(self) -> dict[str, str]:
        return {**self._config.tags, "Name": f"{self._config.name}-node", "trainstack:deployment": self._config.name}

    def _image(self) -> str:
        ami = self._config.node.ami
        if AMI_ID.match(ami):
            return ami
        return ssm.StringParameter.value_for_typed_string_parameter_v2(
            self, ami, ssm.ParameterValueType.AWS_EC2_IMAGE_ID
        )

    def _user_data(self, document: NodeDocument) -> str:
        """Return the shim with its values and without its comments, and the node document after its last line."""
        values: dict[str, Any] = {
            "REGION": self._config.region,
            "LOGS": document.checkpoint_bucket,
            "BUNDLE": f"{document.bundle.bucket}/{document.bundle.key}",
            "SHA256": document.bundle.sha256,
            "PYTHON": document.python.interpreter,
        }
        lines = SHIM.read_text(encoding="utf-8").splitlines(keepends=True)
        script = "".join(line for line in lines if not line.startswith("# "))
        for name, value in values.items():
            script = script.replace(f"@{name}@", value)
        return script + Stack.of(self).to_json_string(document.to_json()) + "\n"
