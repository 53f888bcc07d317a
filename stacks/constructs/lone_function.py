"""A function of this project's own that runs one at a time: runtime, size, order of its parts, accepted findings."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.bundles import BundleFile
from stacks.constructs.accepted_findings import accept

MEMORY_MIB = 256


def lone_function(
    scope: Construct,
    *,
    program: str,
    code: BundleFile,
    role: iam.Role,
    log_group: logs.ILogGroup,
    timeout: Duration,
    environment: Mapping[str, str],
    missed: str,
) -> lambda_.Function:
    """Make the function of a construct, as its default child.

    Args:
        scope: The construct.
        program: Package below `stacks/functions/`, whose `handler.handler` is called.
        code: The bundle that holds it.
        role: Its role, with the policy that it needs: the function is made after that.
        log_group: Where its lines go.
        timeout: Longest that a call may take.
        environment: Variables; no secrets.
        missed: Why no queue keeps what a failed call was about.
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
        # Two at once would work against each other.
        reserved_concurrent_executions=1,
        environment=environment,
    )
    # After the role's policy; the library would name the role too, which its ARN implies.
    policy, resource = role.node.find_child("DefaultPolicy").node.default_child, function.node.default_child
    assert isinstance(policy, iam.CfnPolicy) and isinstance(resource, lambda_.CfnFunction)
    resource.add_override("DependsOn", [Stack.of(scope).get_logical_id(policy)])
    accept(function, "AwsSolutions-L1", "The runtime that the program is tested on; a newer one is our change")
    accept(function, "CKV_AWS_116", missed)
    accept(function, "CKV_AWS_117", "It calls AWS only, and reads nothing that is in a VPC")
    accept(function, "CKV_AWS_173", "Names and numbers, no secrets; encrypted with Lambda's own key at rest")
    return function
