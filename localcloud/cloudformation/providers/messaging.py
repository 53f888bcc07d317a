"""SNS and SQS: topics, subscriptions, queues, and the policies of both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from .resource import Create, Delete, Describe, Place, Properties, Resource, added_removed, changed, code_of, codes
from .shapes import text, truth
from .tagging import TagCalls

_TOPIC_GONE = codes("NotFound", "NotFoundException")
_QUEUE_GONE = codes("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")


def as_attributes(properties: Properties, names: Mapping[str, str]) -> dict[str, str]:
    """Return properties as the flat map of texts that both services keep; `names` maps property to attribute."""
    return {names[name]: text(value) for name, value in properties.items() if name in names}


_TOPIC_ATTRIBUTES = {
    name: name
    for name in (
        *("ContentBasedDeduplication", "DisplayName", "FifoTopic", "FifoThroughputScope", "KmsMasterKeyId"),
        *("SignatureVersion", "TracingConfig", "ArchivePolicy"),
    )
}


class Topic(Resource):
    """AWS::SNS::Topic; its id is its ARN."""

    type_name = "AWS::SNS::Topic"
    service = "sns"
    create_only = frozenset({"TopicName", "FifoTopic"})
    updatable = frozenset({*_TOPIC_ATTRIBUTES, "Subscription", "Tags"}) - create_only
    afterwards = frozenset({"Subscription"})
    defaults = {"DisplayName": "", "KmsMasterKeyId": "", "ContentBasedDeduplication": False, "SignatureVersion": "1"}
    undroppable = frozenset({"FifoThroughputScope", "TracingConfig", "ArchivePolicy"})
    creates = Create("create_topic", "TopicArn")
    describes = Describe("get_topic_attributes", "TopicArn", "Attributes")
    deletes = Delete("delete_topic", "TopicArn")
    gone = _TOPIC_GONE
    name_property = "TopicName"
    name_length = 256
    tag_calls = TagCalls(identity="ResourceArn")

    def name_of(self, physical_id: str) -> str:
        """Return the ARN: the calls want that, not the name."""
        return physical_id

    def named(self, at: Place, properties: Properties) -> Properties:
        """Return a name that ends in .fifo when the topic is one."""
        if properties.get("TopicName") or not truth(properties.get("FifoTopic", False)):
            return super().named(at, properties)
        return {**properties, "TopicName": f"{at.context.generated_name(maximum_length=251)}.fifo"}

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return name and attributes."""
        return {"Name": properties["TopicName"], "Attributes": as_attributes(properties, _TOPIC_ATTRIBUTES)}

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Set attributes one by one; subscribe and unsubscribe."""
        for name, value in changed(old, new, *_TOPIC_ATTRIBUTES).items():
            at.call("set_topic_attributes", TopicArn=physical_id, AttributeName=name, AttributeValue=value)
        come, went = added_removed(old, new, "Subscription")
        for item in went:
            self._unsubscribe(at, physical_id, item)
        for item in come:
            at.call("subscribe", TopicArn=physical_id, **item)

    @staticmethod
    def _unsubscribe(at: Place, topic: str, item: Properties) -> None:
        pages = at.client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
        for found in (found for page in pages for found in page["Subscriptions"]):
            if (found["Protocol"], found["Endpoint"]) == (item["Protocol"], item["Endpoint"]):
                at.call("unsubscribe", SubscriptionArn=found["SubscriptionArn"])

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and name; TopicName is documented for Fn::GetAtt beside the schema's TopicArn."""
        return {"TopicArn": found["TopicArn"], "TopicName": found["TopicArn"].rsplit(":", 1)[-1]}


_SUBSCRIPTION_ATTRIBUTES = {
    name: name
    for name in (
        *("DeliveryPolicy", "FilterPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy"),
        "SubscriptionRoleArn",
    )
}


