"""Rules for the region, tags and network."""

from __future__ import annotations

import difflib
import ipaddress
import re
import unicodedata
from collections.abc import Iterator

from stacks.capacity.catalogue import catalogue
from stacks.capacity.zones import ZONES_PER_ACCOUNT, zone_letters
from stacks.config import DeploymentConfig
from stacks.config.network import GATEWAYS
from stacks.errors import Problem

# Source (2026-11): https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
MAX_TAGS = 40  # the limit is 50; the rest is for the tags that the stacks, nodes and snapshot policies add
TAG_KEY_CHARACTERS, TAG_VALUE_CHARACTERS = 128, 256
# The narrowest rules of all services that receive the tags. Keys: instance metadata (no space and no slash; not ".",
# ".." or "_index") and Data Lifecycle Manager (no at sign). Values: IAM, SSM, FSx, Logs and Lambda (letters, digits,
# spaces and these signs); CloudFormation requires at least one character.
# Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html and the patterns of
# the services' API models.
TAG_KEY = re.compile(r"[A-Za-z0-9_.:=+-]+")
METADATA_PATHS = (".", "..", "_index")
TAG_VALUE_SIGNS = "_.:/=+-@"
CARRIER_GRADE = ipaddress.ip_network("100.64.0.0/10")


def region(config: DeploymentConfig) -> Iterator[Problem]:
    """The region exists. Without known prices, its costs and candidates are unknown."""
    known = catalogue()
    if config.region not in known.region_names:
        similar = difflib.get_close_matches(config.region, known.region_names, n=3, cutoff=0.0)
        yield Problem("region", config.region, "is not a known AWS region", f"similar: {', '.join(similar)}")
    elif config.region not in known.regions:
        rule = "the catalogue has no offerings or prices for this region, so types and costs are not checked"
        remedy = f"run `python -m stacks catalogue refresh --regions {config.region}`"
        yield Problem("region", config.region, rule, remedy, "warning")


def tags(config: DeploymentConfig) -> Iterator[Problem]:
    """Tags are within AWS's limits and do not use reserved prefixes."""
    if len(config.tags) > MAX_TAGS:
        yield Problem("tags", len(config.tags), f"must be at most {MAX_TAGS}", "remove some")
    for key, value in config.tags.items():
        if key.lower().startswith("aws:"):
            yield Problem(f"tags.{key}", value, "the key prefix aws: is reserved for AWS", "rename it")
        if key.startswith("trainstack:"):
            yield Problem(f"tags.{key}", value, "the key prefix trainstack: is reserved for the stacks", "rename it")
        if not 1 <= len(key) <= TAG_KEY_CHARACTERS or not 1 <= len(value) <= TAG_VALUE_CHARACTERS:
            rule = f"a key must have 1 to {TAG_KEY_CHARACTERS} characters, a value 1 to {TAG_VALUE_CHARACTERS}"
            yield Problem(f"tags.{key}", value, rule, "change its length")
        if key and (not TAG_KEY.fullmatch(key) or key in METADATA_PATHS):
            rule = "the key must consist of A-Z, a-z, 0-9 and _ . : = + -, and must not be ., .. or _index"
            yield Problem(f"tags.{key}", value, rule, "rename it, for example to cost-center")
        if wrong := sorted({one for one in value if not _is_in_tag_values(one)}):
            rule = f"the value must consist of letters, digits, spaces and {' '.join(TAG_VALUE_SIGNS)}, not {wrong}"
            yield Problem(f"tags.{key}", value, rule, "replace these characters")
    by_name: dict[str, str] = {}
    for key, value in config.tags.items():
        if (earlier := by_name.setdefault(key.lower(), key)) != key:
            rule = f"differs from the key {earlier} only in case, which IAM ignores"
            yield Problem(f"tags.{key}", value, rule, "keep one")


def _is_in_tag_values(character: str) -> bool:
    return character in TAG_VALUE_SIGNS or unicodedata.category(character)[0] in "LNZ"


def zones(config: DeploymentConfig) -> Iterator[Problem]:
    """The zones exist in the region, and an account can use all of them."""
    network, region = config.network, config.region
    if network.existing is not None:
        named = [(f"network.existing.subnets.{i}.zone", one.zone) for i, one in enumerate(network.existing.subnets)]
    else:
        named = [(f"network.zones.{i}", zone) for i, zone in enumerate(network.zones)]
    if region not in catalogue().region_names:
        return
    known, most = zone_letters(region), ZONES_PER_ACCOUNT.get(region)
    for path, zone in named:
        if zone not in known:
            rule = f"is not a zone of {region}; its zones are {', '.join(known)}"
            yield Problem(path, zone, rule, "use one of them; `python -m stacks check FILE --aws` prints the account's")
    if most is not None and (not named or len(named) > most):
        rule = f"must list at most {most} zones: an account can use only {most} of {', '.join(known)} in {region}"
        remedy = f"list them; `aws ec2 describe-availability-zones --region {region}` prints them"
        yield Problem("network.zones", network.subnet_zones, rule, remedy)


def private_range(config: DeploymentConfig) -> Iterator[Problem]:
    """The address range is private. A public range would make that part of the internet unreachable."""
    found = ipaddress.ip_network(config.network.cidr)
    if not (found.is_private or found.subnet_of(CARRIER_GRADE)):  # type: ignore[arg-type]
        rule = "is not a private range, so internet hosts in this range become unreachable"
        yield Problem("network.cidr", config.network.cidr, rule, "use a range inside 10.0.0.0/8", "warning")


def existing(config: DeploymentConfig) -> Iterator[Problem]:
    """An existing VPC has one subnet per zone, meets the requirements for endpoints, and has no conflicting keys."""
    network, vpc = config.network, config.network.existing
    if vpc is None:
        return
    for name in ("cidr", "zones", "nat", "flow_log_retention_days"):
        if name in network.model_fields_set:
            rule = "has no effect with network.existing, because the VPC's owner controls this setting"
            yield Problem(f"network.{name}", getattr(network, name), rule, "remove it")
    zones = [subnet.zone for subnet in vpc.subnets]
    ids = [subnet.id for subnet in vpc.subnets]
    for index, subnet in enumerate(vpc.subnets):
        if subnet.zone in zones[:index]:
            rule = "is the zone of an earlier subnet; list one subnet per zone, in order of preference"
            yield Problem(f"network.existing.subnets.{index}.zone", subnet.zone, rule, "keep one")
        if subnet.id in ids[:index]:
            yield Problem(f"network.existing.subnets.{index}.id", subnet.id, "is listed twice", "keep one")
    gateways = [service for service in GATEWAYS if vpc.creates_endpoint(service)]
    if gateways and not vpc.route_table_ids:
        rule = f"must not be empty: gateway endpoints ({', '.join(gateways)}) are route table entries"
        yield Problem("network.existing.route_table_ids", [], rule, "list the route tables of the subnets")
    if vpc.route_table_ids and not gateways:
        rule = "applies only if create_endpoints includes s3 or dynamodb"
        yield Problem("network.existing.route_table_ids", vpc.route_table_ids, rule, "remove it, or create endpoints")
    listed = [] if isinstance(vpc.create_endpoints, bool) else vpc.create_endpoints
    for index, service in enumerate(listed):
        if service in listed[:index]:
            yield Problem(f"network.existing.create_endpoints.{index}", service, "is listed twice", "keep one")


RULES = (region, tags, zones, private_range, existing)
