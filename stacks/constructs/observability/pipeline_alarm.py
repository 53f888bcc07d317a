"""The alarm for a pipeline's failed executions."""

from __future__ import annotations

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct


def pipeline_alarm(scope: Construct, id_: str, *, machine_name: str, topic: sns.ITopic) -> cloudwatch.Alarm:
    """Create the alarm, which notifies the topic when an execution has failed.

    It does not notify the topic when it ends: five minutes without another failure do not repair the pipeline. The
    metric's dimension is the ARN of the state machine, so the alarm does not depend on the stack of the pipeline.
    Source (2026-11): https://docs.aws.amazon.com/step-functions/latest/dg/procedure-cw-metrics.html
    """
    stack = Stack.of(scope)
    arn = f"arn:{stack.partition}:states:{stack.region}:{stack.account}:stateMachine:{machine_name}"
    alarm = cloudwatch.Alarm(
        scope,
        id_,
        metric=cloudwatch.Metric(
            namespace="AWS/States",
            metric_name="ExecutionsFailed",
            dimensions_map={"StateMachineArn": arn},
            statistic="Sum",
            period=Duration.minutes(5),
        ),
        threshold=0,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        evaluation_periods=1,
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        alarm_description=f"{stack.stack_name}: an execution of the pipeline failed; `trainstack pipeline status` "
        "shows the step and the cause",
    )
    alarm.add_alarm_action(actions.SnsAction(topic))
    return alarm
