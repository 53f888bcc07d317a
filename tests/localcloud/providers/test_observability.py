"""Logs, CloudWatch, SNS, SQS and Budgets resource types, created, updated and deleted in moto."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3

from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]
TAGGED = {"Tags": [{"Key": "Name", "Value": "mine"}]}
KEPT = {"team", "aws:cloudformation:stack-name"}


def call(service: str, operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client(service), operation)(**arguments)


def pairs(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def test_log_group(lifecycle: Lifecycle) -> None:
    def group(name: str) -> Any:
        return call("logs", "describe_log_groups", logGroupNamePrefix=name)["logGroups"][0]

    def tags(name: str) -> dict[str, str]:
        found: dict[str, str] = call("logs", "list_tags_log_group", logGroupName=name)["tags"]
        return found

    call("logs", "create_log_group", logGroupName="/demo/run-2")
    lifecycle(
        "AWS::Logs::LogGroup",
        {"LogGroupName": "/demo/run", "RetentionInDays": "30", **TAGGED},
        ({}, lambda name: group(name)["retentionInDays"], 30),
        ({"RetentionInDays": 7}, lambda name: group(name)["retentionInDays"], 7),
        ({"RetentionInDays": None}, lambda name: "retentionInDays" in group(name), False),
        ({"Tags": None}, lambda name: set(tags(name)), KEPT),
        ref="/demo/run",
        tags=tags,
    )


def test_log_group_arn_ends_as_in_cloudformation(context: Any) -> None:
    made = registry()["AWS::Logs::LogGroup"].create(context(), {"LogGroupName": "/a"})
    assert made.attributes["Arn"] == "arn:aws:logs:us-east-1:123456789012:log-group:/a:*"


def test_metric_filter(lifecycle: Lifecycle, world: Any) -> None:
    def found(name: str) -> Any:
        return call("logs", "describe_metric_filters", logGroupName=world.log_group, filterNamePrefix=name)[
            "metricFilters"
        ][0]

    loss = {"MetricName": "loss", "MetricNamespace": "demo", "MetricValue": "$.loss"}
    lifecycle(
        "AWS::Logs::MetricFilter",
        {"LogGroupName": world.log_group, "FilterPattern": "{ $.a = 1 }", "MetricTransformations": [loss]},
        ({"FilterPattern": "{ $.a = 2 }"}, lambda name: found(name)["filterPattern"], "{ $.a = 2 }"),
        (
            {"MetricTransformations": [{**loss, "Dimensions": [{"Key": "run", "Value": "$.run"}]}]},
            lambda name: found(name)["metricTransformations"][0]["dimensions"],
            {"run": "$.run"},
        ),
        ref=r"Demo-Thing-\w+",
    )


def test_alarm(lifecycle: Lifecycle, world: Any) -> None:
    def alarm(*names: str) -> Callable[[str], Any]:
        def look(name: str) -> Any:
            found = call("cloudwatch", "describe_alarms", AlarmNames=[name])["MetricAlarms"][0]
            return tuple(found.get(key) for key in names)

        return look

    def tags(name: str) -> dict[str, str]:
        return pairs(call("cloudwatch", "list_tags_for_resource", ResourceARN=alarm("AlarmArn")(name)[0])["Tags"])

    provider = registry()["AWS::CloudWatch::Alarm"]
    lifecycle(
        "AWS::CloudWatch::Alarm",
        {
            "MetricName": "loss",
            "Namespace": "demo",
            "Statistic": "Maximum",
            "Period": "60",
            "EvaluationPeriods": "1",
            "Threshold": "3",
            "ComparisonOperator": "GreaterThanThreshold",
            "Dimensions": [{"Name": "run", "Value": "one"}],
            "AlarmActions": [world.topic()],
            **TAGGED,
        },
        ({"Threshold": "4.5", "EvaluationPeriods": 2}, alarm("Threshold", "EvaluationPeriods"), (4.5, 2)),
        (
            {"AlarmDescription": "d", "ActionsEnabled": "false", "TreatMissingData": "breaching"},
            alarm("AlarmDescription", "ActionsEnabled", "TreatMissingData"),
            ("d", False, "breaching"),
        ),
        (
            {"AlarmActions": [], "OKActions": [world.topic(1)], "InsufficientDataActions": [world.topic()]},
            alarm("AlarmActions", "OKActions", "InsufficientDataActions"),
            ([], [world.topic(1)], [world.topic()]),
        ),
        ({"Dimensions": [{"Name": "run", "Value": "two"}]}, lambda n: alarm("Dimensions")(n)[0][0]["Value"], "two"),
        (
            {"Statistic": None, "ExtendedStatistic": "p99", "DatapointsToAlarm": 1, "Unit": "Count"},
            alarm("ExtendedStatistic", "DatapointsToAlarm", "Unit"),
            ("p99", 1, "Count"),
        ),
        ({"Tags": None}, lambda n: set(tags(n)), KEPT),
        ref=r"Demo-Thing-\w+",
        tags=tags,
        unchanged=dict.fromkeys(provider.updatable, "one call replaces the alarm"),
    )


def test_alarm_on_an_expression(context: Any) -> None:
    stat = {"Metric": {"Namespace": "demo", "MetricName": "loss"}, "Period": "60", "Stat": "Sum"}
    metrics = [{"Id": "m1", "MetricStat": stat, "ReturnData": "false"}, {"Id": "e1", "Expression": "m1*2"}]
    compared = {"ComparisonOperator": "GreaterThanThreshold", "Threshold": 1, "EvaluationPeriods": 1}
    made = registry()["AWS::CloudWatch::Alarm"].create(context(), {"Metrics": metrics, **compared})
    found = call("cloudwatch", "describe_alarms", AlarmNames=[made.physical_id])["MetricAlarms"][0]
    assert [item["Id"] for item in found["Metrics"]] == ["m1", "e1"]


def test_dashboard(lifecycle: Lifecycle) -> None:
    def body(name: str) -> Any:
        return json.loads(call("cloudwatch", "get_dashboard", DashboardName=name)["DashboardBody"])

    lifecycle(
        "AWS::CloudWatch::Dashboard",
        {"DashboardName": "demo", "DashboardBody": '{"widgets": []}'},
        ({"DashboardBody": '{"widgets": [1]}'}, body, {"widgets": [1]}),
        ({"Tags": [{"Key": "team", "Value": "ml"}]}, body, {"widgets": [1]}),  # moto does not store tags of dashboards
        ref="demo",
    )


def test_topic(lifecycle: Lifecycle, world: Any) -> None:
    def attributes(*names: str) -> Callable[[str], Any]:
        def look(arn: str) -> Any:
            found = call("sns", "get_topic_attributes", TopicArn=arn)["Attributes"]
            return tuple(found.get(name, "") for name in names)

        return look

    def tags(arn: str) -> dict[str, str]:
        return pairs(call("sns", "list_tags_for_resource", ResourceArn=arn)["Tags"])

    def subscribed(arn: str) -> list[str]:
        return [s["Endpoint"] for s in call("sns", "list_subscriptions_by_topic", TopicArn=arn)["Subscriptions"]]

    queue = "arn:aws:sqs:us-east-1:123456789012:" + world.queue().rsplit("/", 1)[-1]
    lifecycle(
        "AWS::SNS::Topic",
        {"DisplayName": "d", "KmsMasterKeyId": world.key(), **TAGGED},
        ({}, attributes("DisplayName", "KmsMasterKeyId"), ("d", world.key())),
        ({"DisplayName": "e", "KmsMasterKeyId": None}, attributes("DisplayName", "KmsMasterKeyId"), ("e", "")),
        ({"Subscription": [{"Endpoint": queue, "Protocol": "sqs"}]}, subscribed, [queue]),
        ({"Subscription": None}, subscribed, []),
        ({"Tags": None}, lambda arn: set(tags(arn)), KEPT),
        ref=r"arn:aws:sns:us-east-1:123456789012:Demo-Thing-\w+",
        tags=tags,
        unchanged=dict.fromkeys(
            ("ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy", "SignatureVersion", "TracingConfig"),
            "moto does not store it; every attribute is set by its own call",
        ),
    )


def test_fifo_names(context: Any) -> None:
    topic = registry()["AWS::SNS::Topic"].create(context(), {"FifoTopic": True})
    queue = registry()["AWS::SQS::Queue"].create(context(), {"FifoQueue": "true"})
    assert topic.attributes["TopicName"].endswith(".fifo")
    assert queue.attributes["QueueName"].endswith(".fifo")


def policy(sid: str) -> dict[str, Any]:
    statement = {"Sid": sid, "Effect": "Allow", "Principal": {"Service": "cloudwatch.amazonaws.com"}}
    return {"Version": "2012-10-17", "Statement": [{**statement, "Action": "sns:Publish", "Resource": "*"}]}


def test_topic_policy(lifecycle: Lifecycle, world: Any) -> None:
    def sids(_: str) -> list[str]:
        documents = (call("sns", "get_topic_attributes", TopicArn=world.topic(n))["Attributes"] for n in (0, 1))
        return [json.loads(found["Policy"])["Statement"][0]["Sid"] for found in documents]

    default = "__default_statement_ID"
    lifecycle(
        "AWS::SNS::TopicPolicy",
        {"Topics": [world.topic()], "PolicyDocument": policy("one")},
        ({}, sids, ["one", default]),
        ({"PolicyDocument": policy("two")}, sids, ["two", default]),
        ({"Topics": [world.topic(1)]}, sids, [default, "two"]),
        ref=r"Demo-Thing-\w+",
    )


def test_subscription(lifecycle: Lifecycle, world: Any) -> None:
    def attributes(*names: str) -> Callable[[str], Any]:
        def look(arn: str) -> Any:
            found = call("sns", "get_subscription_attributes", SubscriptionArn=arn)["Attributes"]
            return tuple(found.get(name) for name in names)

        return look

    queue = "arn:aws:sqs:us-east-1:123456789012:" + world.queue().rsplit("/", 1)[-1]
    dead = {"deadLetterTargetArn": queue}
    lifecycle(
        "AWS::SNS::Subscription",
        {"TopicArn": world.topic(), "Protocol": "sqs", "Endpoint": queue, "RawMessageDelivery": True},
        ({}, attributes("RawMessageDelivery"), ("true",)),
        ({"RawMessageDelivery": None}, attributes("RawMessageDelivery"), ("false",)),
        ({"FilterPolicy": {"kind": ["a"]}}, lambda a: json.loads(attributes("FilterPolicy")(a)[0]), {"kind": ["a"]}),
        ({"RedrivePolicy": dead}, lambda a: json.loads(attributes("RedrivePolicy")(a)[0]), dead),
        ({"FilterPolicyScope": "MessageBody"}, attributes("FilterPolicyScope"), ("MessageBody",)),
        ref=rf"{world.topic()}:[\w-]+",
        unchanged={"DeliveryPolicy": "for http endpoints only", "SubscriptionRoleArn": "for firehose only"},
    )


def test_queue(lifecycle: Lifecycle, world: Any) -> None:
    def attributes(*names: str) -> Callable[[str], Any]:
        def look(url: str) -> Any:
            found = call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
            return tuple(found.get(name, "") for name in names)

        return look

    def tags(url: str) -> dict[str, str]:
        found: dict[str, str] = call("sqs", "list_queue_tags", QueueUrl=url).get("Tags", {})
        return found

    dead = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:queue0", "maxReceiveCount": 3}
    assert world.queue()
    lifecycle(
        "AWS::SQS::Queue",
        {"VisibilityTimeout": 60, "MessageRetentionPeriod": "1209600", "SqsManagedSseEnabled": True, **TAGGED},
        ({}, attributes("VisibilityTimeout", "MessageRetentionPeriod"), ("60", "1209600")),
        (
            {
                "VisibilityTimeout": 90,
                "DelaySeconds": 5,
                "MaximumMessageSize": 1024,
                "ReceiveMessageWaitTimeSeconds": 2,
            },
            attributes("VisibilityTimeout", "DelaySeconds", "MaximumMessageSize", "ReceiveMessageWaitTimeSeconds"),
            ("90", "5", "1024", "2"),
        ),
        ({"VisibilityTimeout": None, "MessageRetentionPeriod": None}, attributes("VisibilityTimeout"), ("30",)),
        ({"RedrivePolicy": dead}, lambda u: json.loads(attributes("RedrivePolicy")(u)[0]), dead),
        ({"KmsMasterKeyId": world.key()}, attributes("KmsMasterKeyId"), (world.key(),)),
        ({"Tags": None}, lambda u: set(tags(u)), {"team"}),
        ref=r"https://.*/Demo-Thing-\w+",
        tags=tags,
        unchanged=dict.fromkeys(
            ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit", "KmsDataKeyReusePeriodSeconds")
            + ("RedriveAllowPolicy", "SqsManagedSseEnabled"),
            "one call sets all attributes that differ",
        ),
    )


def test_queue_policy(lifecycle: Lifecycle, world: Any) -> None:
    def sids(_: str) -> list[Any]:
        names = {"AttributeNames": ["Policy"]}
        found = [call("sqs", "get_queue_attributes", QueueUrl=world.queue(n), **names) for n in (0, 1)]
        texts = [item.get("Attributes", {}).get("Policy") for item in found]
        return [json.loads(text)["Statement"][0]["Sid"] if text else None for text in texts]

    one, two = (json.loads(json.dumps(policy(sid)).replace("sns:Publish", "sqs:SendMessage")) for sid in ("one", "two"))
    lifecycle(
        "AWS::SQS::QueuePolicy",
        {"Queues": [world.queue()], "PolicyDocument": one},
        ({}, sids, ["one", None]),
        ({"PolicyDocument": two}, sids, ["two", None]),
        ({"Queues": [world.queue(1)]}, sids, [None, "two"]),
        ref=r"Demo-Thing-\w+",
    )


BUDGET = {
    "BudgetName": "demo",
    "BudgetType": "COST",
    "TimeUnit": "MONTHLY",
    "BudgetLimit": {"Amount": 100, "Unit": "USD"},
}


def test_budget(lifecycle: Lifecycle) -> None:
    notification = {"ComparisonOperator": "GREATER_THAN", "NotificationType": "ACTUAL", "Threshold": "80"}
    people = [{"Address": "team@example.com", "SubscriptionType": "EMAIL"}]
    lifecycle(
        "AWS::Budgets::Budget",
        {
            "Budget": BUDGET,
            "NotificationsWithSubscribers": [{"Notification": notification, "Subscribers": people}],
        },
        ref="demo",
        unchanged={
            "Budget": "moto has no UpdateBudget; a test below checks it",
            "ResourceTags": "moto has no TagResource for budgets",
        },
    )


def test_changed_budget_is_sent_completely(scripted: Any, boto: Any, context: Any) -> None:
    answers = {"update_budget": lambda **_: {}, "describe_budget": lambda **_: {"Budget": BUDGET}}
    client = scripted("budgets", answers)
    limit = {"Amount": "200", "Unit": "USD"}
    provider = registry()["AWS::Budgets::Budget"]
    new = {"Budget": {**BUDGET, "BudgetLimit": limit}}
    provider.update(context(clients=boto(budgets=client)), "demo", {"Budget": BUDGET}, new)
    sent = dict(client.calls)["update_budget"]
    assert sent == {"AccountId": "123456789012", "NewBudget": {**BUDGET, "BudgetLimit": limit}}
