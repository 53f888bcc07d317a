"""The function that compares stacks with their templates once a day, and the alarms when they differ or it cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.bundles import BundleFile
from stacks.constructs.lone_function import lone_function

LOG_RETENTION_DAYS = 90


@dataclass(frozen=True)
class Place:
    """An account and region with stacks of ours; `role_arn` reads there."""

    region: str
    role_arn: str
    stacks: tuple[str, ...]


class DriftWatch(Construct):
    """Function, role, log group, clock, metric, alarms."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        places: Sequence[Place],
        hour_utc: int,
        code: BundleFile,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, id_)
        log_group = logs.CfnLogGroup(
            self,
            "Logs",
            log_group_name=f"/trainstack/{name}/drift",
            retention_in_days=LOG_RETENTION_DAYS,
        )
        log_group.apply_removal_policy(RemovalPolicy.DESTROY)
        role = self._role(log_group, places)
        function = lone_function(
            self,
            program="drift_watch",
            code=code,
            role=role,
            log_group=logs.LogGroup.from_log_group_name(self, "LogsByName", log_group.ref),
            timeout=Duration.minutes(15),
            environment={
                "PLACES": json.dumps(
                    [{"region": one.region, "role_arn": one.role_arn, "stacks": one.stacks} for one in places]
                )
            },
            missed="An alarm tells of a failed look, and the next one is a day later at most",
        )
        events.Rule(
            self,
            "Clock",
            schedule=events.Schedule.cron(minute="0", hour=str(hour_utc)),
            targets=[targets.LambdaFunction(function, retry_attempts=1)],
        )
        self._alarms(name, log_group, function, topic)

    def _role(self, log_group: logs.CfnLogGroup, places: Sequence[Place]) -> iam.Role:
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        readers = list(dict.fromkeys(place.role_arn for place in places))
        for sid, action, resources in (
            ("ReadStacks", ["sts:AssumeRole"], readers),
            ("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.attr_arn]),
        ):
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=action, resources=resources))
        return role

    def _alarms(self, name: str, log_group: logs.CfnLogGroup, function: lambda_.Function, topic: sns.ITopic) -> None:
        namespace, day = f"Trainstack/{Stack.of(self).stack_name}", Duration.days(1)
        logs.CfnMetricFilter(
            self,
            "Drifted",
            log_group_name=log_group.ref,
            filter_pattern='{ $.event = "drift" }',
            metric_transformations=[
                logs.CfnMetricFilter.MetricTransformationProperty(
                    metric_namespace=namespace, metric_name="DriftedResources", metric_value="$.drifted", unit="Count"
                )
            ],
        )
        drifted = cloudwatch.Metric(
            namespace=namespace, metric_name="DriftedResources", statistic="Maximum", period=day
        )
        failed = function.metric_errors(period=day)
        for id_, metric, words in (
            ("DriftAlarm", drifted, f"Somebody changed resources beside their templates: log group {log_group.ref}"),
            ("LookAlarm", failed, f"Stacks of {name} could not be compared with their templates"),
        ):
            alarm = cloudwatch.Alarm(
                self,
                id_,
                metric=metric,
                threshold=0,
                comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
                evaluation_periods=1,
                treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
                alarm_description=words,
            )
            alarm.add_alarm_action(actions.SnsAction(topic))
