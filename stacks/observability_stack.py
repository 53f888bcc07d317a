"""ObservabilityStack: a deployment's metrics, alarms, dashboard, budget and daily search for zombies.

No other stack depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.artifacts.bundles import function_bundle
from stacks.capacity.plan import gpus
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.config.slots import Slot, slots_of
from stacks.constructs.observability.alarm_topic import AlarmTopic
from stacks.constructs.observability.budget import monthly_budget
from stacks.constructs.observability.pipeline_alarm import pipeline_alarm
from stacks.constructs.observability.run_alarms import RunAlarms
from stacks.constructs.observability.run_dashboard import SlotView, run_dashboard
from stacks.constructs.observability.run_metrics import RunMetrics
from stacks.constructs.run_controller import log_group_name
from stacks.constructs.workflow.workflow_stack import machine_name
from stacks.constructs.zombie_watch import ZombieWatch
from stacks.storage_stack import StorageStack


class ObservabilityStack(Stack):
    """The metric filters, alarms, topic, dashboard, budget and the search for resources without a run."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        storage: StorageStack,
        trainings: Sequence[Stack],
        bundle_directory: Path,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        # The filtered log groups belong to the slots' stacks. This stack refers to them by name instead of an export,
        # so those stacks can change independently.
        for training in trainings:
            self.add_stack_dependency(training)
        topic = AlarmTopic(
            self,
            "Topic",
            deployment=config.name,
            emails=config.observability.emails,
            publishers=("CloudWatch", "Budgets"),
        ).topic
        views = [self._view(slot, topic) for slot in slots_of(config)]
        found: list[cloudwatch.Alarm] = []
        if config.observability.daily_zombie_search:
            watch = ZombieWatch(
                self,
                "Zombies",
                config=config,
                control=storage.control,
                code=function_bundle("zombie_watch", bundle_directory),
                topic=topic,
            )
            found += watch.alarms
        if config.pipeline is not None:
            found.append(pipeline_alarm(self, "PipelineFailed", machine_name=machine_name(config), topic=topic))
        if config.observability.dashboard:
            run_dashboard(self, f"trainstack-{config.name}-{config.region}", slots=views, alarms=found)
        monthly_budget(self, config, topic)
        CfnOutput(self, "AlarmTopic", value=topic.topic_arn)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _view(self, slot: Slot, topic: sns.ITopic) -> SlotView:
        """Create the metrics and alarms of a slot, and return its part of the dashboard."""
        config = slot.config
        scope = Construct(self, f"Slot-{slot.suffix}") if slot.suffix else self
        node_log, controller_log = config.log_group, log_group_name(config)
        has_gpus = gpus(config) > 0
        metrics = RunMetrics(scope, "Metrics", deployment=config.name, node_log=node_log, controller_log=controller_log)
        alarms = RunAlarms(
            scope,
            "Alarms",
            fleet=config.name if slot.suffix else "",
            config=config.observability.alarms,
            limits=config.limits,
            metrics=metrics,
            topic=topic,
            has_gpus=has_gpus,
        )
        return SlotView(config.name, metrics, alarms.alarms, (node_log, controller_log), has_gpus)
