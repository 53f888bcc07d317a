"""A Lambda function, including its runtime, memory, dependencies and suppressions.

No function reserves concurrency: Lambda keeps 100 executions unreserved, so accounts with a limit of 10, such as new
accounts, cannot reserve any. Source (2026-11):
https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
"""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import CfnResource, Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.artifacts.bundles import BundleFile
from stacks.constructs.suppressions import suppress

MEMORY_MIB = 256


def lambda_function(
    scope: Construct,
    *,
    program: str,
    code: BundleFile,
    role: iam.Role,
    log_group: logs.ILogGroup,
    timeout: Duration,
    environment: Mapping[str, str],
    no_dead_letter_queue: str,
) -> lambda_.Function:
    """Create the function as the default child of a construct.

    Args:
        scope: The parent construct.
        program: A package in `stacks/functions/` that defines `handler.handler`.
        code: The package's bundle.
        role: The function's role. CloudFormation creates the function after the role's policy.
        log_group: The function's log group.
        timeout: The maximum duration of an invocation.
        environment: Environment variables, which must not contain secrets.
        no_dead_letter_queue: The reason that failed events do not need a dead-letter queue.
    """
    function = lambda_.Function(
        scope,
        "Default",
        runtime=lambda_.Runtime.PYTHON_3_13,
        architecture=lambda_.Architecture.ARM_64,
        handler=f"{program}.handler.handler",
        code=lambda_.Code.from_asset(str(code.path)),
        role=role,
        timeout=timeout,
        memory_size=MEMORY_MIB,
        log_group=log_group,
        environment=environment,
    )
    resource = function.node.default_child
    assert isinstance(resource, lambda_.CfnFunction)
    depend_on_policy(resource, role)
    suppress(function, "AwsSolutions-L1", "The runtime is pinned to the version that the program is tested with")
    suppress(function, "CKV_AWS_115", "Accounts with a limit of 10 concurrent executions cannot reserve any")
    suppress(function, "CKV_AWS_116", no_dead_letter_queue)
    suppress(function, "CKV_AWS_117", "The function only calls AWS APIs and does not use resources in a VPC")
    suppress(
        function, "CKV_AWS_173", "The variables do not contain secrets, and Lambda's own key encrypts them at rest"
    )
    return function


def named_log_group(scope: Construct, name: str, retention_days: int) -> tuple[logs.CfnLogGroup, logs.ILogGroup]:
    """Create a log group that is deleted with its stack. Return it, and an object that refers to it by name."""
    group = logs.CfnLogGroup(scope, "Logs", log_group_name=name, retention_in_days=retention_days)
    group.apply_removal_policy(RemovalPolicy.DESTROY)
    return group, logs.LogGroup.from_log_group_name(scope, "LogsByName", group.ref)


def depend_on_policy(resource: CfnResource, role: iam.IRole) -> None:
    """Create a resource after its role's policy. The role's ARN already implies a dependency on the role."""
    policy = role.node.find_child("DefaultPolicy").node.default_child
    assert isinstance(policy, iam.CfnPolicy)
    resource.add_override("DependsOn", [Stack.of(resource).get_logical_id(policy)])
