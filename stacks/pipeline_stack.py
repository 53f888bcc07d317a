"""PipelineStack: delivers merged changes through a pipeline in AWS, or creates roles for GitHub workflows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.artifacts.bundles import BUNDLES, function_bundle, gate_bundle
from stacks.config import DeploymentConfig
from stacks.config.delivery import PipelineConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.cdk_bootstrap_roles import qualifier_of, role_arn
from stacks.constructs.delivery.delivery_boundary import DeliveryBoundary
from stacks.constructs.delivery.delivery_pipeline import DeliveryPipeline, DeliveryStage, stage_name
from stacks.constructs.delivery.drift_watch import DriftWatch, Target
from stacks.constructs.delivery.github_access import GithubAccess
from stacks.constructs.lambda_function import named_log_group
from stacks.constructs.observability.alarm_topic import AlarmTopic
from stacks.constructs.observability.log_encryption import LogEncryption
from stacks.constructs.storage.bucket import BucketOptions, access_log_bucket, data_bucket
from stacks.errors import ConfigError, Problem
from stacks.loading import load

ARTIFACT_DAYS = 90
"""The artifact retention period in days. A rollback uses the artifacts from the last successful pipeline run."""


class PipelineStack(Stack):
    """The pipeline with its key, bucket, topic and drift watch, and the roles for GitHub workflows.

    `add_stacks` adds a deployment's stacks to a pipeline stage.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        config_file: Path,
        add_stacks: Callable[[Construct, DeploymentConfig], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self._config = config
        self._add_stacks = add_stacks
        DeliveryBoundary(self, "Boundary", deployment=config.name)
        if config.delivery.pipeline is not None:
            self._add_pipeline(config.delivery.pipeline, config_file)
        if config.delivery.github is not None:
            access = GithubAccess(self, "Github", config=config.delivery.github)
            CfnOutput(self, "DeployRole", value=access.deploy_role.role_arn)
            CfnOutput(self, "ReadRole", value=access.read_role.role_arn)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _add_pipeline(self, config: PipelineConfig, config_file: Path) -> None:
        loaded = [(name, load(Path(name))) for name in config.stages]
        stages = [DeliveryStage(file=name, name=stage_name(one), config=one) for name, one in loaded]
        key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {self._config.name}: pipeline artifacts",
            enable_key_rotation=True,
            # Artifacts can be rebuilt from the repository.
            removal_policy=RemovalPolicy.DESTROY,
        )
        LogEncryption(key).apply((self,))
        _, group_by_name = named_log_group(self, f"/trainstack/{self._config.name}/pipeline", ARTIFACT_DAYS)
        pipeline = DeliveryPipeline(
            self,
            "Pipeline",
            config=config,
            own_file=_from_root(config_file),
            stages=stages,
            gate_code=gate_bundle(BUNDLES),
            add_stacks=self._add_stacks,
            artifacts=self._artifacts(key),
            log_group=group_by_name,
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
            targets=[self._target(stage) for stage in stages],
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
            options=BucketOptions(rules=(old,)),
        )

    def _target(self, stage: DeliveryStage) -> Target:
        account = stage.config.account or self.account
        return Target(
            region=stage.config.region,
            role_arn=role_arn(
                "lookup", qualifier_of(self), partition=self.partition, account=account, region=stage.config.region
            ),
            stacks=stage.config.stack_names,
        )

    def _notify(self, pipeline: DeliveryPipeline, topic: sns.ITopic) -> None:
        """Send a message to the topic about each pending approval, failed action and failed pipeline run.

        Source (2026-11): https://docs.aws.amazon.com/codepipeline/latest/userguide/detect-state-changes-cloudwatch-events.html
        """
        of_this = {"pipeline": [pipeline.pipeline.pipeline_name]}
        run, action = (f"CodePipeline {kind} Execution State Change" for kind in ("Pipeline", "Action"))
        field = events.EventField.from_path
        name, execution = field("$.detail.pipeline"), field("$.detail.execution-id")
        step = f"{field('$.detail.stage')}/{field('$.detail.action')}"
        failed = (
            f"Pipeline {name}: {step} failed: {field('$.detail.execution-result.external-execution-summary')} "
            f"({field('$.detail.execution-result.error-code')}). "
            f"Details: {field('$.detail.execution-result.external-execution-url')} Run: {execution}"
        )
        ended = (
            f"Pipeline {name}: run {execution} failed. A failed stage is rolled back to its last successful run; the "
            "stages before it keep the change. Fix the cause and merge again, or revert the merge."
        )
        waits = (
            f"Pipeline {name}: {step} waits for approval. Read the review in the log of the preceding gate, then "
            f"approve or reject the change in CodePipeline. Run: {execution}"
        )
        for id_, kind, detail, text in (
            ("RunFailed", run, {"state": ["FAILED"]}, ended),
            ("ActionFailed", action, {"state": ["FAILED"]}, failed),
            ("ApprovalWaits", action, {"state": ["STARTED"], "type": {"category": ["Approval"]}}, waits),
        ):
            pattern = events.EventPattern(source=["aws.codepipeline"], detail_type=[kind], detail=of_this | detail)
            message = events.RuleTargetInput.from_text(text)
            events.Rule(self, id_, event_pattern=pattern, targets=[targets.SnsTopic(topic, message=message)])


def _from_root(file: Path) -> str:
    """Return a deployment file's path relative to the repository root. The pipeline checks it out elsewhere.

    Raises:
        ConfigError: The file is outside the repository.
    """
    root, path = Path.cwd().resolve(), file.resolve()
    if not path.is_relative_to(root):
        rule = "must be in the repository because the pipeline only checks out the repository"
        raise ConfigError(str(file), [Problem("the file", str(file), rule, f"move it below {root}")])
    return path.relative_to(root).as_posix()
