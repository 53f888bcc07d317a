"""The run controller: the Lambda function that resizes the fleet, with its permissions and event sources."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jsii
from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from aws_cdk.interfaces.aws_events import IRuleRef
from constructs import Construct

from bootstrap.documents.object_keys import control_prefix, report_prefix, user_id
from stacks.artifacts.bundles import BundleFile
from stacks.capacity.catalogue import catalogue
from stacks.capacity.plan import moves_nodes, on_demand_base, one_zone_at_a_time, zone_candidates
from stacks.capacity.training_time import training_time
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.constructs.event_patterns import object_created
from stacks.constructs.fleet_resources import Fleet
from stacks.constructs.lambda_function import lambda_function
from stacks.constructs.nodes.instance_role import through_s3
from stacks.constructs.suppressions import suppress
from stacks.functions.run_controller.events import RETRY, SOURCE, STATE_CHANGE
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS
from stacks.functions.run_controller.market.scores import MIN_TYPES
from stacks.functions.run_controller.records import controller_prefix

MAXIMUM_EVENT_AGE = Duration.minutes(10)
"""The maximum event age. Older events are dropped because the schedule has already invoked the function again."""
TIMEOUT = Duration.seconds(30)
RETRY_AFTER = Duration.seconds(60)
"""The queue's visibility timeout, after which the events of a failed invocation are delivered again. Lambda requires at
least the function's timeout, and recommends six times that for functions that other functions can throttle. The
schedule makes a longer wait pointless. Source (2026-11):
https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html"""
LAUNCH_SECONDS = 600
"""The longest time from an instance's launch to the start of its boot steps."""
MESSAGE_GROUP = "run-controller"
STALE = "The schedule invokes the function again within a minute, so failed events are stale"


def log_group_name(config: DeploymentConfig) -> str:
    """Return the fixed name of the function's log group, which another stack uses to define metric filters."""
    return f"{config.log_group}/run-controller"


