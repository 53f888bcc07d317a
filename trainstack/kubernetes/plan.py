"""The plan for a deployment file with `engine: kubernetes`: its documents, bundles and names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bootstrap.documents import Bundle, NodeDocument, Prepare, PythonEnvironment, RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.supervisor_limits import SuperviseTimings
from bootstrap.kubernetes.pod import DOCUMENTS, RUN_FILE
from stacks.artifacts.bundles import BUNDLES, BundleFile, code_bundle, node_bundle
from stacks.capacity.plan import fabric, gpus, processes_per_node
from stacks.config import DeploymentConfig
from stacks.config.kubernetes import KubernetesConfig
from stacks.config.run import training_document

ROLE = "kubernetes"
"""Part of the control records' names, in place of a node role's id: all pods of a cluster may share one role."""


@dataclass(frozen=True)
class Plan:
    """A deployment's documents and bundles.

    Attributes:
        files: Bundles on this machine, by key in the bucket.
    """

    config: DeploymentConfig
    section: KubernetesConfig
    node: NodeDocument
    run: RunDocument
    files: dict[str, BundleFile]

    @property
    def name(self) -> str:
        """Name of all objects, and label of the deployment."""
        return f"trainstack-{self.config.name}"


def plan_of(config: DeploymentConfig, folder: Path = BUNDLES) -> Plan:
    """Return the plan of a valid deployment with `engine: kubernetes`, and write its bundles to `folder`.

    Raises:
        BundleError: The user code cannot be bundled.
    """
    section = config.kubernetes
    assert section is not None, "stacks.validators.kubernetes.has_section"
    code = config.training.code
    built = {"node": node_bundle(folder), "code": code_bundle(folder, None if code is None else Path(code))}
    bundles = {name: Bundle(section.bucket, f"bundles/{file.sha256}.zip", file.sha256) for name, file in built.items()}
    files = {bundles[name].key: file for name, file in built.items()}
    return Plan(config, section, _node(config, section, bundles["node"]), _run(config, bundles["code"]), files)


def _node(config: DeploymentConfig, section: KubernetesConfig, bundle: Bundle) -> NodeDocument:
    timings = config.node.supervise
    return NodeDocument(
        schema_version=SCHEMA_VERSION,
        deployment=config.name,
        region=config.region,
        role_id=ROLE,
        dataset_bucket=section.dataset_bucket or section.bucket,
        checkpoint_bucket=section.bucket,
        control_bucket=section.control_bucket or section.bucket,
        run_parameter=str(DOCUMENTS / RUN_FILE),
        log_group="kubectl logs",
        bundle=bundle,
        gpus=gpus(config),
        fabric=fabric(config),
        python=PythonEnvironment(config.node.python.interpreter, tuple(config.node.python.packages)),
        supervise=SuperviseTimings(
            poll_seconds=timings.poll_seconds,
            heartbeat_seconds=timings.heartbeat_seconds,
            heartbeat_timeout_seconds=timings.heartbeat_timeout_seconds,
            gang_timeout_seconds=config.capacity.gang_timeout_seconds,
            boot_timeout_seconds=config.node.boot_timeout_seconds,
        ),
    )


def _run(config: DeploymentConfig, code: Bundle) -> RunDocument:
    prepare = config.training.prepare
    return RunDocument(
        schema_version=SCHEMA_VERSION,
        deployment=config.name,
        run=config.training.run,
        nodes=config.capacity.nodes,
        min_nodes=config.capacity.min_nodes or config.capacity.nodes,
        processes_per_node=processes_per_node(config),
        code=code,
        dataset=config.training.dataset,
        training=training_document(config.training.config),
        prepare=None if prepare is None else Prepare(**prepare.model_dump(mode="json")),
    )
