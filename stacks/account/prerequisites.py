"""Checks of a deployment file's prerequisites: CDK bootstrap, image, snapshots, policies, identity providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from stacks.account.account import Account
from stacks.capacity.images import image_facts
from stacks.capacity.plan import known_types, linked_roles
from stacks.errors import Problem

GITHUB_ISSUER = "token.actions.githubusercontent.com"


def bootstrap(account: Account) -> Iterator[Problem]:
    """Check that `cdk bootstrap` has run in the account and region with the templates' qualifier and a recent version.

    Source (2026-11): https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html.
    """
    template = account.templates["TrainingStack"]
    parameter = template.get("Parameters", {}).get("BootstrapVersion")
    if parameter is None:
        return
    name, rejected = str(parameter["Default"]), _rejected_versions(template)
    _, _, qualifier, _ = name.split("/")
    remedy = f"run `cdk bootstrap --qualifier {qualifier}` with credentials for this account and region"
    try:
        version = account.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        rule = f"the account is not bootstrapped in {account.config.region}: {name} does not exist"
        yield Problem("--aws", qualifier, rule, remedy)
        return
    if version in rejected:
        yield Problem("--aws", f"bootstrap version {version}", f"must be above {max(rejected, key=int)}", remedy)


def _rejected_versions(template: Mapping[str, Any]) -> list[str]:
    """Return the bootstrap versions that the template's rule rejects."""
    for rule in template.get("Rules", {}).values():
        for assertion in rule["Assertions"]:
            for condition in assertion["Assert"].get("Fn::Not", []):
                return [str(one) for one in condition.get("Fn::Contains", [[]])[0]]
    return []


def image(account: Account) -> Iterator[Problem]:
    """Check that the image exists, and that its root volume, architecture and driver match the deployment file."""
    config, ami = account.config, account.config.node.ami
    if ami.startswith("/"):
        try:
            image_id = str(account.client("ssm").get_parameter(Name=ami)["Parameter"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] != "ParameterNotFound":
                raise
            rule = f"does not exist in {config.region}"
            remedy = "see https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html for the names"
            yield Problem("node.ami", ami, rule, remedy)
            return
    else:
        image_id = ami
    filters = [{"Name": "image-id", "Values": [image_id]}]
    found = account.client("ec2").describe_images(Filters=filters, IncludeDeprecated=True)["Images"]
    if not found:
        rule = f"{image_id} does not exist in {config.region}, or is not shared with this account"
        yield Problem("node.ami", ami, rule, "run `python -m stacks ami lock FILE`, or correct the id or the region")
        return
    yield from _fits(account, ami, found[0])


def _fits(account: Account, ami: str, found: Mapping[str, Any]) -> Iterator[Problem]:
    node, name = account.config.node, str(found.get("Name", ""))
    if found.get("State", "available") != "available":
        yield Problem("node.ami", ami, f"is {found['State']}", "use an available image")
    if found.get("Architecture") != "x86_64":
        rule = f"is an {found.get('Architecture')} image, but the catalogued types are x86_64"
        yield Problem("node.ami", ami, rule, "use an x86_64 image")
    if found["RootDeviceName"] != node.root_device:
        rule = f"must be {found['RootDeviceName']}, the root device of the image; another name adds a second volume"
        yield Problem("node.root_device", node.root_device, rule, f"set root_device: {found['RootDeviceName']}")
    for mapping in found.get("BlockDeviceMappings", []):
        gib = mapping.get("Ebs", {}).get("VolumeSize", 0)
        if mapping.get("DeviceName") == found["RootDeviceName"] and gib > node.root_volume.gib:
            rule = f"must be at least {gib}, the size of the image's root volume"
            yield Problem("node.root_volume.gib", node.root_volume.gib, rule, f"set gib: {gib} or more")
    facts = image_facts(name)
    unsupported = [one.name for one in known_types(account.config) if facts is not None and not facts.supports(one)]
    if unsupported:
        rule = f"is {name!r}, which does not support {', '.join(unsupported)}"
        yield Problem("node.ami", ami, rule, "use other types, or another image")
    deprecated = found.get("DeprecationTime")
    if deprecated and datetime.fromisoformat(deprecated) < datetime.now(UTC):
        rule = f"has been deprecated since {deprecated}, and its owner can delete it"
        yield Problem("node.ami", ami, rule, "run `python -m stacks ami lock FILE`", "warning")


def snapshots(account: Account) -> Iterator[Problem]:
    """Check that the snapshots exist, are complete, and fit into the volumes that are created from them."""
    storage = account.config.storage
    for section, volume in (("dataset_volume", storage.dataset_volume), ("shared_volume", storage.shared_volume)):
        if volume is None or volume.snapshot_id is None:
            continue
        path, given = f"storage.{section}", volume.snapshot_id
        filters = [{"Name": "snapshot-id", "Values": [given]}]
        found = account.client("ec2").describe_snapshots(Filters=filters)["Snapshots"]
        if not found:
            rule = f"does not exist in {account.config.region}, or is not shared with this account"
            yield Problem(f"{path}.snapshot_id", given, rule, "correct the id or the region")
            continue
        if found[0]["State"] != "completed":
            rule = f"is {found[0]['State']} ({found[0].get('Progress', 'unknown progress')})"
            yield Problem(f"{path}.snapshot_id", given, rule, "wait until it is completed, or use another one")
        if found[0]["VolumeSize"] > volume.gib:
            rule = f"must be at least {found[0]['VolumeSize']}, the size of {given}"
            yield Problem(f"{path}.gib", volume.gib, rule, f"set gib: {found[0]['VolumeSize']} or more")


def policies(account: Account) -> Iterator[Problem]:
    """Check that the permissions boundary and the extra policies exist."""
    node = account.config.node
    named = [(f"node.extra_policies.{index}", arn) for index, arn in enumerate(node.extra_policies)]
    if node.permissions_boundary is not None:
        named.append(("node.permissions_boundary", node.permissions_boundary))
    for path, arn in named:
        try:
            account.client("iam").get_policy(PolicyArn=arn)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchEntity":
                raise
            yield Problem(path, arn, "does not exist in this account", "correct the ARN, or create the policy")


def service_linked_roles(account: Account) -> Iterator[Problem]:
    """Check for the service-linked roles that the fleet's service does not create itself."""
    config = account.config
    for role in linked_roles(config):
        try:
            account.client("iam").get_role(RoleName=role.name)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchEntity":
                raise
            rule = f"needs the role {role.name}, which does not exist in this account"
            remedy = f"run `aws iam create-service-linked-role --aws-service-name {role.service}`"
            yield Problem("capacity.backend", config.capacity.backend, rule, remedy)


def identity_provider(account: Account) -> Iterator[Problem]:
    """Check that GitHub's identity provider exists if the file names it, and is absent if the stack creates it."""
    access = account.config.delivery.github
    if access is None:
        return
    answer = account.client("iam").list_open_id_connect_providers()["OpenIDConnectProviderList"]
    known = [one["Arn"] for one in answer]
    path = "delivery.github.provider_arn"
    if access.provider_arn is not None and access.provider_arn not in known:
        yield Problem(path, access.provider_arn, "does not exist in this account", "correct the ARN, or remove the key")
    existing = [arn for arn in known if arn.endswith(f"/{GITHUB_ISSUER}")]
    if access.provider_arn is None and existing and not account.deployed("PipelineStack"):
        rule = f"must be {existing[0]}: an account has only one provider for {GITHUB_ISSUER}"
        yield Problem(path, None, rule, f"set provider_arn: {existing[0]}")
