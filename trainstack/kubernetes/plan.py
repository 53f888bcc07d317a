"""The plan for a deployment file whose run consists of pods: its documents, bundles and names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bootstrap.documents import Bundle, NodeDocument, RunDocument
from bootstrap.kubernetes.pod import DOCUMENTS, RUN_FILE
from stacks.artifacts.bundles import BUNDLES, BundleFile, code_bundle, node_bundle
from stacks.artifacts.documents import node_document, run_document
from stacks.config import DeploymentConfig
from stacks.config.kubernetes import KubernetesConfig

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
    """Return the plan of a valid deployment whose run consists of pods, and write its bundles to `folder`.

    Raises:
        BundleError: The user code cannot be bundled.
    """
    section = config.kubernetes
    assert section is not None, "stacks.validators.kubernetes.has_section"
    code = config.training.code
    built = {"node": node_bundle(folder), "code": code_bundle(folder, None if code is None else Path(code))}
    bundles = {name: Bundle(section.bucket, f"bundles/{file.sha256}.zip", file.sha256) for name, file in built.items()}
    files = {bundles[name].key: file for name, file in built.items()}
    node = node_document(
        config,
        role_id=ROLE,
        dataset_bucket=section.dataset_bucket or section.bucket,
        checkpoint_bucket=section.bucket,
        control_bucket=section.control_bucket or section.bucket,
        run_parameter=str(DOCUMENTS / RUN_FILE),
        log_group="kubectl logs",
        bundle=bundles["node"],
    )
    return Plan(config, section, node, run_document(config, bundles["code"]), files)