class Subscription(Resource):
    """AWS::SNS::Subscription; its id is its ARN."""

    type_name = "AWS::SNS::Subscription"
    service = "sns"
    create_only = frozenset({"Endpoint", "Protocol", "TopicArn"})
    updatable = frozenset(_SUBSCRIPTION_ATTRIBUTES)
    defaults = {"FilterPolicy": {}, "FilterPolicyScope": "MessageAttributes", "RawMessageDelivery": False}
    undroppable = frozenset({"DeliveryPolicy", "RedrivePolicy", "SubscriptionRoleArn"})
    creates = Create("subscribe", "SubscriptionArn")
    describes = Describe("get_subscription_attributes", "SubscriptionArn", "Attributes")
    deletes = Delete("unsubscribe", "SubscriptionArn")
    gone = _TOPIC_GONE

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the subscription; ask for its ARN even while it is not confirmed."""
        plain = {name: properties[name] for name in self.create_only if name in properties}
        attributes = as_attributes(properties, _SUBSCRIPTION_ATTRIBUTES)
        return {**plain, "Attributes": attributes, "ReturnSubscriptionArn": True}

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Set attributes one by one."""
        for name, value in changed(old, new, *_SUBSCRIPTION_ATTRIBUTES).items():
            setting = {"AttributeName": name, "AttributeValue": value}
            at.call("set_subscription_attributes", SubscriptionArn=physical_id, **setting)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["SubscriptionArn"]}


_QUEUE_ATTRIBUTES = {
    "MessageRetentionPeriod": "MessageRetentionPeriod",
    **{
        name: name
        for name in (
            *("ContentBasedDeduplication", "DeduplicationScope", "DelaySeconds", "FifoQueue", "FifoThroughputLimit"),
            *("KmsDataKeyReusePeriodSeconds", "KmsMasterKeyId", "MaximumMessageSize", "RedriveAllowPolicy"),
            *("ReceiveMessageWaitTimeSeconds", "RedrivePolicy", "SqsManagedSseEnabled", "VisibilityTimeout"),
        )
    },
}


class Queue(Resource):
    """AWS::SQS::Queue; its id is its URL."""

    type_name = "AWS::SQS::Queue"
    service = "sqs"
    create_only = frozenset({"QueueName", "FifoQueue"})
    updatable = frozenset({*_QUEUE_ATTRIBUTES, "Tags"}) - create_only
    defaults = {
        "ContentBasedDeduplication": False,
        "DelaySeconds": 0,
        "KmsDataKeyReusePeriodSeconds": 300,
        "KmsMasterKeyId": "",
        "MaximumMessageSize": 262144,
        "MessageRetentionPeriod": 345600,
        "ReceiveMessageWaitTimeSeconds": 0,
        "RedriveAllowPolicy": "",
        "RedrivePolicy": "",
        "VisibilityTimeout": 30,
    }
    undroppable = frozenset({"DeduplicationScope", "FifoThroughputLimit", "SqsManagedSseEnabled"})
    creates = Create("create_queue", "QueueUrl")
    gone = _QUEUE_GONE
    deletes = Delete("delete_queue", "QueueUrl")
    name_property = "QueueName"
    name_length = 80
    tag_calls = TagCalls(identity="QueueUrl", add="tag_queue", remove="untag_queue")
    system_tags = False

    def name_of(self, physical_id: str) -> str:
        """Return the URL: the calls want that, not the name."""
        return physical_id

    def named(self, at: Place, properties: Properties) -> Properties:
        """Return a name that ends in .fifo when the queue is one."""
        if properties.get("QueueName") or not truth(properties.get("FifoQueue", False)):
            return super().named(at, properties)
        return {**properties, "QueueName": f"{at.context.generated_name(maximum_length=75)}.fifo"}

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return name and attributes."""
        return {"QueueName": properties["QueueName"], "Attributes": as_attributes(properties, _QUEUE_ATTRIBUTES)}

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the attributes that differ."""
        settings = as_attributes(changed(old, new, *_QUEUE_ATTRIBUTES), _QUEUE_ATTRIBUTES)
        if settings:
            at.call("set_queue_attributes", QueueUrl=physical_id, Attributes=settings)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the queue's attributes."""
        found = at.call("get_queue_attributes", QueueUrl=physical_id, AttributeNames=["All"])["Attributes"]
        return {**found, "QueueUrl": physical_id}

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN, URL and name; QueueName is documented for Fn::GetAtt beside the schema's attributes."""
        arn = found["QueueArn"]
        return {"Arn": arn, "QueueUrl": found["QueueUrl"], "QueueName": arn.rsplit(":", 1)[-1]}


