"""TrainingStack: what trains. Everything here can be made anew; everything with memory is in StorageStack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, RemovalPolicy, Stack, Tags
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from bootstrap.documents import Bundle, NodeDocument, Prepare, PythonEnvironment, RunDocument, SuperviseTimings
from stacks.bundles import BundleFile, code_bundle, function_bundle, node_bundle
from stacks.capacity_plan import fabric, one_zone_at_a_time, zone_candidates
from stacks.config import DeploymentConfig
from stacks.constructs.fleets import Fleet, FleetParts, make_fleet
from stacks.constructs.node_role import NodeRole
from stacks.constructs.node_template import NodeTemplate
from stacks.constructs.placement import placement_group
from stacks.constructs.reservation import reservation_target
from stacks.constructs.run_controller import RunController
from stacks.errors import ConfigError, Problem
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from stacks.validators.run import gpus, processes_per_node
from stacks.wheelhouse import archive_of

# Source (2026-11):
# https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
STANDARD_PARAMETER_BYTES = 4096
ADVANCED_PARAMETER_BYTES = 8192
TOKEN_MARGIN_BYTES = 512  # what tokens in the document may still grow by


def parameter_tier(document: str, source: str) -> str:
    """Return the tier of SSM parameter that holds a document.

    Raises:
        ConfigError: No tier does.
    """
    size_bytes = len(document.encode()) + TOKEN_MARGIN_BYTES
    if size_bytes > ADVANCED_PARAMETER_BYTES:
        rule = f"the run document must fit into an SSM parameter of {ADVANCED_PARAMETER_BYTES} bytes"
        problem = Problem("training.config", f"about {size_bytes} bytes", rule, "shorten its texts")
        raise ConfigError(source, [problem])
    return "Advanced" if size_bytes > STANDARD_PARAMETER_BYTES else "Standard"


class TrainingStack(Stack):
    """Fleet, node role, launch template, the two documents, the run controller."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        network: NetworkStack,
        storage: StorageStack,
        bundle_directory: Path,
        wheelhouse_directory: Path,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self._config = config
        user_code = None if config.training.code is None else Path(config.training.code)
        log_group = logs.CfnLogGroup(
            self,
            "Events",
            log_group_name=config.log_group,
            retention_in_days=config.observability.log_retention_days,
        )
        log_group.apply_removal_policy(RemovalPolicy.DESTROY)
        role = NodeRole(
            self,
            "NodeRole",
            config=config,
            datasets=storage.datasets,
            checkpoints=storage.checkpoints,
            key=storage.key,
            volume_ids=storage.volume_ids,
            copied_volume_id=storage.copied_volume_id,
        )
        wheelhouse = self._wheelhouse(wheelhouse_directory)
        document = self._node_document(storage, self._bundle("NodeBundle", node_bundle(bundle_directory, wheelhouse)))
        subnet_ids = self._candidate_subnet_ids(network)
        fleet = self._fleet(network, storage, role, document, subnet_ids)
        # A delete waits for the nodes to leave, and they need their rights and their log group until then.
        fleet.resource.add_resource_dependency(role.policy)
        fleet.resource.add_resource_dependency(log_group)
        controller = RunController(
            self,
            "RunController",
            config=config,
            code=function_bundle("run_controller", bundle_directory),
            checkpoints=storage.checkpoints,
            key=storage.key,
            fleet=fleet,
            subnet_ids=subnet_ids,
        )
        run = self._run_parameter(self._bundle("CodeBundle", code_bundle(bundle_directory, user_code)))
        # The run starts when its document appears: all that acts on it must be there before.
        run.node.add_dependency(fleet, controller, role, log_group)
        self._outputs(fleet)
        Tags.of(self).add("trainstack:deployment", config.name)

    def _candidate_subnet_ids(self, network: NetworkStack) -> list[str]:
        """Return the subnets that the fleet may use, in the order in which they are tried."""
        zones = dict(zip(self._config.network.subnet_zones, network.subnet_ids, strict=True))
        return [zones[letter] for letter in zone_candidates(self._config)]

    def _fleet(
        self,
        network: NetworkStack,
        storage: StorageStack,
        role: NodeRole,
        document: NodeDocument,
        subnet_ids: list[str],
    ) -> Fleet:
        config = self._config
        group = placement_group(self, config)
        reservation = reservation_target(self, config, group)
        template = NodeTemplate(
            self,
            "NodeTemplate",
            config=config,
            document=document,
            role=role,
            security_group_id=network.nodes.ref,
            key=storage.key,
            group=group,
            reservation=reservation,
            volumes=storage.block_devices,
        )
        parts = FleetParts(
            config=config,
            variants=template.variants,
            # One zone at a time: the run controller moves on to the next subnet between attempts.
            subnet_ids=subnet_ids[:1] if one_zone_at_a_time(config) else subnet_ids,
            candidate_subnet_ids=subnet_ids,
            reservation=reservation,
            node_role_arn=role.role.role_arn,
        )
        return make_fleet(self, "Fleet", parts)

    def _bundle(self, id_: str, bundle: BundleFile) -> Bundle:
        """Publish a bundle as a file asset; return where nodes find it."""
        asset = s3_assets.Asset(self, id_, path=str(bundle.path))
        return Bundle(bucket=asset.s3_bucket_name, key=asset.s3_object_key, sha256=bundle.sha256)

    def _wheelhouse(self, directory: Path) -> dict[str, str] | None:
        """Publish the locked wheelhouse as a file asset; return where nodes find it in the bucket of their bundle.

        Raises:
            ConfigError: It was not built on this machine.
        """
        sha256 = self._config.node.python.wheelhouse
        if sha256 in ("auto", "off"):  # auto still: nothing is locked
            return None
        path = archive_of(sha256, self._config.name, directory)
        asset = s3_assets.Asset(self, "Wheelhouse", path=str(path))
        return {"key": asset.s3_object_key, "sha256": sha256}

    def _node_document(self, storage: StorageStack, bundle: Bundle) -> NodeDocument:
        node = self._config.node
        return NodeDocument(
            schema_version=1,
            deployment=self._config.name,
            region=self._config.region,
            dataset_bucket=storage.datasets.bucket_name,
            checkpoint_bucket=storage.checkpoints.bucket_name,
            run_parameter=self._config.run_parameter,
            log_group=self._config.log_group,
            bundle=bundle,
            gpus=gpus(self._config),
            fabric=fabric(self._config),
            python=PythonEnvironment(interpreter=node.python.interpreter, packages=tuple(node.python.packages)),
            supervise=SuperviseTimings(
                poll_seconds=node.supervise.poll_seconds,
                heartbeat_seconds=node.supervise.heartbeat_seconds,
                heartbeat_timeout_seconds=node.supervise.heartbeat_timeout_seconds,
                gang_timeout_seconds=self._config.capacity.gang_timeout_seconds,
                boot_timeout_seconds=node.boot_timeout_seconds,
            ),
            volumes=tuple(storage.volumes),
            lustre=storage.lustre,
        )

    def _run_parameter(self, code: Bundle) -> ssm.CfnParameter:
        config, prepare = self._config, self._config.training.prepare
        document = RunDocument(
            schema_version=1,
            deployment=config.name,
            run=config.training.run,
            nodes=config.capacity.nodes,
            min_nodes=config.capacity.min_nodes or config.capacity.nodes,
            processes_per_node=processes_per_node(config),
            code=code,
            dataset=config.training.dataset,
            training=config.training.config.model_dump(mode="json"),
            prepare=None if prepare is None else Prepare(**prepare.model_dump(mode="json")),
        )
        content = document.to_json()
        return ssm.CfnParameter(
            self,
            "Run",
            name=config.run_parameter,
            type="String",
            tier=parameter_tier(json.dumps(content), config.name),
            description="What is trained (run document)",
            value=self.to_json_string(content),
        )

    def _outputs(self, fleet: Fleet) -> None:
        outputs = {
            "FleetId": fleet.fleet_id,
            "LogGroup": self._config.log_group,
            "RunParameter": self._config.run_parameter,
        }
        for name, value in outputs.items():
            CfnOutput(self, name, value=value)
