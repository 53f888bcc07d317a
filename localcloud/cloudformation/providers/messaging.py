"""SNS topics and subscriptions, SQS queues and their policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    added_removed,
    changed,
    error_code,
    error_codes,
)
from localcloud.cloudformation.providers.base.shapes import parse_bool, text
from localcloud.cloudformation.providers.base.tagging import TagCalls

_TOPIC_NOT_FOUND = error_codes("NotFound", "NotFoundException")
_QUEUE_NOT_FOUND = error_codes("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")


def as_attributes(properties: Properties, names: Mapping[str, str]) -> dict[str, str]:
    """Return properties as the map of strings that both services store. `names` maps properties to attributes."""
    return {names[name]: text(value) for name, value in properties.items() if name in names}


_TOPIC_ATTRIBUTES = {
    name: name
    for name in (
        *("ContentBasedDeduplication", "DisplayName", "FifoTopic", "FifoThroughputScope", "KmsMasterKeyId"),
        *("SignatureVersion", "TracingConfig", "ArchivePolicy"),
    )
}


class Topic(Resource):
    """AWS::SNS::Topic. The physical ID is the ARN."""

    type_name = "AWS::SNS::Topic"
    service = "sns"
    create_only = frozenset({"TopicName", "FifoTopic"})
    updatable = frozenset({*_TOPIC_ATTRIBUTES, "Subscription", "Tags"}) - create_only
    set_after_create = frozenset({"Subscription"})
    defaults = {"DisplayName": "", "KmsMasterKeyId": "", "ContentBasedDeduplication": False, "SignatureVersion": "1"}
    unremovable = frozenset({"FifoThroughputScope", "TracingConfig", "ArchivePolicy"})
    create_call = Create("create_topic", "TopicArn")
    describe_call = Describe("get_topic_attributes", "TopicArn", "Attributes")
    delete_call = Delete("delete_topic", "TopicArn")
    not_found_codes = _TOPIC_NOT_FOUND
    name_property = "TopicName"
    name_length = 256
    tag_calls = TagCalls(identity="ResourceArn")

    def name_of(self, physical_id: str) -> str:
        """Return the ARN, which API calls use instead of the name."""
        return physical_id

    def with_name(self, api: ResourceApi, properties: Properties) -> Properties:
        """Return the properties with a name. A FIFO topic's name ends in .fifo."""
        if properties.get("TopicName") or not parse_bool(properties.get("FifoTopic", False)):
            return super().with_name(api, properties)
        return {**properties, "TopicName": f"{api.context.generated_name(maximum_length=251)}.fifo"}

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the name and the attributes."""
        # CloudFormation converts the numbers of an archive policy to strings. Source: test_sns_topic_with_attributes in
        # https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/resources.
        archive = {key: text(value) for key, value in (properties.get("ArchivePolicy") or {}).items()}
        settings = {**properties, "ArchivePolicy": archive} if archive else properties
        return {"Name": properties["TopicName"], "Attributes": as_attributes(settings, _TOPIC_ATTRIBUTES)}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the changed attributes, one per call, and update the subscriptions."""
        for name, value in changed(old, new, *_TOPIC_ATTRIBUTES).items():
            api.call("set_topic_attributes", TopicArn=physical_id, AttributeName=name, AttributeValue=value)
        added, removed = added_removed(old, new, "Subscription")
        for item in removed:
            self._unsubscribe(api, physical_id, item)
        for item in added:
            api.call("subscribe", TopicArn=physical_id, **item)

    @staticmethod
    def _unsubscribe(api: ResourceApi, topic: str, item: Properties) -> None:
        pages = api.client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
        for found in (found for page in pages for found in page["Subscriptions"]):
            if (found["Protocol"], found["Endpoint"]) == (item["Protocol"], item["Endpoint"]):
                api.call("unsubscribe", SubscriptionArn=found["SubscriptionArn"])

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN and the name. The documentation lists TopicName for Fn::GetAtt, but the schema does not."""
        return {"TopicArn": found["TopicArn"], "TopicName": found["TopicArn"].rsplit(":", 1)[-1]}


_SUBSCRIPTION_ATTRIBUTES = {
    name: name
    for name in (
        *("DeliveryPolicy", "FilterPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy"),
        "SubscriptionRoleArn",
    )
}


class Subscription(Resource):
    """AWS::SNS::Subscription. The physical ID is the ARN."""

    type_name = "AWS::SNS::Subscription"
    service = "sns"
    create_only = frozenset({"Endpoint", "Protocol", "TopicArn"})
    updatable = frozenset(_SUBSCRIPTION_ATTRIBUTES)
    defaults = {"FilterPolicy": {}, "FilterPolicyScope": "MessageAttributes", "RawMessageDelivery": False}
    unremovable = frozenset({"DeliveryPolicy", "RedrivePolicy", "SubscriptionRoleArn"})
    create_call = Create("subscribe", "SubscriptionArn")
    describe_call = Describe("get_subscription_attributes", "SubscriptionArn", "Attributes")
    delete_call = Delete("unsubscribe", "SubscriptionArn")
    not_found_codes = _TOPIC_NOT_FOUND

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the settings, including the option to return the ARN of an unconfirmed subscription."""
        plain = {name: properties[name] for name in self.create_only if name in properties}
        attributes = as_attributes(properties, _SUBSCRIPTION_ATTRIBUTES)
        return {**plain, "Attributes": attributes, "ReturnSubscriptionArn": True}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the changed attributes, one per call."""
        for name, value in changed(old, new, *_SUBSCRIPTION_ATTRIBUTES).items():
            setting = {"AttributeName": name, "AttributeValue": value}
            api.call("set_subscription_attributes", SubscriptionArn=physical_id, **setting)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
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
    """AWS::SQS::Queue. The physical ID is the URL."""

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
    unremovable = frozenset({"DeduplicationScope", "FifoThroughputLimit", "SqsManagedSseEnabled"})
    create_call = Create("create_queue", "QueueUrl")
    not_found_codes = _QUEUE_NOT_FOUND
    delete_call = Delete("delete_queue", "QueueUrl")
    name_property = "QueueName"
    name_length = 80
    tag_calls = TagCalls(identity="QueueUrl", add="tag_queue", remove="untag_queue")
    system_tags = False

    def name_of(self, physical_id: str) -> str:
        """Return the URL, which API calls use instead of the name."""
        return physical_id

    def with_name(self, api: ResourceApi, properties: Properties) -> Properties:
        """Return the properties with a name. A FIFO queue's name ends in .fifo."""
        if properties.get("QueueName") or not parse_bool(properties.get("FifoQueue", False)):
            return super().with_name(api, properties)
        return {**properties, "QueueName": f"{api.context.generated_name(maximum_length=75)}.fifo"}

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the name and the attributes."""
        return {"QueueName": properties["QueueName"], "Attributes": as_attributes(properties, _QUEUE_ATTRIBUTES)}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the changed attributes in a single call."""
        settings = as_attributes(changed(old, new, *_QUEUE_ATTRIBUTES), _QUEUE_ATTRIBUTES)
        if settings:
            api.call("set_queue_attributes", QueueUrl=physical_id, Attributes=settings)

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the queue's attributes and URL."""
        found = api.call("get_queue_attributes", QueueUrl=physical_id, AttributeNames=["All"])["Attributes"]
        return {**found, "QueueUrl": physical_id}

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, URL and name. For Fn::GetAtt, the documentation lists QueueName, but the schema does not."""
        arn = found["QueueArn"]
        return {"Arn": arn, "QueueUrl": found["QueueUrl"], "QueueName": arn.rsplit(":", 1)[-1]}


class AttachedPolicy(Resource):
    """Base class for topic and queue policies, which apply a document to several resources and have generated IDs."""

    holders: ClassVar[str]
    holder: ClassVar[str]
    reads: ClassVar[str]

    def set_policy(self, api: ResourceApi, holder: str, document: Any) -> None:
        """Set a resource's policy. None restores the default policy."""
        raise NotImplementedError

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Set the policy on all resources and return a generated ID."""
        for holder in properties[self.holders]:
            self.set_policy(api, holder, properties["PolicyDocument"])
        return api.context.generated_name(maximum_length=128)

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the policy on all listed resources and remove it from resources that are no longer listed."""
        if old == new:
            return
        for holder in added_removed(old, new, self.holders)[1]:
            self._remove_policy(api, holder)
        for holder in new[self.holders]:
            self.set_policy(api, holder, new["PolicyDocument"])

    def _remove_policy(self, api: ResourceApi, holder: str) -> None:
        try:
            self.set_policy(api, holder, None)
        except ClientError as error:
            if error_code(error) not in self.not_found_codes:
                raise

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the ID if the first resource has the policy."""
        holder = {self.holder: properties[self.holders][0]}
        names = {"AttributeNames": ["Policy"]} if self.service == "sqs" else {}
        found = api.call(self.reads, **holder, **names).get("Attributes", {}).get("Policy")
        wanted = json.loads(text(properties["PolicyDocument"]))
        return {"Id": physical_id} if found and json.loads(found) == wanted else None

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["Id"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Remove the policy from all resources."""
        for holder in properties[self.holders]:
            self._remove_policy(api, holder)


