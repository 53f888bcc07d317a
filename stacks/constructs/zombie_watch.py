"""The function that searches once a day for resources without a run, and the alarms for its results and failures."""

from __future__ import annotations

import json
from typing import Any

import jsii
from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk.interfaces.aws_events import IRuleRef
from constructs import Construct

from bootstrap.documents.object_keys import run_prefix
from stacks.artifacts.bundles import BundleFile
from stacks.config import DeploymentConfig
from stacks.config.slots import slots_of
from stacks.constructs.daily_alarm import DAY, count_metric, daily_alarm
from stacks.constructs.lambda_function import lambda_function, named_log_group
from stacks.constructs.suppressions import suppress

TIMEOUT = Duration.minutes(5)
DESCRIBE_ACTIONS = (
    "cloudformation:ListStacks",
    *("ec2:DescribeAddresses", "ec2:DescribeCapacityReservations", "ec2:DescribeInstances", "ec2:DescribeNatGateways"),
    *("ec2:DescribeSnapshots", "ec2:DescribeSpotInstanceRequests", "ec2:DescribeVolumes", "ec2:DescribeVpcEndpoints"),
    "fsx:DescribeFileSystems",
)
"""The calls of the search that do not support resource-level permissions. Source (2026-11):
https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html"""


def log_group_name(config: DeploymentConfig) -> str:
    """Return the name of the function's log group."""
    return f"{config.log_group}/zombies"


class ZombieWatch(Construct):
    """The function with its role, log group, schedule, metric and alarms. It deletes nothing.

    Attributes:
        alarms: The alarm for zombies, and the alarm for a failed search.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        control: s3.IBucket,
        code: BundleFile,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._fleets = [slot.config for slot in slots_of(config)]
        group, group_by_name = named_log_group(self, log_group_name(config), config.observability.log_retention_days)
        function = lambda_function(
            self,
            program="zombie_watch",
            code=code,
            role=self._role(group, control),
            log_group=group_by_name,
            timeout=TIMEOUT,
            environment={
                "DEPLOYMENT": config.name,
                "RUN_PARAMETERS": json.dumps({one.name: one.run_parameter for one in self._fleets}),
                "RUN_MAY_BE_MISSING": str(config.pipeline is not None).lower(),
                "CONTROL_BUCKET": control.bucket_name,
            },
            no_dead_letter_queue="An alarm reports a failed search, and the next search runs within a day",
        )
        # A string of 40 characters, such as the names of parameters can form, looks like a secret key to checkov.
        suppress(function, "CKV_AWS_45", "The variables name the deployment, its run parameters and its control bucket")
        clock = events.Rule(self, "Clock", schedule=events.Schedule.rate(DAY))
        clock.add_target(FunctionTarget(function))
        function.add_permission(
            "ClockMayInvoke", principal=iam.ServicePrincipal("events.amazonaws.com"), source_arn=clock.rule_arn
        )
        self.alarms = self._alarms(group, function, actions.SnsAction(topic))

    def _role(self, log_group: logs.CfnLogGroup, control: s3.IBucket) -> iam.Role:
        stack = Stack.of(self)
        here = f"arn:{stack.partition}:ssm:{stack.region}:{stack.account}:parameter"
        statements: list[tuple[str, list[str], list[str], dict[str, Any] | None]] = [
            ("FindResources", list(DESCRIBE_ACTIONS), ["*"], None),
            ("ReadRunDocument", ["ssm:GetParameters"], [f"{here}{one.run_parameter}" for one in self._fleets], None),
            (
                "ListHeartbeats",
                ["s3:ListBucket"],
                [control.bucket_arn],
                {"StringLike": {"s3:prefix": [run_prefix(one.name, "*") for one in self._fleets]}},
            ),
            ("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.attr_arn], None),
        ]
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        for sid, allowed, resources, conditions in statements:
            role.add_to_policy(
                iam.PolicyStatement(sid=sid, actions=allowed, resources=resources, conditions=conditions)
            )
        reason = "Describe calls do not support resource-level permissions"
        suppress(role.node.find_child("DefaultPolicy"), "AwsSolutions-IAM5", reason, applies_to=[r"Resource::\*"])
        return role

    def _alarms(
        self, log_group: logs.CfnLogGroup, function: lambda_.Function, action: actions.SnsAction
    ) -> list[cloudwatch.Alarm]:
        found = count_metric(
            self, "Found", log_group_name=log_group.ref, event="zombies", field="found", name="Zombies"
        )
        alarms = []
        for id_, metric, description in (
            (
                "Zombies",
                found,
                "Some billed resources have no run. `trainstack zombies` lists them with their remedies; log group "
                f"{log_group_name(self._config)} contains the results of the search",
            ),
            (
                "SearchFailed",
                function.metric_errors(period=DAY),
                f"The daily search for resources without a run failed; see log group {log_group_name(self._config)}",
            ),
        ):
            alarm = daily_alarm(self, id_, metric, f"{Stack.of(self).stack_name}: {description}")
            alarm.add_alarm_action(action)
            alarm.add_ok_action(action)
            alarms.append(alarm)
        return alarms


@jsii.implements(events.IRuleTarget)
class FunctionTarget:
    """A function as a rule target. The CDK's own target names its permission after the path of the rule.

    In a pipeline's stage, the path and therefore the template would differ from those of a local deploy.
    """

    def __init__(self, function: lambda_.IFunction) -> None:
        self._function = function

    def bind(self, rule: IRuleRef, id: str | None = None) -> events.RuleTargetConfig:
        """Return the target configuration of a rule."""
        return events.RuleTargetConfig(
            arn=self._function.function_arn,
            retry_policy=events.CfnRule.RetryPolicyProperty(maximum_retry_attempts=1),
        )
