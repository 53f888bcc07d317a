"""Recognized changes to alarm, notification, schedule and budget resources."""

from __future__ import annotations

from collections.abc import Mapping

from stacks.changes.approvals.known import TAGS, TOPIC, Known
from stacks.changes.approvals.rules import (
    any_of,
    in_new_resources,
    no_increase,
    own,
    passes,
    stricter_alarm,
    tags,
)

MONITORING: Mapping[str, Known] = {
    "AWS::CloudWatch::Dashboard": Known(
        {**TAGS, "DashboardBody": passes, "DashboardName": passes}, added="passes", removed="passes"
    ),
    "AWS::CloudWatch::Alarm": Known(
        {
            **TAGS,
            **{name: in_new_resources(passes) for name in (
                "Namespace", "MetricName", "Metrics", "Dimensions", "Statistic", "ExtendedStatistic",
                "ComparisonOperator", "TreatMissingData",
            )},
            **{name: own(TOPIC) for name in ("OKActions", "InsufficientDataActions")},
            "AlarmActions": in_new_resources(own(TOPIC)),
            "AlarmDescription": passes,
            "AlarmName": in_new_resources(passes),
            "Threshold": stricter_alarm,
            "EvaluationPeriods": no_increase,
            "DatapointsToAlarm": no_increase,
            "Period": no_increase,
        },
        added="passes",
    ),
    "AWS::SNS::Topic": Known({**TAGS, "DisplayName": passes}),
    "AWS::SQS::Queue": Known(TAGS),
    "AWS::StepFunctions::StateMachine": Known(TAGS),
    "AWS::Lambda::EventSourceMapping": Known(TAGS),
    "AWS::SNS::Subscription": Known(
        {
            "TopicArn": in_new_resources(own(TOPIC)),
            "Protocol": in_new_resources(any_of("email")),
            "Endpoint": in_new_resources(passes),
        },
        added="passes",
    ),
    "AWS::Logs::MetricFilter": Known(
        {name: in_new_resources(passes) for name in ("LogGroupName", "FilterPattern", "MetricTransformations")},
        added="passes",
    ),
    "AWS::Events::Rule": Known({**TAGS, "Description": passes, "State": any_of("ENABLED", default="ENABLED")}),
    "AWS::Budgets::Budget": Known(
        {
            "Budget/BudgetLimit/Amount": no_increase,
            **{f"Budget/{name}": in_new_resources(passes) for name in (
                "BudgetName", "BudgetType", "TimeUnit", "BudgetLimit/Unit", "CostFilters", "CostTypes",
            )},
            "NotificationsWithSubscribers": in_new_resources(passes),
            "ResourceTags": tags,
        },
        added="passes",
    ),
}  # fmt: skip