class AttachedPolicy(Resource):
    """What the policies of topics and queues share: one document, set on each of a list; the id is generated."""

    holders: ClassVar[str]
    holder: ClassVar[str]
    reads: ClassVar[str]

    def set_policy(self, at: Place, holder: str, document: Any) -> None:
        """Give the policy to one holder; None takes it away."""
        raise NotImplementedError

    def make(self, at: Place, properties: Properties) -> str:
        """Give the policy to all holders."""
        for holder in properties[self.holders]:
            self.set_policy(at, holder, properties["PolicyDocument"])
        return at.context.generated_name(maximum_length=128)

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Give the policy to all holders again, take it from those that went."""
        if old == new:
            return
        for holder in added_removed(old, new, self.holders)[1]:
            self._take(at, holder)
        for holder in new[self.holders]:
            self.set_policy(at, holder, new["PolicyDocument"])

    def _take(self, at: Place, holder: str) -> None:
        try:
            self.set_policy(at, holder, None)
        except ClientError as error:
            if code_of(error) not in self.gone:
                raise

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the first holder's policy."""
        holder = {self.holder: properties[self.holders][0]}
        names = {"AttributeNames": ["Policy"]} if self.service == "sqs" else {}
        found = at.call(self.reads, **holder, **names).get("Attributes", {}).get("Policy")
        wanted = json.loads(text(properties["PolicyDocument"]))
        return {"Id": physical_id} if found and json.loads(found) == wanted else None

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["Id"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Take the policy from all holders."""
        for holder in properties[self.holders]:
            self._take(at, holder)


class TopicPolicy(AttachedPolicy):
    """AWS::SNS::TopicPolicy; taken away, the topic has the policy that SNS gives a new one."""

    type_name = "AWS::SNS::TopicPolicy"
    service = "sns"
    updatable = frozenset({"PolicyDocument", "Topics"})
    gone = _TOPIC_GONE
    holders, holder, reads = "Topics", "TopicArn", "get_topic_attributes"

    def set_policy(self, at: Place, holder: str, document: Any) -> None:
        """Set the attribute Policy."""
        policy = document if document is not None else _owner_policy(at, holder)
        at.call("set_topic_attributes", TopicArn=holder, AttributeName="Policy", AttributeValue=policy)


def _owner_policy(at: Place, topic: str) -> dict[str, Any]:
    actions: tuple[str, ...] = (
        "Publish",
        "RemovePermission",
        "SetTopicAttributes",
        "DeleteTopic",
        "ListSubscriptionsByTopic",
    )
    actions += ("GetTopicAttributes", "AddPermission", "Subscribe")
    statement = {"Sid": "__default_statement_ID", "Effect": "Allow", "Principal": {"AWS": "*"}, "Resource": topic}
    owner = {"StringEquals": {"AWS:SourceOwner": at.context.account}}
    allowed = {**statement, "Action": [f"SNS:{action}" for action in actions], "Condition": owner}
    return {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [allowed]}


class QueuePolicy(AttachedPolicy):
    """AWS::SQS::QueuePolicy."""

    type_name = "AWS::SQS::QueuePolicy"
    service = "sqs"
    updatable = frozenset({"PolicyDocument", "Queues"})
    gone = _QUEUE_GONE
    holders, holder, reads = "Queues", "QueueUrl", "get_queue_attributes"

    def set_policy(self, at: Place, holder: str, document: Any) -> None:
        """Set the attribute Policy."""
        policy = "" if document is None else text(document)
        at.call("set_queue_attributes", QueueUrl=holder, Attributes={"Policy": policy})


PROVIDERS = (Topic(), Subscription(), TopicPolicy(), Queue(), QueuePolicy())
