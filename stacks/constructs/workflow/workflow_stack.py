"""WorkflowStack: the state machine of a pipeline, and the function that runs its members in the deployment's slots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Duration, Stack, Tags
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.object_keys import control_prefix
from stacks.artifacts.bundles import code_bundle, function_bundle
from stacks.artifacts.documents import check_parameter_size
from stacks.artifacts.pipeline_items import step_items, write_items
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.config.pipeline.steps import Step, ordered, slots_by_step
from stacks.config.slots import slots_of
from stacks.constructs.event_patterns import object_created
from stacks.constructs.lambda_function import depend_on_policy, lambda_function, named_log_group
from stacks.constructs.nodes.instance_role import through_s3
from stacks.constructs.suppressions import suppress
from stacks.constructs.workflow.definition import Items, definition
from stacks.constructs.zombie_watch import FunctionTarget
from stacks.errors import ConfigError

TIMEOUT = Duration.minutes(5)
"""The function reads the results of up to 10,000 members at the end of a step."""
ANY_TASK = "AWS's reference lists no resources for answers to tasks; each answer needs the secret token of its task"
"""Source: https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsstepfunctions.html (2026-11)."""
STATUS_CHANGE = "Step Functions Execution Status Change"


def machine_name(config: DeploymentConfig) -> str:
    """Return the fixed name of the state machine. With a generated one, its role and its function would need it."""
    return f"trainstack-{config.name}"


def log_group_name(config: DeploymentConfig) -> str:
    """Return the name of the function's log group."""
    return f"{config.log_group}/pipeline-runs"


@dataclass(frozen=True)
class Buckets:
    """The deployment's buckets."""

    datasets: s3.IBucket
    checkpoints: s3.IBucket
    control: s3.IBucket