class RunController(Construct):
    """The function with its role, log group, event rules and event queue.

    The rules send their events to a FIFO queue with one message group. Lambda runs at most one invocation per message
    group at a time, without reserved concurrency, which an account with a concurrency limit of 10 cannot provide.
    Sources (2026-11): https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html and
    https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        code: BundleFile,
        datasets: s3.IBucket,
        control: s3.IBucket,
        key: kms.IKey,
        fleet: Fleet,
        node_role_id: str,
        subnet_ids: list[str],
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._queue = self._event_queue()
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
        self._grant(role, datasets, control, key, log_group, node_role_id)
        for statement in fleet.statements:
            role.add_to_policy(statement)
        self.function = lambda_function(
            self,
            program="run_controller",
            code=code,
            role=role,
            log_group=log_group,
            timeout=TIMEOUT,
            environment={
                "DEPLOYMENT": config.name,
                "RUN_PARAMETER": config.run_parameter,
                "DESIRED_PARAMETER": config.desired_parameter,
                "BACKEND": config.capacity.backend,
                "FLEET_ID": fleet.fleet_id,
                "NODES": str(config.capacity.nodes),
                "ON_DEMAND_BASE": str(on_demand_base(config)),
                "NODE_ROLE_ID": node_role_id,
                "CONTROL_BUCKET": control.bucket_name,
                "DATASET_BUCKET": datasets.bucket_name if _reads_dataset_bucket(config) else "",
                "SUBNET_IDS": ",".join(subnet_ids),
                "ONE_SUBNET_AT_A_TIME": str(one_zone_at_a_time(config)).lower(),
                "GANG_TIMEOUT_SECONDS": str(config.capacity.gang_timeout_seconds),
                "BOOT_FAILURE_LIMIT": str(config.capacity.boot_failure_limit),
                "BOOT_TIMEOUT_SECONDS": str(config.node.boot_timeout_seconds + LAUNCH_SECONDS),
                "CHOOSE": config.capacity.choose,
                "PLACES": _places(config),
                "LIMIT_USD": _limit(config.limits.usd),
                "LIMIT_RUN_HOURS": _limit(config.limits.run_hours),
                "DEADLINE_HOURS": _limit(config.limits.deadline_hours),
                "ON_DEADLINE_MISS": config.limits.on_deadline_miss,
                "TRAINING_HOURS": _training_hours(config),
                "ON_DEMAND_USD_PER_HOUR": json.dumps(_on_demand_prices(config)),
            },
            no_dead_letter_queue=STALE,
        )
        lambda_.CfnEventSourceMapping(
            self,
            "Queue",
            function_name=self.function.function_arn,
            event_source_arn=self._queue.queue_arn,
            batch_size=10,  # the maximum for a FIFO queue; one control step handles all events of a batch
        )
        self._suppress_findings(role)
        rules = self._rules(datasets, control, fleet)
        self._admit(rules)

    def _event_queue(self) -> sqs.Queue:
        queue = sqs.Queue(
            self,
            "Events",
            fifo=True,
            content_based_deduplication=True,  # EventBridge requires it; the content of each event is unique
            retention_period=MAXIMUM_EVENT_AGE,
            visibility_timeout=RETRY_AFTER,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            removal_policy=RemovalPolicy.DESTROY,
        )
        suppress(queue, "AwsSolutions-SQS3", STALE)
        suppress(queue, "CKV_AWS_27", "SQS encrypts the events with its own key; checkov expects a key of KMS")
        return queue

    def _admit(self, rules: Sequence[events.Rule]) -> None:
        """Let the rules send events to the queue, over TLS only."""
        policy = sqs.QueuePolicy(self, "EventsPolicy", queues=[self._queue])
        policy.document.add_statements(
            iam.PolicyStatement(
                sid="Rules",
                actions=["sqs:SendMessage"],
                principals=[iam.ServicePrincipal("events.amazonaws.com")],
                resources=[self._queue.queue_arn],
                conditions={"ArnEquals": {"aws:SourceArn": [rule.rule_arn for rule in rules]}},
            ),
            iam.PolicyStatement(
                sid="OnlyTls",
                effect=iam.Effect.DENY,
                actions=["sqs:*"],
                principals=[iam.AnyPrincipal()],
                resources=[self._queue.queue_arn],
                conditions={"Bool": {"aws:SecureTransport": "false"}},
            ),
        )

    def _suppress_findings(self, role: iam.Role) -> None:
        policy = role.node.find_child("DefaultPolicy")
        for reason, part in (
            ("Describe calls do not support resource-level permissions", r"Resource::\*"),
            (
                "The run determines the names of its records in one bucket",
                r"Resource::.*/runs/.*/\*/control/outcome.json",
            ),
            ("The run determines the name of its state", r"Resource::.*/controller/.*/\*"),
            ("The run determines the name of its dataset", r"Resource::.*/datasets/\*/dataset.json"),
            (
                "An instance has no id before its launch; a condition requires the tag",
                r"Resource::.*:instance/\*",
            ),
            ("Reports are named after the failed instance, under one prefix in one bucket", r"Resource::.*/nodes/.*\*"),
            (
                "The group's name is known before its creation, but its id is not",
                r"Resource::arn:.*:autoScalingGroup:\*:autoScalingGroupName/.*",
            ),
        ):
            suppress(policy, "AwsSolutions-IAM5", reason, applies_to=[part])

    def _grant(
        self,
        role: iam.Role,
        datasets: s3.IBucket,
        control: s3.IBucket,
        key: kms.IKey,
        log_group: logs.LogGroup,
        node_role_id: str,
    ) -> None:
        stack = Stack.of(self)
        here = f"{stack.region}:{stack.account}"
        arn = f"arn:{stack.partition}:"
        outcome, status = (
            control.arn_for_objects(f"{control_prefix(self._config.name, '*')}{name}.json")
            for name in ("outcome", "status")
        )
        reports = control.arn_for_objects(f"{report_prefix(user_id(node_role_id, '*'))}*")
        state = control.arn_for_objects(f"{controller_prefix(self._config.name)}*")
        index = datasets.arn_for_objects("datasets/*/dataset.json")
        names = (self._config.run_parameter, self._config.desired_parameter)
        parameters = [f"{arn}ssm:{here}:parameter{name}" for name in names]
        statements: list[tuple[str, list[str], list[str], dict[str, object] | None]] = [
            ("ReadRunDocument", ["ssm:GetParameters"], parameters, None),
            ("ReadOutcome", ["s3:GetObject"], [outcome], None),
            ("LiftOutcome", ["s3:DeleteObject"], [outcome], None),
            ("ReadWriteState", ["s3:GetObject", "s3:PutObject"], [state], None),
            ("ReadFailures", ["s3:GetObject"], [reports], None),
            # Do not add a condition on the prefix: GetObject does not provide one, so S3 would return 403 instead
            # of 404 for a missing object.
            # Describe calls do not support resource-level permissions. Source (2026-11):
            # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
            ("PriceInstances", self._pricing_actions(), ["*"], None),
            ("ListRecords", ["s3:ListBucket"], [control.bucket_arn], None),
            # Source (2026-11): https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
            (
                "ReceiveEvents",
                ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"],
                [self._queue.queue_arn],
                None,
            ),
            ("UseKeyThroughS3", ["kms:Decrypt", "kms:GenerateDataKey"], [key.key_arn], through_s3(stack)),
            (
                "WriteLogs",
                ["logs:CreateLogStream", "logs:PutLogEvents"],
                [f"{log_group.log_group_arn}"],
                None,
            ),
        ]
        if self._config.limits.deadline_hours is not None or moves_nodes(self._config):
            statements.append(("ReadProgress", ["s3:GetObject"], [status], None))
        if self._releases_nodes():
            tagged: dict[str, object] = {"StringEquals": {f"aws:ResourceTag/{DEPLOYMENT_TAG}": self._config.name}}
            statements.append(("ReleaseNodes", ["ec2:TerminateInstances"], [f"{arn}ec2:{here}:instance/*"], tagged))
        if _reads_dataset_bucket(self._config):
            statements += [
                ("FindDataset", ["s3:GetObject"], [index], None),
                ("ListDatasets", ["s3:ListBucket"], [datasets.bucket_arn], None),
            ]
        for sid, actions, resources, conditions in statements:
            role.add_to_policy(
                iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
            )

    def _releases_nodes(self) -> bool:
        """Return True if the controller itself terminates nodes that were bought on demand to meet a deadline."""
        limits, back_end = self._config.limits, BACK_ENDS[self._config.capacity.backend]
        is_maintained = back_end.service == "ec2"
        return is_maintained and limits.deadline_hours is not None and limits.on_deadline_miss == "on_demand"

    def _pricing_actions(self) -> list[str]:
        """Return the calls that only the ledger and the choice of zones need."""
        needed = ["ec2:DescribeInstances", "ec2:DescribeSpotPriceHistory"]
        capacity = self._config.capacity
        ranks_zones = capacity.choose != "order" and one_zone_at_a_time(self._config)
        if ranks_zones and len(capacity.instance_types) >= MIN_TYPES:
            needed += ["ec2:GetSpotPlacementScores", "ec2:DescribeSubnets"]
        granted = BACK_ENDS[self._config.capacity.backend].describe_actions
        return [action for action in needed if action not in granted]

    def _rules(self, datasets: s3.IBucket, control: s3.IBucket, fleet: Fleet) -> list[events.Rule]:
        """Return the rules that send run events, fleet events, retries and scheduled events to the queue."""
        patterns = {
            "RunChanged": events.EventPattern(
                source=["aws.ssm"],
                detail_type=["Parameter Store Change"],
                detail={
                    "name": [self._config.run_parameter, self._config.desired_parameter],
                    "operation": ["Create", "Update"],
                },
            ),
            "Interruption": events.EventPattern(
                source=["aws.ec2"], detail_type=["EC2 Spot Instance Interruption Warning"]
            ),
            # The ledger needs exact end times. The event does not contain tags, so all the account's instances match.
            # Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
            "InstanceEnded": events.EventPattern(
                source=["aws.ec2"], detail_type=[STATE_CHANGE], detail={"state": ["shutting-down", "stopping"]}
            ),
            **fleet.patterns,
            "RunEnded": object_created(control, f"{control_prefix(self._config.name, '*')}outcome.json"),
            "DatasetArrived": object_created(datasets, "datasets/*/dataset.json"),
            "Retry": events.EventPattern(
                source=[SOURCE], detail_type=[RETRY], detail={"deployment": [self._config.name]}
            ),
        }
        rules = [events.Rule(self, name, event_pattern=pattern) for name, pattern in patterns.items()]
        # The schedule handles timeouts and lost events.
        rules.append(events.Rule(self, "Clock", schedule=events.Schedule.rate(Duration.minutes(1))))
        for rule in rules:
            rule.add_target(QueueTarget(self._queue))
        return rules


def _places(config: DeploymentConfig) -> str:
    """Return the zones of the candidate subnets in order, and the instance types, or "" if neither is needed."""
    if config.capacity.choose == "order" and config.limits.deadline_hours is None:
        return ""
    zones = [f"{config.region}{letter}" for letter in zone_candidates(config)]
    return json.dumps({"region": config.region, "instance_types": config.capacity.instance_types, "zones": zones})


def _limit(value: float | None) -> str:
    return "" if value is None else str(value)


def _training_hours(config: DeploymentConfig) -> str:
    """Return the expected training time, or "" without a deadline. A validator ensures that it is known."""
    found = None if config.limits.deadline_hours is None else training_time(config)
    return "" if found is None else str(round(found.hours, 3))


def _on_demand_prices(config: DeploymentConfig) -> dict[str, float]:
    """Return the known prices of the deployment's instance types, in USD per hour."""
    prices = {
        name: catalogue().usd_per_hour(config.region, name, "on_demand") for name in config.capacity.instance_types
    }
    return {name: price for name, price in prices.items() if price is not None}


def _reads_dataset_bucket(config: DeploymentConfig) -> bool:
    """Return True if nodes can read the dataset only from the bucket, not from a volume or file system."""
    storage = config.storage
    return storage.dataset_volume is None and storage.shared_volume is None and storage.lustre is None


@jsii.implements(events.IRuleTarget)
class QueueTarget:
    """The FIFO queue as a rule target. The queue's policy is separate: it names all rules in one statement.

    Source (2026-11): https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_SqsParameters.html
    """

    def __init__(self, queue: sqs.IQueue) -> None:
        self._queue = queue

    def bind(self, rule: IRuleRef, id: str | None = None) -> events.RuleTargetConfig:
        """Return the target configuration of a rule."""
        return events.RuleTargetConfig(
            arn=self._queue.queue_arn,
            retry_policy=events.CfnRule.RetryPolicyProperty(
                maximum_event_age_in_seconds=int(MAXIMUM_EVENT_AGE.to_seconds()), maximum_retry_attempts=2
            ),
            sqs_parameters=events.CfnRule.SqsParametersProperty(message_group_id=MESSAGE_GROUP),
        )
