"""ObservabilityStack: what people see of a run and are told of it. Nothing that trains depends on it."""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.constructs.alarm_topic import AlarmTopic
from stacks.constructs.run_alarms import RunAlarms
from stacks.constructs.run_controller import log_group_name
from stacks.constructs.run_dashboard import run_dashboard
from stacks.constructs.run_metrics import RunMetrics
from stacks.constructs.spend_budget import spend_budget
from stacks.validators.run import gpus


class ObservabilityStack(Stack):
    """Metric filters, alarms, topic, dashboard, budget."""

    def __init__(self, scope: Construct, id_: str, *, config: DeploymentConfig, training: Stack, **kwargs: Any) -> None:
        super().__init__(scope, id_, **kwargs)
        # The log groups that are filtered are of that stack; by name, so that it can change without asking this one.
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
            metrics=metrics,
            topic=topic,
            has_gpus=has_gpus,
        )
        if config.observability.dashboard:
            run_dashboard(
                self,
                f"trainstack-{config.name}-{config.region}",
                metrics=metrics,
                alarms=alarms.alarms,
                log_groups=log_groups,
                has_gpus=has_gpus,
            )
        spend_budget(self, config, topic)
        CfnOutput(self, "AlarmTopic", value=topic.topic_arn)
        Tags.of(self).add("trainstack:deployment", config.name)