class TopicPolicy(AttachedPolicy):
    """AWS::SNS::TopicPolicy. Deleting it restores SNS's default policy."""

    type_name = "AWS::SNS::TopicPolicy"
    service = "sns"
    updatable = frozenset({"PolicyDocument", "Topics"})
    not_found_codes = _TOPIC_NOT_FOUND
    holders, holder, reads = "Topics", "TopicArn", "get_topic_attributes"

    def set_policy(self, api: ResourceApi, holder: str, document: Any) -> None:
        """Set the Policy attribute or restore its default."""
        policy = document if document is not None else _default_topic_policy(api, holder)
        api.call("set_topic_attributes", TopicArn=holder, AttributeName="Policy", AttributeValue=policy)


def _default_topic_policy(api: ResourceApi, topic: str) -> dict[str, Any]:
    actions: tuple[str, ...] = (
        "Publish",
        "RemovePermission",
        "SetTopicAttributes",
        "DeleteTopic",
        "ListSubscriptionsByTopic",
    )
    actions += ("GetTopicAttributes", "AddPermission", "Subscribe")
    statement = {"Sid": "__default_statement_ID", "Effect": "Allow", "Principal": {"AWS": "*"}, "Resource": topic}
    owner = {"StringEquals": {"AWS:SourceOwner": api.context.account}}
    allowed = {**statement, "Action": [f"SNS:{action}" for action in actions], "Condition": owner}
    return {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [allowed]}


class QueuePolicy(AttachedPolicy):
    """AWS::SQS::QueuePolicy."""

    type_name = "AWS::SQS::QueuePolicy"
    service = "sqs"
    updatable = frozenset({"PolicyDocument", "Queues"})
    not_found_codes = _QUEUE_NOT_FOUND
    holders, holder, reads = "Queues", "QueueUrl", "get_queue_attributes"

    def set_policy(self, api: ResourceApi, holder: str, document: Any) -> None:
        """Set the Policy attribute or restore its default."""
        policy = "" if document is None else text(document)
        api.call("set_queue_attributes", QueueUrl=holder, Attributes={"Policy": policy})


PROVIDERS = (Topic(), Subscription(), TopicPolicy(), Queue(), QueuePolicy())
