"""Estimates how long a save takes, for the grace period of a pod."""

from __future__ import annotations

from stacks.capacity.gpu_memory import BYTES_OF_MOMENTS, BYTES_OF_WEIGHT, GIB, from_shape
from stacks.capacity.plan import processes_per_node
from stacks.config import DeploymentConfig

BYTES_PER_SECOND = 85e6
"""Throughput of one request to S3. Each process writes its share of the state.
Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html"""
AGREEMENT_SECONDS = 10.0
"""Allowance for the step in progress and for the agreement of all processes on the step to save."""
REPORT_SECONDS = 15.0
"""Part of the grace period for the last records. Must equal `bootstrap.kubernetes.pod.REPORT_SECONDS`."""
LEAST_GRACE_SECONDS = 120
MARGIN = 2.0
"""Ratio of the default grace period to the save: uploads of all pods share the network."""


def save_seconds(config: DeploymentConfig) -> float:
    """Return the measured duration of a save, or an estimate from the size of the weights and of Adam's moments."""
    kubernetes = config.kubernetes
    if kubernetes is not None and kubernetes.save_seconds is not None:
        return kubernetes.save_seconds
    weights = from_shape(config.training.config.model.shape, 0).weights_gib * GIB
    state = weights * (BYTES_OF_WEIGHT + BYTES_OF_MOMENTS) / BYTES_OF_WEIGHT
    world = config.capacity.nodes * processes_per_node(config)
    return AGREEMENT_SECONDS + state / world / BYTES_PER_SECOND


def grace_seconds(config: DeploymentConfig) -> int:
    """Return the configured grace period of a pod, or one that is long enough for a save."""
    kubernetes = config.kubernetes
    if kubernetes is not None and kubernetes.termination_grace_seconds is not None:
        return kubernetes.termination_grace_seconds
    return max(LEAST_GRACE_SECONDS, round(MARGIN * save_seconds(config) + REPORT_SECONDS))
