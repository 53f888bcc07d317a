"""Rules of region, tags and network."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.instance_types import catalogue

# Source (2026-11): https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
MOST_TAGS = 48  # of 50, two are the deployment's and the group's own
TAG_KEY_CHARACTERS, TAG_VALUE_CHARACTERS = 128, 256
CARRIER_GRADE = ipaddress.ip_network("100.64.0.0/10")


def region(config: DeploymentConfig) -> Iterator[Problem]:
    """The region must be one of AWS's; without prices of it, costs and candidates are unknown."""
    known = catalogue()
    if config.region not in known.region_names:
        near = difflib.get_close_matches(config.region, known.region_names, n=3, cutoff=0.0)
        yield Problem("region", config.region, "is no region of AWS that is known here", f"near: {', '.join(near)}")
    elif config.region not in known.regions:
        rule = "the catalogue has no offers and prices of it: types and costs are not checked"
        remedy = f"`python -m stacks catalogue refresh --regions {config.region}`"
        yield Problem("region", config.region, rule, remedy, "warning")


def tags(config: DeploymentConfig) -> Iterator[Problem]:
    """Tags that AWS refuses, or that the deployment sets itself."""
    if len(config.tags) > MOST_TAGS:
        yield Problem("tags", len(config.tags), f"are more than {MOST_TAGS}", "drop some")
    for key, value in config.tags.items():
        if key.lower().startswith("aws:"):
            yield Problem(f"tags.{key}", value, "keys that begin with aws: are AWS's own", "rename it")
        if key.startswith("trainstack:"):
            yield Problem(f"tags.{key}", value, "keys that begin with trainstack: are set by the stacks", "rename it")
        if not key or len(key) > TAG_KEY_CHARACTERS or len(value) > TAG_VALUE_CHARACTERS:
            rule = f"a key has 1 to {TAG_KEY_CHARACTERS} characters, a value at most {TAG_VALUE_CHARACTERS}"
            yield Problem(f"tags.{key}", value, rule, "shorten it")


def own_range(config: DeploymentConfig) -> Iterator[Problem]:
    """An address range of somebody else's on the internet makes that part unreachable."""
    found = ipaddress.ip_network(config.network.cidr)
    if not (found.is_private or found.subnet_of(CARRIER_GRADE)):  # type: ignore[arg-type]
        rule = "is not a private range: addresses of it on the internet become unreachable"
        yield Problem("network.cidr", config.network.cidr, rule, "take one of 10.0.0.0/8", "warning")


def existing(config: DeploymentConfig) -> Iterator[Problem]:
    """A VPC of somebody else's: which keys have a meaning, and what endpoints need."""
    network, vpc = config.network, config.network.existing
    if vpc is None:
        return
    for name in ("cidr", "zones", "nat", "flow_log_retention_days"):
        if name in network.model_fields_set:
            rule = "has no effect with network.existing, whose owner decides it"
            yield Problem(f"network.{name}", getattr(network, name), rule, "drop it")
    zones = [subnet.zone for subnet in vpc.subnets]
    ids = [subnet.id for subnet in vpc.subnets]
    for index, subnet in enumerate(vpc.subnets):
        if subnet.zone in zones[:index]:
            rule = "a second subnet of the same zone: one a zone, in the order to try them"
            yield Problem(f"network.existing.subnets.{index}.zone", subnet.zone, rule, "keep one")
        if subnet.id in ids[:index]:
            yield Problem(f"network.existing.subnets.{index}.id", subnet.id, "stands twice", "keep one")
    if vpc.create_endpoints and not vpc.route_table_ids:
        rule = "endpoints of S3 and DynamoDB are entered in route tables, and none is named"
        yield Problem("network.existing.route_table_ids", [], rule, "name those of the subnets")
    if vpc.route_table_ids and not vpc.create_endpoints:
        rule = "are used with create_endpoints only"
        yield Problem("network.existing.route_table_ids", vpc.route_table_ids, rule, "drop them, or create endpoints")


RULES = (region, tags, own_range, existing)
