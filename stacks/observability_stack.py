"""ObservabilityStack: a deployment's metrics, alarms, dashboard, budget and daily search for zombies.

No other stack depends on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from constructs import Construct

from stacks.artifacts.bundles import function_bundle
from stacks.capacity.plan import gpus
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.observability.alarm_topic import AlarmTopic
from stacks.constructs.observability.budget import monthly_budget
from stacks.constructs.observability.run_alarms import RunAlarms
from stacks.constructs.observability.run_dashboard import run_dashboard
from stacks.constructs.observability.run_metrics import RunMetrics
from stacks.constructs.run_controller import log_group_name
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
        training: Stack,
        bundle_directory: Path,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        # The filtered log groups belong to the TrainingStack. This stack refers to them by name instead of an export.
        # The TrainingStack can therefore change independently.
        self.add_stack_dependency(training)
        log_groups = [config.log_group, log_group_name(config)]
        has_gpus = gpus(config) > 0
        topic = AlarmTopic(
            self,
            "Topic",
            deployment=config.name,
            emails=config.observability.emails,
            publishers=("CloudWatch", "Budgets"),
        ).topic
        metrics = RunMetrics(
            self, "Metrics", deployment=config.name, node_log=log_groups[0], controller_log=log_groups[1]
        )
        alarms = RunAlarms(
            self,
            "Alarms",
            config=config.observability.alarms,
            limits=config.limits,
            metrics=metrics,
            topic=topic,
            has_gpus=has_gpus,
        )
        found = alarms.alarms
        if config.observability.daily_zombie_search:
            watch = ZombieWatch(
                self,
                "Zombies",
                config=config,
                control=storage.control,
                code=function_bundle("zombie_watch", bundle_directory),
                topic=topic,
            )
            found = [*found, *watch.alarms]
        if config.observability.dashboard:
            run_dashboard(
                self,
                f"trainstack-{config.name}-{config.region}",
                metrics=metrics,
                alarms=found,
                log_groups=log_groups,
                has_gpus=has_gpus,
            )
        monthly_budget(self, config, topic)
        CfnOutput(self, "AlarmTopic", value=topic.topic_arn)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)
