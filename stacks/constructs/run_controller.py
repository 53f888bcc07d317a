"""The run controller: the Lambda function that sizes the fleet, its rights, and what wakes it."""

from __future__ import annotations

import jsii
from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk.interfaces.aws_events import IRuleRef
from constructs import Construct

from stacks.bundles import BundleFile
from stacks.capacity_plan import on_demand_base, one_zone_at_a_time
from stacks.config import DeploymentConfig
from stacks.constructs.accepted_findings import accept
from stacks.constructs.fleets import Fleet
from stacks.constructs.lone_function import lone_function

MAXIMUM_EVENT_AGE_SECONDS = 600
"""After which an event tells nothing: the clock has called since."""


def log_group_name(config: DeploymentConfig) -> str:
    """Return the name of the function's log group: fixed, so that metrics can be made from it in another stack."""
    return f"{config.log_group}/run-controller"


class RunController(Construct):
    """Function, role, log group, rules."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        code: BundleFile,
        checkpoints: s3.IBucket,
        key: kms.IKey,
        fleet: Fleet,
        subnet_ids: list[str],
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=log_group_name(config),
            removal_policy=RemovalPolicy.DESTROY,
        )
        resource = log_group.node.default_child
        assert isinstance(resource, logs.CfnLogGroup)
        resource.retention_in_days = config.observability.log_retention_days
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        self._grant(role, checkpoints, key, log_group)
        for statement in fleet.statements:
            role.add_to_policy(statement)
        self.function = lone_function(
            self,
            program="run_controller",
            code=code,
            role=role,
            log_group=log_group,
            timeout=Duration.seconds(60),
            environment={
                "DEPLOYMENT": config.name,
                "RUN_PARAMETER": config.run_parameter,
                "BACKEND": config.capacity.backend,
                "FLEET_ID": fleet.fleet_id,
                "NODES": str(config.capacity.nodes),
                "ON_DEMAND_BASE": str(on_demand_base(config)),
                "CHECKPOINT_BUCKET": checkpoints.bucket_name,
                "SUBNET_IDS": ",".join(subnet_ids),
                "ONE_SUBNET_AT_A_TIME": str(one_zone_at_a_time(config)).lower(),
                "GANG_TIMEOUT_SECONDS": str(config.capacity.gang_timeout_seconds),
                "BOOT_FAILURE_LIMIT": str(config.capacity.boot_failure_limit),
            },
            missed="The clock calls again within a minute: a failed event is stale by then",
        )
        self._accept_findings(role)
        self._rules(checkpoints, fleet)

    def _accept_findings(self, role: iam.Role) -> None:
        """Say why the role is as it is where a policy checker wants it otherwise."""
        policy = role.node.find_child("DefaultPolicy")
        for reason, part in (
            ("Describe calls have no resource level", r"Resource::\*"),
            ("Objects are named by the run: control records of one bucket only", r"Resource::.*/runs/\*/control/\*"),
            ("Reports are named by the machine that failed, in one prefix of one bucket", r"Resource::.*/nodes/\*"),
            (
                "The identifier of a group is not known before it is made; its name is",
                r"Resource::arn:.*:autoScalingGroup:\*:autoScalingGroupName/.*",
            ),
        ):
            accept(policy, "AwsSolutions-IAM5", reason, applies_to=[part])

    def _grant(self, role: iam.Role, checkpoints: s3.IBucket, key: kms.IKey, log_group: logs.LogGroup) -> None:
        stack = Stack.of(self)
        here = f"{stack.region}:{stack.account}"
        arn = f"arn:{stack.partition}:"
        control = checkpoints.arn_for_objects("runs/*/control/*")
        parameter = f"{arn}ssm:{here}:parameter{self._config.run_parameter}"
        statements: list[tuple[str, list[str], list[str], dict[str, object] | None]] = [
            ("ReadRunDocument", ["ssm:GetParameter"], [parameter], None),
            ("ReadWriteControl", ["s3:GetObject", "s3:PutObject"], [control], None),
            ("ReadFailures", ["s3:GetObject"], [checkpoints.arn_for_objects("nodes/*")], None),
            # Without a condition on the prefix: a read has none, and S3 would answer 403 for what is not there.
            ("ListRuns", ["s3:ListBucket"], [checkpoints.bucket_arn], None),
            (
                "UseKeyThroughS3",
                ["kms:Decrypt", "kms:GenerateDataKey"],
                [key.key_arn],
                {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}},
            ),
            (
                "WriteLogs",
                ["logs:CreateLogStream", "logs:PutLogEvents"],
                [f"{log_group.log_group_arn}"],
                None,
            ),
        ]
        for sid, actions, resources, conditions in statements:
            role.add_to_policy(
                iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
            )

    def _rules(self, checkpoints: s3.IBucket, fleet: Fleet) -> None:
        """Wake the function by what happens to the run and the fleet, and by the clock."""
        patterns = {
            "RunChanged": events.EventPattern(
                source=["aws.ssm"],
                detail_type=["Parameter Store Change"],
                detail={"name": [self._config.run_parameter], "operation": ["Create", "Update"]},
            ),
            "Interruption": events.EventPattern(
                source=["aws.ec2"], detail_type=["EC2 Spot Instance Interruption Warning"]
            ),
            **fleet.patterns,
            "RunEnded": events.EventPattern(
                source=["aws.s3"],
                detail_type=["Object Created"],
                detail={
                    "bucket": {"name": [checkpoints.bucket_name]},
                    "object": {"key": [{"wildcard": "runs/*/control/outcome.json"}]},
                },
            ),
        }
        for name, pattern in patterns.items():
            self._wake(events.Rule(self, name, event_pattern=pattern))
        # The clock catches what no event tells: time-outs, and events that were lost.
        self._wake(events.Rule(self, "Clock", schedule=events.Schedule.rate(Duration.minutes(1))))

    def _wake(self, rule: events.Rule) -> None:
        """Let a rule call the function."""
        rule.add_target(FunctionTarget(self.function))
        lambda_.CfnPermission(
            rule,
            "MayInvoke",
            action="lambda:InvokeFunction",
            function_name=self.function.function_arn,
            principal="events.amazonaws.com",
            source_arn=rule.rule_arn,
        )


@jsii.implements(events.IRuleTarget)
class FunctionTarget:
    """A function as target of a rule, without the permission to call it.

    The library names that permission by the path from the app: in a pipeline's stage it would be another resource than
    from a laptop, and each deploy of the one would undo the other's.
    """

    def __init__(self, function: lambda_.IFunction) -> None:
        self._function = function

    def bind(self, rule: IRuleRef, id: str | None = None) -> events.RuleTargetConfig:
        """Return the target as a rule has it."""
        policy = events.CfnRule.RetryPolicyProperty(
            maximum_event_age_in_seconds=MAXIMUM_EVENT_AGE_SECONDS, maximum_retry_attempts=2
        )
        return events.RuleTargetConfig(arn=self._function.function_arn, retry_policy=policy)
