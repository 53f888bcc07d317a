"""Alarms for stalled training, old checkpoints, idle GPUs, missing nodes, failed boots and interruptions."""

from __future__ import annotations

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.config.limits import LimitsConfig
from stacks.config.observability import AlarmsConfig
from stacks.constructs.observability.run_metrics import MINUTE, RunMetrics, cause_metric
from stacks.functions.run_controller.causes import REMEDIES, TOO_FEW_NODES, Cause

OLD_CHECKPOINT_INTERVALS = 3
OLD_CHECKPOINT_MINUTES = 2
HOUR = Duration.hours(1)
CAUSE_PERIOD = Duration.minutes(5)
CONTROLLER_MINUTES = 15
# Gaps are filled with the last value. Otherwise, a log line that is a few seconds late would restart the minute count.
NODES = "FILL(nodes, REPEAT)"


class RunAlarms(Construct):
    """A fleet's alarms. Each alarm notifies the topic when it starts and when it ends.

    Descriptions start with the stack's name and `fleet`, which is empty for the first slot of a deployment.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        fleet: str,
        config: AlarmsConfig,
        limits: LimitsConfig,
        metrics: RunMetrics,
        topic: sns.ITopic,
        has_gpus: bool,
    ) -> None:
        super().__init__(scope, id_)
        self._fleet = f"{fleet}: " if fleet else ""
        self._metrics = metrics
        self._action = actions.SnsAction(topic)
        self.alarms = [
            self._heartbeat(config.heartbeat_missing_minutes),
            self._controller(),
            self._old_checkpoint(),
            *(self._too_few_nodes(cause, config.too_few_nodes_minutes) for cause in TOO_FEW_NODES),
            self._hourly(
                "BootFailures",
                config.boot_failures,
                "Nodes failed to boot; see their reports under nodes/ in the control bucket",
            ),
            self._hourly(
                "Interruptions",
                config.interruptions_per_hour,
                "Spot instances are often interrupted; add instance types or zones, or an on-demand base",
            ),
        ]
        self.alarms += self._spending(config.usd_per_hour, limits)
        if has_gpus and config.gpu_utilization_below_percent:
            self.alarms.append(self._idle_gpus(config.gpu_utilization_below_percent, config.gpu_idle_minutes))

    def _controller(self) -> cloudwatch.Alarm:
        """Create the alarm for a run controller that does not log. Without the controller, the fleet is never resized.

        The controller logs one line per minute. Missing data maps to INSUFFICIENT_DATA instead of ALARM. A new alarm
        starts in that state, so its creation does not send a notification.
        """
        alarm = self._alarm(
            "RunControllerSilent",
            self._metrics.metric("Nodes").with_(statistic="SampleCount"),
            threshold=1,
            minutes=CONTROLLER_MINUTES,
            operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            description=f"The run controller has not logged for {CONTROLLER_MINUTES} minutes and is not resizing the "
            "fleet; see the function's errors and its log group",
            missing=cloudwatch.TreatMissingData.MISSING,
        )
        alarm.add_insufficient_data_action(self._action)
        return alarm

    def _too_few_nodes(self, cause: Cause, minutes: int) -> cloudwatch.Alarm:
        """Create the alarm for a run that has too few nodes because of one cause.

        An alarm cannot include a log line, so each cause has an alarm. Periods of five minutes always contain a line.
        """
        return self._alarm(
            cause_metric(cause),
            self._metrics.metric(cause_metric(cause), CAUSE_PERIOD),
            threshold=1,
            minutes=int(minutes // CAUSE_PERIOD.to_minutes()),
            operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            description=f"The run has had too few nodes for {minutes} minutes. Cause: {cause}. Remedy: "
            f"{REMEDIES[cause]}. The run controller's log group contains the message",
        )

    def _spending(self, usd_per_hour: float | None, limits: LimitsConfig) -> list[cloudwatch.Alarm]:
        """Create the alarms for the ledger, and for the thresholds in the deployment file."""
        found = [
            self._alarm(
                "LedgerFailed",
                self._metrics.metric("LedgerFailed"),
                threshold=1,
                minutes=CONTROLLER_MINUTES,
                operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
                description=f"The run controller could not update the ledger for {CONTROLLER_MINUTES} minutes, so the "
                "run's limits use outdated costs; its log group contains the error as ledger_problem",
            )
        ]
        if usd_per_hour is not None:
            found.append(
                self._alarm(
                    "UsdPerHour",
                    self._metrics.metric("UsdPerHour"),
                    threshold=usd_per_hour,
                    minutes=CONTROLLER_MINUTES,
                    operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
                    description=f"The instances have cost at least {usd_per_hour:g} USD per hour for "
                    f"{CONTROLLER_MINUTES} minutes; `trainstack cost` lists them",
                )
            )
        if limits.usd is not None:
            warned = round(limits.usd * limits.warn_at_percent / 100, 2)
            found.append(
                self._alarm(
                    "Usd",
                    self._metrics.metric("Usd"),
                    threshold=warned,
                    minutes=1,
                    operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
                    description=f"The run's instances have cost {warned:g} USD. At {limits.usd:g} USD (limits.usd), "
                    "the run controller saves and stops the run",
                )
            )
        return found

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
            description=f"The fleet has nodes, but no training step was logged for {minutes} minutes; see the nodes' "
            "log group. The run controller's log group shows why it keeps the nodes",
        )

    def _old_checkpoint(self) -> cloudwatch.Alarm:
        """Create the alarm for saves that are late or do not finish.

        The checkpoint interval can be in steps, so the trainer logs the checkpoint's age in intervals with each step.
        """
        return self._alarm(
            "CheckpointAge",
            self._metrics.metric("CheckpointAgeIntervals"),
            threshold=OLD_CHECKPOINT_INTERVALS,
            minutes=OLD_CHECKPOINT_MINUTES,
            operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            description=f"The newest durable checkpoint is at least {OLD_CHECKPOINT_INTERVALS} checkpoint intervals "
            "old, and a failure without notice would lose that work; see the saves in the nodes' log group",
        )

    def _idle_gpus(self, percent: int, minutes: int) -> cloudwatch.Alarm:
        utilization = cloudwatch.MathExpression(
            # Without nodes, no GPU is idle, so use 100.
            expression=f"IF({NODES} > 0, FILL(gpu, REPEAT), 100)",
            using_metrics={"nodes": self._metrics.metric("Nodes"), "gpu": self._metrics.metric("GpuUtilization")},
            label="GPU utilization while nodes run",
            period=MINUTE,
        )
        return self._alarm(
            "GpusIdle",
            utilization,
            threshold=percent,
            minutes=minutes,
            operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            description=f"GPU utilization was below {percent}% for {minutes} minutes; check for a slow data path or a "
            "blocked trainer",
        )

    def _hourly(self, metric: str, threshold: int, description: str) -> cloudwatch.Alarm:
        return self._alarm(
            metric,
            self._metrics.metric(metric, HOUR),
            threshold=threshold,
            minutes=1,
            operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            description=f"{description} (at least {threshold} per hour)",
        )

    def _alarm(
        self,
        id_: str,
        metric: cloudwatch.IMetric,
        *,
        threshold: float,
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
            alarm_description=f"{Stack.of(self).stack_name}: {self._fleet}{description}",
        )
        alarm.add_alarm_action(self._action)
        alarm.add_ok_action(self._action)
        return alarm
