"""The function that runs drift detection once a day, and the alarms for drift and for a failed detection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as events_targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.artifacts.bundles import BundleFile
from stacks.constructs.daily_alarm import DAY, count_metric, daily_alarm
from stacks.constructs.lambda_function import lambda_function, named_log_group

LOG_RETENTION_DAYS = 90


@dataclass(frozen=True)
class Target:
    """The stacks in one account and region. `role_arn` names the role that reads them."""

    region: str
    role_arn: str
    stacks: tuple[str, ...]


class DriftWatch(Construct):
    """The function with its role, log group, schedule, metric and alarms."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        targets: Sequence[Target],
        hour_utc: int,
        code: BundleFile,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, id_)
        group, group_by_name = named_log_group(self, f"/trainstack/{name}/drift", LOG_RETENTION_DAYS)
        function = lambda_function(
            self,
            program="drift_watch",
            code=code,
            role=self._role(group, targets),
            log_group=group_by_name,
            timeout=Duration.minutes(15),
            environment={
                "TARGETS": json.dumps(
                    [{"region": one.region, "role_arn": one.role_arn, "stacks": one.stacks} for one in targets]
                )
            },
            no_dead_letter_queue="An alarm reports a failed detection, and the next detection runs within a day",
        )
        events.Rule(
            self,
            "Clock",
            schedule=events.Schedule.cron(minute="0", hour=str(hour_utc)),
            targets=[events_targets.LambdaFunction(function, retry_attempts=1)],
        )
        self._alarms(name, group, function, topic)

    def _role(self, log_group: logs.CfnLogGroup, targets: Sequence[Target]) -> iam.Role:
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        readers = list(dict.fromkeys(target.role_arn for target in targets))
        for sid, action, resources in (
            ("ReadStacks", ["sts:AssumeRole"], readers),
            ("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.attr_arn]),
        ):
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=action, resources=resources))
        return role

    def _alarms(self, name: str, log_group: logs.CfnLogGroup, function: lambda_.Function, topic: sns.ITopic) -> None:
        drifted = count_metric(
            self, "Drifted", log_group_name=log_group.ref, event="drift", field="drifted", name="DriftedResources"
        )
        for id_, metric, description in (
            (
                "DriftAlarm",
                drifted,
                f"Resources were changed outside CloudFormation; see log group {log_group.ref}",
            ),
            ("LookAlarm", function.metric_errors(period=DAY), f"Drift detection failed for the stacks of {name}"),
        ):
            daily_alarm(self, id_, metric, description).add_alarm_action(actions.SnsAction(topic))
