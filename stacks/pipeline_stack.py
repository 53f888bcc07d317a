"""PipelineStack: what carries merged changes, a pipeline in AWS or roles for GitHub's workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.bootstrap_roles import LOOKUP, role_arn
from stacks.bundles import function_bundle
from stacks.config import STACKS, DeploymentConfig, load
from stacks.config.delivery import PipelineConfig
from stacks.constructs.alarm_topic import AlarmTopic
from stacks.constructs.bucket import BucketTraits, access_log_bucket, data_bucket
from stacks.constructs.delivery_boundary import DeliveryBoundary
from stacks.constructs.delivery_pipeline import DeliveryPipeline, DeliveryStage, stage_name
from stacks.constructs.drift_watch import DriftWatch, Place
from stacks.constructs.github_access import GithubAccess
from stacks.constructs.log_encryption import LogEncryption
from stacks.deployment import BUNDLES, add_stacks
from stacks.errors import ConfigError, Problem

ARTIFACT_DAYS = 90
"""Days that a run's artifacts are kept: a roll-back takes them from the last run that was good."""


class PipelineStack(Stack):
    """The pipeline with its key, bucket, topic and drift watch; the roles of GitHub's workflows."""

    def __init__(
        self, scope: Construct, id_: str, *, config: DeploymentConfig, config_file: Path, **kwargs: Any
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self._config = config
        DeliveryBoundary(self, "Boundary", deployment=config.name)
        if config.delivery.pipeline is not None:
            self._add_pipeline(config.delivery.pipeline, config_file)
        if config.delivery.github is not None:
            access = GithubAccess(self, "Github", config=config.delivery.github)
            CfnOutput(self, "DeployRole", value=access.deploy_role.role_arn)
            CfnOutput(self, "ReadRole", value=access.read_role.role_arn)
        Tags.of(self).add("trainstack:deployment", config.name)

    def _add_pipeline(self, config: PipelineConfig, config_file: Path) -> None:
        loaded = [(name, load(Path(name))) for name in config.stages]
        stages = [DeliveryStage(file=name, name=stage_name(one), config=one) for name, one in loaded]
        key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {self._config.name}: artifacts of its pipeline",
            enable_key_rotation=True,
            # What it encrypts is made anew from the repository.
            removal_policy=RemovalPolicy.DESTROY,
        )
        LogEncryption(key).apply((self,))
        log_group = logs.CfnLogGroup(
            self,
            "Logs",
            log_group_name=f"/trainstack/{self._config.name}/pipeline",
            retention_in_days=ARTIFACT_DAYS,
        )
        log_group.apply_removal_policy(RemovalPolicy.DESTROY)
        pipeline = DeliveryPipeline(
            self,
            "Pipeline",
            config=config,
            own_file=_from_root(config_file),
            stages=stages,
            add_stacks=lambda stage, one: add_stacks(stage, one, may_destroy=False),
            artifacts=self._artifacts(key),
            log_group=logs.LogGroup.from_log_group_name(self, "LogsByName", log_group.ref),
        )
        topic = AlarmTopic(
            self,
            "Topic",
            deployment=f"{self._config.name} pipeline",
            emails=config.emails,
            publishers=("CloudWatch", "Events"),
        ).topic
        self._notify(pipeline, topic)
        DriftWatch(
            self,
            "DriftWatch",
            name=self._config.name,
            places=[self._place(stage) for stage in stages],
            hour_utc=config.drift_hour_utc,
            code=function_bundle("drift_watch", BUNDLES),
            topic=topic,
        )
        CfnOutput(self, "PipelineName", value=pipeline.pipeline.pipeline_name)

    def _artifacts(self, key: kms.Key) -> s3.Bucket:
        requests = access_log_bucket(self, "AccessLogs", keep_days=ARTIFACT_DAYS, removal=RemovalPolicy.DESTROY)
        old = s3.LifecycleRule(id="OldRuns", expiration=Duration.days(ARTIFACT_DAYS))
        return data_bucket(
            self,
            "Artifacts",
            key=key,
            access_logs=requests,
            removal=RemovalPolicy.DESTROY,
            traits=BucketTraits(rules=(old,)),
        )

    def _place(self, stage: DeliveryStage) -> Place:
        account = stage.config.account or self.account
        return Place(
            region=stage.config.region,
            role_arn=role_arn(*LOOKUP, partition=self.partition, account=account, region=stage.config.region),
            stacks=tuple(f"{stage.config.name}-{stack}" for stack in STACKS),
        )

    def _notify(self, pipeline: DeliveryPipeline, topic: sns.ITopic) -> None:
        """Tell of an approval that waits and of a run that failed.

        Source (2026-11): https://docs.aws.amazon.com/codepipeline/latest/userguide/detect-state-changes-cloudwatch-events.html
        """
        of_this = {"pipeline": [pipeline.pipeline.pipeline_name]}
        for id_, kind, detail in (
            ("RunFailed", "CodePipeline Pipeline Execution State Change", {"state": ["FAILED"]}),
            (
                "ApprovalWaits",
                "CodePipeline Action Execution State Change",
                {"state": ["STARTED"], "type": {"category": ["Approval"]}},
            ),
        ):
            pattern = events.EventPattern(source=["aws.codepipeline"], detail_type=[kind], detail=of_this | detail)
            events.Rule(self, id_, event_pattern=pattern, targets=[targets.SnsTopic(topic)])


def _from_root(file: Path) -> str:
    """Return a deployment file's path in the repository: the pipeline's checkout is somewhere else.

    Raises:
        ConfigError: It is not in the repository.
    """
    root, path = Path.cwd().resolve(), file.resolve()
    if not path.is_relative_to(root):
        rule = "has a pipeline, and is not in the repository that the pipeline checks out"
        raise ConfigError(str(file), [Problem("the file", str(file), rule, f"move it below {root}")])
    return path.relative_to(root).as_posix()
