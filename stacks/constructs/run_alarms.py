"""What somebody is told of: machines that cost and do not train, boots that fail, pools that run dry."""

from __future__ import annotations

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.config.observability import AlarmsConfig
from stacks.constructs.run_metrics import MINUTE, RunMetrics

HOUR = Duration.hours(1)
CONTROLLER_MINUTES = 15
# Gaps are filled with the last value: a line a few seconds late would otherwise start the count of minutes anew.
NODES = "FILL(nodes, REPEAT)"


class RunAlarms(Construct):
    """The alarms of a deployment; each goes to the topic when it begins and when it ends."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: AlarmsConfig,
        metrics: RunMetrics,
        topic: sns.ITopic,
        has_gpus: bool,
    ) -> None:
        super().__init__(scope, id_)
        self._metrics = metrics
        self._action = actions.SnsAction(topic)
        self.alarms = [
            self._heartbeat(config.heartbeat_missing_minutes),
            self._controller(),
            self._hourly(
                "BootFailures",
                config.boot_failures,
                "Machines failed to boot; each one's report lies under nodes/ in the checkpoint bucket",
            ),
            self._hourly(
                "Interruptions",
                config.interruptions_per_hour,
                "Spot machines are taken often: add instance types or zones, or an on-demand base",
            ),
        ]
        if has_gpus and config.gpu_utilization_below_percent:
            self.alarms.append(self._idle_gpus(config.gpu_utilization_below_percent, config.gpu_idle_minutes))

    def _controller(self) -> cloudwatch.Alarm:
        """Tell when the run controller falls silent: nobody sizes the fleet then, not down either.

        It looks each minute. Missing lines are no breach here, but a state of their own, which a new alarm begins in:
        so that making it tells nobody.
        """
        alarm = self._alarm(
            "RunControllerSilent",
            self._metrics.metric("Nodes").with_(statistic="SampleCount"),
            threshold=1,
            minutes=CONTROLLER_MINUTES,
            operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            description=f"The run controller logged nothing for {CONTROLLER_MINUTES} minutes: nobody sizes the fleet; "
            "see the function's errors and its log group",
            missing=cloudwatch.TreatMissingData.MISSING,
        )
        alarm.add_insufficient_data_action(self._action)
        return alarm

    def _heartbeat(self, minutes: int) -> cloudwatch.Alarm:
        stuck = cloudwatch.MathExpression(
            expression=f"IF({NODES} > 0 AND FILL(steps, 0) == 0, 1, 0)",
            using_metrics={"nodes": self._metrics.metric("Nodes"), "steps": self._metrics.metric("Steps")},
            label="nodes without progress",
            period=MINUTE,
        )
        return self._alarm(
            "HeartbeatMissing",
            stuck,
            threshold=1,
            minutes=minutes,
            operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            description=f"The fleet has machines, and no training step was logged for {minutes} minutes; "
            "see the nodes' log group, and the run controller's for why it keeps them",
        )

    def _idle_gpus(self, percent: int, minutes: int) -> cloudwatch.Alarm:
        use = cloudwatch.MathExpression(
            # Without machines there is nothing idle: 100.
            expression=f"IF({NODES} > 0, FILL(gpu, REPEAT), 100)",
            using_metrics={"nodes": self._metrics.metric("Nodes"), "gpu": self._metrics.metric("GpuUtilization")},
            label="GPU use while there are nodes",
            period=MINUTE,
        )
        return self._alarm(
            "GpusIdle",
            use,
            threshold=percent,
            minutes=minutes,
            operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            description=f"The GPUs were used below {percent} % for {minutes} minutes: look for a slow data path or a "
            "trainer that waits",
        )

    def _hourly(self, metric: str, threshold: int, description: str) -> cloudwatch.Alarm:
        return self._alarm(
            metric,
            self._metrics.metric(metric, HOUR),
            threshold=threshold,
            minutes=1,
            operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            description=f"{description} ({threshold} in an hour)",
        )

    def _alarm(
        self,
        id_: str,
        metric: cloudwatch.IMetric,
        *,
        threshold: int,
        minutes: int,
        operator: cloudwatch.ComparisonOperator,
        description: str,
        missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING,
    ) -> cloudwatch.Alarm:
        alarm = cloudwatch.Alarm(
            self,
            id_,
            metric=metric,
            threshold=threshold,
            evaluation_periods=minutes,
            comparison_operator=operator,
            treat_missing_data=missing,
            alarm_description=f"{Stack.of(self).stack_name}: {description}",
        )
        alarm.add_alarm_action(self._action)
        alarm.add_ok_action(self._action)
        return alarm
