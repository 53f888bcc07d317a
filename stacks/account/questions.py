"""The preflight: one read-only check for each assumption about the account, region, network, image and quotas.

`check --aws` runs all checks that apply, and docs/preflight.md contains this table. To add a check, add a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stacks.account import capacity, launch, limits, network, prerequisites
from stacks.account.account import Account
from stacks.capacity.plan import is_spot
from stacks.config import DeploymentConfig
from stacks.config.slots import capacities
from stacks.errors import Problem
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS

ALWAYS_CALLED = ("sts:GetCallerIdentity", "cloudformation:DescribeStackResources")
"""Calls that all checks share. The first needs no permission; the second returns the deployed stacks."""


@dataclass(frozen=True)
class Question:
    """One check of the account.

    Attributes:
        title: Name of the check in messages.
        assumption: The assumption to check.
        made_by: The files whose templates, boot steps or handlers make the assumption.
        failure: The consequence of a wrong assumption that the preflight does not detect.
        calls: IAM actions that the check needs.
        applies: Whether a deployment makes the assumption.
        ask: Function that runs the check and yields the problems.
    """

    title: str
    assumption: str
    made_by: tuple[str, ...]
    failure: str
    calls: tuple[str, ...]
    applies: Callable[[DeploymentConfig], bool]
    ask: Callable[[Account], Iterator[Problem]]


def _always(config: DeploymentConfig) -> bool:
    return True


def _in_existing_vpc(config: DeploymentConfig) -> bool:
    return config.network.existing is not None


def _in_new_vpc(config: DeploymentConfig) -> bool:
    return config.network.existing is None


VPC_ENDPOINTS = "stacks/constructs/network/vpc_endpoints.py"
LAUNCH_TEMPLATE = "stacks/constructs/nodes/launch_template.py"
QUESTIONS: tuple[Question, ...] = (
    Question(
        "CDK bootstrap",
        "`cdk bootstrap` has run in the account and region, with the qualifier in cdk.json and a recent version",
        ("stacks/constructs/cdk_bootstrap_roles.py",),
        "the deploy stops before the first stack",
        ("ssm:GetParameter",),
        _always,
        prerequisites.bootstrap,
    ),
    Question(
        "zones",
        "the account can use the availability zones",
        ("stacks/network_stack.py",),
        "the deploy of NetworkStack rolls back",
        ("ec2:DescribeAvailabilityZones",),
        _in_new_vpc,
        network.zones,
    ),
    Question(
        "address range",
        "no other VPC has the same address range",
        ("stacks/network_stack.py",),
        "the VPC cannot be connected to the other one",
        ("ec2:DescribeVpcs",),
        _in_new_vpc,
        network.overlaps,
    ),
    Question(
        "network limits",
        "the quotas for VPCs, internet gateways, addresses and endpoints are not exhausted",
        ("stacks/network_stack.py", "stacks/constructs/network/nat_gateway.py", VPC_ENDPOINTS),
        "the deploy of NetworkStack rolls back",
        (
            *("servicequotas:GetServiceQuota", "ec2:DescribeVpcs", "ec2:DescribeInternetGateways"),
            *("ec2:DescribeAddresses", "ec2:DescribeVpcEndpoints"),
        ),
        _always,
        limits.resources,
    ),
    Question(
        "endpoint services",
        "the services that nodes call have endpoints in the region and zones, and these support endpoint policies",
        (VPC_ENDPOINTS,),
        "the deploy of NetworkStack rolls back; without a policy, data can be exported with another account's "
        "credentials",
        ("ec2:DescribeVpcEndpointServices",),
        _always,
        network.endpoint_services,
    ),
    Question(
        "existing VPC",
        "the VPC exists with the given range, and its DNS settings let nodes resolve the endpoints' names",
        ("stacks/network_stack.py", "bootstrap/aws.py"),
        "nodes cannot reach AWS, and boot fails",
        ("ec2:DescribeVpcs", "ec2:DescribeVpcAttribute", "ec2:DescribeDhcpOptions"),
        _in_existing_vpc,
        network.vpc,
    ),
    Question(
        "existing subnets",
        "the subnets belong to the VPC and the given zones, and have enough addresses for all nodes",
        ("stacks/network_stack.py", "stacks/capacity/plan.py"),
        "the deploy rolls back, or nodes do not launch",
        ("ec2:DescribeSubnets",),
        _in_existing_vpc,
        network.subnets,
    ),
    Question(
        "existing endpoints",
        "each service that nodes call has exactly one endpoint, or a route leads out of the VPC",
        (VPC_ENDPOINTS,),
        "the deploy of NetworkStack rolls back, or boot fails",
        ("ec2:DescribeVpcEndpoints", "ec2:DescribeRouteTables"),
        _in_existing_vpc,
        network.endpoints,
    ),
    Question(
        "image",
        "the image exists and is available, with the root device, size, architecture and GPU driver that nodes need",
        (LAUNCH_TEMPLATE, "bootstrap/boot_steps/instance_checks.py"),
        "nodes do not launch, or boot fails",
        ("ssm:GetParameter", "ec2:DescribeImages"),
        _always,
        prerequisites.image,
    ),
    Question(
        "snapshots",
        "the volumes' snapshots exist, are complete and fit into the volumes",
        ("stacks/constructs/storage/volumes.py",),
        "nodes do not launch",
        ("ec2:DescribeSnapshots",),
        lambda config: config.storage.dataset_volume is not None or config.storage.shared_volume is not None,
        prerequisites.snapshots,
    ),
    Question(
        "policies",
        "the permissions boundary and the extra policies exist",
        ("stacks/constructs/permissions_boundary.py", "stacks/constructs/nodes/node_role.py"),
        "the deploy rolls back at the first role",
        ("iam:GetPolicy",),
        lambda config: config.node.permissions_boundary is not None or bool(config.node.extra_policies),
        prerequisites.policies,
    ),
    Question(
        "service-linked roles",
        "the roles with which EC2 Fleet and Spot Fleet launch instances exist, or the deploy creates them",
        ("stacks/constructs/nodes/service_linked_roles.py",),
        "the deploy of TrainingStack rolls back, or nodes do not launch",
        ("iam:GetRole",),
        lambda config: not BACK_ENDS[config.capacity.backend].creates_linked_role,
        prerequisites.service_linked_roles,
    ),
    Question(
        "identity provider",
        "GitHub's identity provider exists if the file names it, and does not exist otherwise",
        ("stacks/constructs/delivery/github_access.py",),
        "the deploy of PipelineStack rolls back",
        ("iam:ListOpenIDConnectProviders",),
        lambda config: config.delivery.github is not None,
        prerequisites.identity_provider,
    ),
    Question(
        "Lambda concurrency",
        "the functions can reserve concurrency; many new accounts have a limit of 10 and cannot reserve any",
        ("stacks/constructs/lambda_function.py",),
        "the deploy of TrainingStack rolls back",
        ("lambda:GetAccountSettings",),
        _always,
        limits.concurrency,
    ),
    Question(
        "vCPU quotas",
        "the vCPU quotas for the instance families and the market suffice for all nodes",
        (LAUNCH_TEMPLATE, "stacks/functions/run_controller"),
        "the run waits",
        ("servicequotas:GetServiceQuota", "servicequotas:ListServiceQuotas"),
        lambda config: any(each.capacity.market != "capacity_block" for each in capacities(config).values()),
        lambda account: capacity.quotas(account.config, account.client),
    ),
    Question(
        "volume quotas",
        "the quotas for volume storage suffice for all nodes",
        (LAUNCH_TEMPLATE, "stacks/constructs/storage/volumes.py"),
        "nodes do not launch",
        ("servicequotas:GetServiceQuota", "ec2:DescribeVolumes"),
        _always,
        limits.storage,
    ),
    Question(
        "offerings by zone",
        "the zones offer the instance types",
        (LAUNCH_TEMPLATE,),
        "the run waits",
        ("ec2:DescribeInstanceTypeOfferings",),
        _always,
        capacity.each_section(capacity.offerings),
    ),
    Question(
        "reservation",
        "the reservation exists in the zone, with free capacity for a listed type",
        ("stacks/constructs/nodes/capacity_reservation.py",),
        "the run waits",
        ("ec2:DescribeCapacityReservations",),
        lambda config: any(
            (named := each.capacity.reservation) is not None and named.id is not None
            for each in capacities(config).values()
        ),
        capacity.each_section(capacity.reservation),
    ),
    Question(
        "spot placement score",
        "a spot request for all nodes is likely to succeed now",
        ("stacks/functions/run_controller",),
        "the run waits",
        ("ec2:GetSpotPlacementScores",),
        lambda config: any(is_spot(each) for each in capacities(config).values()),
        capacity.each_section(capacity.spot_placement),
    ),
    Question(
        "dry run of the launch",
        "EC2 accepts the launch template with each instance type",
        (LAUNCH_TEMPLATE,),
        "nodes do not launch",
        ("ec2:RunInstances", "ec2:DescribeSubnets", "cloudformation:ListExports", "ssm:GetParameters", "iam:PassRole"),
        _always,
        lambda account: launch.dry_runs(account),
    ),
)
"""All checks, in the order of a deploy."""


def permissions() -> dict[str, object]:
    """Return the IAM policy that `check --aws` needs."""
    actions = {action for question in QUESTIONS for action in question.calls} | {*ALWAYS_CALLED[1:]}
    statement = {"Sid": "Preflight", "Effect": "Allow", "Action": sorted(actions), "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def page() -> str:
    """Return docs/preflight.md."""
    lines = [
        "# Preflight",
        "",
        "`python -m stacks check FILE --aws` runs the following checks before the first deploy. Each verifies one",
        "assumption of the templates, boot steps or handlers. No check changes anything: the launch is a dry run. The",
        "exit code is 2 if there are errors. A check that cannot be completed is a warning.",
        "`python -m stacks preflight > docs/preflight.md` writes this page.",
        "",
        "| check | assumption | made by | otherwise | permissions |",
        "|---|---|---|---|---|",
    ]
    for one in QUESTIONS:
        made_by, calls = ", ".join(f"`{path}`" for path in one.made_by), ", ".join(f"`{call}`" for call in one.calls)
        lines.append(f"| {one.title} | {one.assumption} | {made_by} | {one.failure} | {calls} |")
    policy = json.dumps(permissions(), indent=2)
    not_asked = [
        "The checks do not cover security group rules of existing endpoints, network ACLs, organization policies that",
        "deny the deploy's calls, or the confirmation of the delivery connection.",
    ]
    intro = "This IAM policy contains the permissions for all checks:"
    return "\n".join([*lines, "", *not_asked, "", intro, "", "```json", policy, "```", ""])
