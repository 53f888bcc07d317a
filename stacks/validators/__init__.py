"""Rules that span the sections of a deployment file. Each rule yields all problems that it finds."""

from __future__ import annotations

import os
from contextlib import suppress

from stacks.config import DeploymentConfig
from stacks.config.setting import UndecodedKey
from stacks.errors import Problem
from stacks.validators import (
    capacity,
    deadline,
    delivery,
    eks,
    hyperpod,
    image,
    kubernetes,
    managed,
    market,
    network,
    node,
    observability,
    pcs,
    pipeline,
    run,
    slots,
    slurm,
    storage,
)
from stacks.validators.rehearsal import rehearsal

_SECTION_RULES = (*kubernetes.OTHER_ENGINES_RULES, managed.engine_of_section)
"""Warnings about sections of other engines."""
FLEET_RULES = (
    *(*capacity.RULES, *market.RULES, *network.RULES, *storage.RULES),
    *(*node.RULES, *run.RULES, *observability.RULES, *deadline.RULES, *delivery.RULES, *slurm.FLEET_RULES),
    *(*_SECTION_RULES, *image.FLEET_RULES, *slots.RULES, *pipeline.RULES),
)
_COMMON_RULES = (capacity.one_gpu_model, capacity.gang, *run.RULES, *image.RULES)
_OTHER_ENGINES_RULES = (*_SECTION_RULES, *slots.OTHER_ENGINES_RULES, pipeline.engine)
_CLUSTER_RULES = (
    *(*network.RULES, capacity.types_given_once, capacity.types_are_known, node.policies),
    *(storage.lustre, storage.zones, storage.mounts, storage.acceleration, managed.unsupported_storage),
)
"""Rules for the stacks of a managed cluster."""
_TEMPLATE_RULES = (capacity.placement, storage.root_volume, node.fabric, node.ebs_optimized)
"""Rules for nodes with a launch template of the stacks."""
_RULES_OF = {
    "fleet": FLEET_RULES,
    "slurm": (*_COMMON_RULES, *slurm.RULES, *_OTHER_ENGINES_RULES),
    "kubernetes": (*_COMMON_RULES, *kubernetes.RULES, *_OTHER_ENGINES_RULES),
    "pcs": (*_COMMON_RULES, *_CLUSTER_RULES, *_TEMPLATE_RULES, *slurm.RULES, *pcs.RULES, *_OTHER_ENGINES_RULES),
    # The rules for jobs and those for pods do nothing with the other orchestrator.
    "hyperpod": (
        *(*_COMMON_RULES, *_CLUSTER_RULES, *slurm.RULES, *kubernetes.RULES, *hyperpod.RULES, *_OTHER_ENGINES_RULES),
    ),
}
_EKS_RULES = (*network.RULES, node.policies, *eks.RULES, managed.unsupported_storage)
"""Rules for the stacks of an EKS cluster."""
RULES = (
    *(*FLEET_RULES, *slurm.RULES, *kubernetes.RULES, *pcs.RULES, *hyperpod.RULES, *eks.RULES, *image.RULES),
    *(*slots.OTHER_ENGINES_RULES, managed.unsupported_storage),
)


def problems(config: DeploymentConfig) -> list[Problem]:
    """Return the errors and warnings from every rule. A rule stops at the first key that failed to decode."""
    found: list[Problem] = []
    engine = config.__dict__.get("engine", "fleet")
    more = _EKS_RULES if engine == "kubernetes" and config.__dict__.get("eks") is not None else ()
    for rule in (*_RULES_OF[engine], *more):
        with suppress(UndecodedKey):
            for problem in rule(config):
                found.append(problem)
    return found


def warnings(config: DeploymentConfig) -> list[Problem]:
    """Return the warnings for a valid deployment. They depend on whether calls go to an embedded cloud."""
    found = [problem for problem in problems(config) if problem.severity == "warning"]
    return [*found, *rehearsal(config, os.environ)]