class WorkflowStack(Stack):
    """The state machine and its function."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        buckets: Buckets,
        key: kms.IKey,
        bundle_directory: Path,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        assert config.pipeline is not None, "checked by the caller"
        self._config = config
        self._buckets = buckets
        self._key = key
        self._steps = ordered(config.pipeline)
        fleets = {each.suffix: each.config.name for each in slots_of(config)}
        self._fleets = {name: [fleets[end] for end in ends] for name, ends in slots_by_step(config).items()}
        self._all_fleets = list(fleets.values())
        user_code = None if config.training.code is None else Path(config.training.code)
        code = code_bundle(bundle_directory, user_code)
        bundle = s3_assets.Asset(self, "CodeBundle", path=str(code.path))
        document = {"bucket": bundle.s3_bucket_name, "key": bundle.s3_object_key, "sha256": code.sha256}
        items = {step.name: self._items(step, code.sha256) for step in self._steps}
        self._machine_arn = self._arn("states", f"stateMachine:{machine_name(config)}")
        function = self._function(bundle_directory, document)
        role = self._machine_role(function.function_arn, items)
        machine = sfn.CfnStateMachine(
            self,
            "Machine",
            state_machine_name=machine_name(config),
            state_machine_type="STANDARD",
            role_arn=role.role_arn,
            definition_string=json.dumps(
                definition(self._steps, items, self._fleets, function.function_arn), separators=(",", ":")
            ),
        )
        depend_on_policy(machine, role)
        suppress(machine, "AwsSolutions-SF1", "The execution history, which is kept for 90 days, contains every event")
        suppress(machine, "AwsSolutions-SF2", "The function's log lines name the execution and the run")
        suppress(machine, "CKV_AWS_284", "The function's log lines name the execution and the run")
        suppress(machine, "CKV_AWS_285", "The execution history, which is kept for 90 days, contains every event")
        self._rules(function)
        CfnOutput(self, "PipelineArn", value=machine.ref)
        Tags.of(self).add(DEPLOYMENT_TAG, config.name)

    def _arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def _items(self, step: Step, code_sha256: str) -> Items:
        """Publish the members of a step as a file asset.

        Raises:
            ConfigError: A run document is too large for a parameter.
        """
        items = step_items(self._config, step, code_sha256)
        try:
            check_parameter_size(max((json.dumps(each["document"]) for each in items), key=len), self._config.name)
        except ConfigError as error:
            raise ConfigError(f"{error.source}, step {step.name}", error.problems) from error
        asset = s3_assets.Asset(self, f"Members-{step.name}", path=str(write_items(items)))
        return Items(asset.s3_bucket_name, asset.s3_object_key, len(items))

    def _function(self, bundle_directory: Path, code: dict[str, str]) -> Any:
        config, buckets = self._config, self._buckets
        group, group_by_name = named_log_group(self, log_group_name(config), config.observability.log_retention_days)
        return lambda_function(
            self,
            program="pipeline_runs",
            code=function_bundle("pipeline_runs", bundle_directory),
            role=self._function_role(group),
            log_group=group_by_name,
            timeout=TIMEOUT,
            environment={
                "DEPLOYMENT": config.name,
                "CONTROL_BUCKET": buckets.control.bucket_name,
                "CHECKPOINT_BUCKET": buckets.checkpoints.bucket_name,
                "DATASET_BUCKET": buckets.datasets.bucket_name,
                "SCHEMA_VERSION": str(SCHEMA_VERSION),
                "CODE": self.to_json_string(code),
                "FLEETS": json.dumps(self._all_fleets),
            },
            no_dead_letter_queue="The clock invokes the function again within a minute, and the state machine retries",
        )

    def _function_role(self, log_group: logs.CfnLogGroup) -> iam.Role:
        control, datasets = self._buckets.control, self._buckets.datasets
        fleets = self._all_fleets
        records = {
            name: [control.arn_for_objects(f"{control_prefix(fleet, '*')}{name}.json") for fleet in fleets]
            for name in ("outcome", "status")
        }
        parameters = {
            name: [self._arn("ssm", f"parameter/trainstack/{fleet}/{name}") for fleet in fleets]
            for name in ("run", "desired")
        }
        tokens = ["states:SendTaskSuccess", "states:SendTaskFailure", "states:SendTaskHeartbeat"]
        # A missing object is reported as such only with ListBucket. GetObject has no prefix that a condition could use.
        buckets = [control.bucket_arn, datasets.bucket_arn]
        statements: list[tuple[str, list[str], list[str], dict[str, object] | None]] = [
            ("KeepMembers", ["s3:GetObject", "s3:PutObject"], [control.arn_for_objects("pipelines/*")], None),
            ("ReadRecords", ["s3:GetObject"], [*records["outcome"], *records["status"]], None),
            ("LiftOutcomes", ["s3:DeleteObject"], records["outcome"], None),
            ("ListObjects", ["s3:ListBucket"], buckets, None),
            ("UseKeyThroughS3", ["kms:Decrypt", "kms:GenerateDataKey"], [self._key.key_arn], through_s3(self)),
            ("StartRuns", ["ssm:PutParameter"], parameters["run"], None),
            ("StopRuns", ["ssm:PutParameter", "ssm:DeleteParameter"], parameters["desired"], None),
            ("AnswerTasks", tokens, ["*"], None),
            ("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.attr_arn], None),
        ]
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        for sid, actions, resources, conditions in statements:
            role.add_to_policy(
                iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
            )
        policy = role.node.find_child("DefaultPolicy")
        for reason, part in (
            ("The execution determines the names of its objects, under one prefix", r"Resource::.*/pipelines/\*"),
            ("The run determines the names of its records", r"Resource::.*/runs/.*/\*/control/.*"),
            (ANY_TASK, r"Resource::\*"),
        ):
            suppress(policy, "AwsSolutions-IAM5", reason, applies_to=[part])
        suppress(policy, "CKV_AWS_111", ANY_TASK)
        return role

    def _machine_role(self, function_arn: str, items: dict[str, Items]) -> iam.Role:
        """Return the role of the state machine, which also starts and redrives the children of Map states.

        Source (2026-11): https://docs.aws.amazon.com/step-functions/latest/dg/iam-policies-eg-dist-map.html
        """
        name = machine_name(self._config)
        objects = [f"arn:{self.partition}:s3:::{each.bucket}/{each.key}" for each in items.values()]
        executions = self._arn("states", f"execution:{name}")
        statements = [
            ("InvokeFunction", ["lambda:InvokeFunction"], [function_arn]),
            ("ReadMembers", ["s3:GetObject"], objects),
            ("StartChildren", ["states:StartExecution"], [self._machine_arn]),
            ("FollowChildren", ["states:DescribeExecution", "states:StopExecution"], [f"{executions}:*"]),
            ("RedriveChildren", ["states:RedriveExecution"], [f"{executions}/*:*"]),
        ]
        role = iam.Role(
            self,
            "MachineRole",
            assumed_by=iam.ServicePrincipal(
                "states.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": self.account},
                    "ArnLike": {"aws:SourceArn": self._machine_arn},
                },
            ),
        )
        for sid, actions, resources in statements:
            role.add_to_policy(iam.PolicyStatement(sid=sid, actions=actions, resources=resources))
        reason = "Executions have generated names"
        policy = role.node.find_child("DefaultPolicy")
        suppress(policy, "AwsSolutions-IAM5", reason, applies_to=[r"Resource::.*execution:.*\*"])
        return role

    def _rules(self, function: Any) -> None:
        """Invoke the function when a run's outcome arrives or an execution's status changes, and every minute."""
        # The names of all slots' fleets begin with the deployment's name. A list of them could exceed the maximum size
        # of a pattern, 4,096 characters. Source (2026-11):
        # https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-quota.html
        fleets = (self._config.name, f"{self._config.name}-*")
        keys = [f"{control_prefix(fleet, '*')}outcome.json" for fleet in fleets]
        ended = ["FAILED", "TIMED_OUT", "ABORTED"]
        patterns = {
            "RunEnded": object_created(self._buckets.control, *keys),
            "ExecutionEnded": events.EventPattern(
                source=["aws.states"],
                detail_type=[STATUS_CHANGE],
                detail={"stateMachineArn": [self._machine_arn], "status": ended},
            ),
        }
        rules = [events.Rule(self, name, event_pattern=pattern) for name, pattern in patterns.items()]
        rules.append(events.Rule(self, "Clock", schedule=events.Schedule.rate(Duration.minutes(1))))
        for rule in rules:
            rule.add_target(FunctionTarget(function))
            function.add_permission(
                f"{rule.node.id}MayInvoke",
                principal=iam.ServicePrincipal("events.amazonaws.com"),
                source_arn=rule.rule_arn,
            )
