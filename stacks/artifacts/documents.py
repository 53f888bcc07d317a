"""The documents that nodes read, from a deployment's configuration."""

from __future__ import annotations

from typing import Any

from bootstrap.documents import Bundle, NodeDocument, Prepare, PythonEnvironment, RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.supervisor_limits import SuperviseTimings
from stacks.capacity.plan import fabric, gpus, processes_per_node
from stacks.config import DeploymentConfig
from stacks.config.run import training_document
from stacks.errors import ConfigError, Problem

ADVANCED_PARAMETER_BYTES = 8192
"""The size limit of an advanced parameter. Source (2026-11):
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html"""
TOKEN_MARGIN_BYTES = 512  # margin for CloudFormation tokens, whose values are not known yet


def check_parameter_size(document: str, source: str) -> None:
    """Check that an SSM parameter can contain a document.

    Raises:
        ConfigError: The document is too large for any tier.
    """
    size_bytes = len(document.encode()) + TOKEN_MARGIN_BYTES
    if size_bytes > ADVANCED_PARAMETER_BYTES:
        rule = (
            f"must produce a run document of at most {ADVANCED_PARAMETER_BYTES} bytes, the limit for an SSM parameter"
        )
        problem = Problem("training.config", f"about {size_bytes} bytes", rule, "shorten its text values")
        raise ConfigError(source, [problem])


def node_document(config: DeploymentConfig, **places: Any) -> NodeDocument:
    """Return the node document.

    Args:
        places: The attributes of the document that depend on the engine: buckets, names, the bundle and volumes.
    """
    node = config.node
    return NodeDocument(
        schema_version=SCHEMA_VERSION,
        deployment=config.name,
        region=config.region,
        gpus=gpus(config),
        fabric=fabric(config),
        python=PythonEnvironment(interpreter=node.python.interpreter, packages=tuple(node.python.packages)),
        supervise=SuperviseTimings(
            poll_seconds=node.supervise.poll_seconds,
            heartbeat_seconds=node.supervise.heartbeat_seconds,
            heartbeat_timeout_seconds=node.supervise.heartbeat_timeout_seconds,
            gang_timeout_seconds=config.capacity.gang_timeout_seconds,
            boot_timeout_seconds=node.boot_timeout_seconds,
        ),
        **places,
    )


def run_document(config: DeploymentConfig, code: Bundle) -> RunDocument:
    """Return the run document for a code bundle."""
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
