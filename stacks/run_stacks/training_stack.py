"""TrainingStack: the fleet and the run controller.

The stack can be recreated at any time, because StorageStack holds all persistent data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, RemovalPolicy, Stack, Tags
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from bootstrap.documents import Bundle, NodeDocument
from stacks.artifacts.bundles import BundleFile, code_bundle, function_bundle, node_bundle
from stacks.artifacts.documents import check_parameter_size, node_document, run_document
from stacks.artifacts.review_code import OUTPUT, review_digest
from stacks.artifacts.wheelhouse import archive_of
from stacks.capacity.plan import one_zone_at_a_time, zone_candidates
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.fleet_resources import Fleet, FleetParts, create_fleet
from stacks.constructs.nodes.capacity_reservation import reservation_target
from stacks.constructs.nodes.launch_template import NodeLaunchTemplate
from stacks.constructs.nodes.node_role import NodeRole
from stacks.constructs.nodes.placement_group import placement_group
from stacks.constructs.run_controller import RunController
from stacks.constructs.storage.fast_snapshot_restore import FastSnapshotRestore
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack


class TrainingStack(Stack):
    """The fleet, node role, launch template, node and run documents, and run controller."""

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
        owns_run_parameter: bool = True,
        **kwargs: Any,
    ) -> None:
        """Create the stack of a fleet.

        Args:
            scope: The app or stage.
            id_: The construct id.
            config: The fleet's settings; `config.name` is the fleet's name.
            network: The deployment's network.
            storage: The deployment's storage.
            bundle_directory: Folder for the bundles of code.
            wheelhouse_directory: Folder with the archives of wheels.
            owns_run_parameter: Whether the template contains the run document. Otherwise, it is written at run time.
            kwargs: Arguments of `Stack`.
        """
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
            deployment=storage.deployment,
            datasets=storage.datasets,
            checkpoints=storage.checkpoints,
            control=storage.control,
            key=storage.key,
            volume_ids=storage.volume_ids,
            copied_volume_id=storage.copied_volume_id,
        )
        wheelhouse = self._wheelhouse(wheelhouse_directory)
        bundle = self._bundle("NodeBundle", node_bundle(bundle_directory, wheelhouse))
        document = self._node_document(storage, role, bundle)
        subnet_ids = self._candidate_subnet_ids(network)
        fleet = self._fleet(network, storage, role, document, subnet_ids)
        # Stack deletion waits for the nodes to terminate. Until then, they need their permissions and log group.
        for resource in fleet.resources:
            resource.add_resource_dependency(role.policy)
            resource.add_resource_dependency(log_group)
        self._enable_fast_restore(bundle_directory, fleet)
        controller = RunController(
            self,
            "RunController",
            config=config,
            code=function_bundle("run_controller", bundle_directory),
            datasets=storage.datasets,
            control=storage.control,
            key=storage.key,
            fleet=fleet,
            node_role_id=role.role.role_id,
            subnet_ids=subnet_ids,
        )
        if owns_run_parameter:
            run = self._run_parameter(self._bundle("CodeBundle", code_bundle(bundle_directory, user_code)))
            # The run starts when its document is created, so everything that reacts to it must already exist.
            run.node.add_dependency(fleet, controller, role, log_group)
        self._outputs(fleet)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _candidate_subnet_ids(self, network: NetworkStack) -> list[str]:
        """Return the ids of the subnets that the fleet can use, in order of preference."""
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
        template = NodeLaunchTemplate(
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
            # The fleet uses one zone at a time. The run controller switches to the next subnet between attempts.
            subnet_ids=subnet_ids[:1] if one_zone_at_a_time(config) else subnet_ids,
            candidate_subnet_ids=subnet_ids,
            reservation=reservation,
            node_role_arn=role.role.role_arn,
        )
        return create_fleet(self, "Fleet", parts)

    def _enable_fast_restore(self, bundle_directory: Path, fleet: Fleet) -> None:
        """Enable fast snapshot restore before the first node launches. It is billed by the hour while it is enabled."""
        volume = self._config.storage.dataset_volume
        if volume is None or volume.warm != "fast_snapshot_restore":
            return
        restore = FastSnapshotRestore(
            self,
            "FastRestore",
            deployment=self._config.name,
            snapshot_id=volume.snapshot_id,
            zones=self._config.network.subnet_zones,
            code=function_bundle("fast_snapshot_restore", bundle_directory),
            log_retention_days=self._config.observability.log_retention_days,
        )
        fleet.node.add_dependency(restore)

    def _bundle(self, id_: str, bundle: BundleFile) -> Bundle:
        """Publish a bundle as a file asset and return its location."""
        asset = s3_assets.Asset(self, id_, path=str(bundle.path))
        return Bundle(bucket=asset.s3_bucket_name, key=asset.s3_object_key, sha256=bundle.sha256)

    def _wheelhouse(self, directory: Path) -> dict[str, str] | None:
        """Publish the locked wheelhouse as a file asset in the bundle's bucket, and return its key and digest.

        Raises:
            ConfigError: The wheelhouse was not built on this machine.
        """
        sha256 = self._config.node.python.wheelhouse
        if sha256 in ("auto", "off"):  # the value is still `auto` if there is no lock
            return None
        path = archive_of(sha256, self._config.name, directory)
        asset = s3_assets.Asset(self, "Wheelhouse", path=str(path))
        return {"key": asset.s3_object_key, "sha256": sha256}

    def _node_document(self, storage: StorageStack, role: NodeRole, bundle: Bundle) -> NodeDocument:
        return node_document(
            self._config,
            role_id=role.role.role_id,
            dataset_bucket=storage.datasets.bucket_name,
            checkpoint_bucket=storage.checkpoints.bucket_name,
            control_bucket=storage.control.bucket_name,
            run_parameter=self._config.run_parameter,
            log_group=self._config.log_group,
            bundle=bundle,
            volumes=tuple(storage.volumes),
            lustre=storage.lustre,
        )

    def _run_parameter(self, code: Bundle) -> ssm.CfnParameter:
        config = self._config
        content = run_document(config, code).to_json()
        check_parameter_size(json.dumps(content), config.name)
        return ssm.CfnParameter(
            self,
            "Run",
            name=config.run_parameter,
            type="String",
            # Only this tier supports every size, because an advanced parameter cannot become a standard one again.
            # Parameter Store chooses the tier at each update, and never downgrades a parameter. Source: the page above.
            tier="Intelligent-Tiering",
            description="Run document: the training that the nodes run",
            # CDK's to_json_string drops nulls, and the trainer would use the defaults instead.
            value=json.dumps(content, separators=(",", ":")),
        )

    def _outputs(self, fleet: Fleet) -> None:
        outputs = {
            "FleetId": fleet.fleet_id,
            "LogGroup": self._config.log_group,
            "RunParameter": self._config.run_parameter,
            OUTPUT: review_digest(),
        }
        for name, value in outputs.items():
            CfnOutput(self, name, value=value)
