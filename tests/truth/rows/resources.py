"""Resources of stacks as their services show them, unknown values in change sets, and drift of functions.

The sources are snapshot tests of LocalStack, whose responses were recorded on AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from tests.truth.row import Account, Row
from tests.truth.rows.stacks import RECORDED, Stack, body, creating, details, parameter, template, topic, updated

OF_TYPES = f"{RECORDED}resources/"
EXPORTS = f"{RECORDED}test_change_set_exports_imports.snapshot.json#TestChangeSetImportExport::"
SPLIT = f"{RECORDED}test_change_set_fn_split.snapshot.json#TestChangeSetFnSplit::test_fn_split_with_get_att"
INCOMPLETE = (
    "[WARN] --include-property-values option can return incomplete ChangeSet data because: "
    "ChangeSet creation failed for resource "
)
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
ROLE = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": TRUST}}
FUNCTION = {
    "Type": "AWS::Lambda::Function",
    "Properties": {
        "Code": {"ZipFile": "def handler(event, context):\n    pass\n"},
        "Description": "one",
        "Environment": {"Variables": {"A": "1"}},
        "Handler": "index.handler",
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
        "Runtime": "python3.12",
    },
}
FUNCTION_STACK = template({"Role": ROLE, "F": FUNCTION})
NETWORK = template(
    {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "T": {"Type": "AWS::EC2::RouteTable", "Properties": {"VpcId": {"Ref": "Vpc"}}},
    }
)


def created(account: Account, found: Any, logical_id: str) -> str:
    """Create a stack and return the physical ID of one of its resources."""
    stack = Stack(account).create(found, Capabilities=["CAPABILITY_IAM"])
    detail = stack.call("describe_stack_resource", LogicalResourceId=logical_id)["StackResourceDetail"]
    return str(detail["PhysicalResourceId"])


def importing(name: str) -> dict[str, Any]:
    return template({"A": parameter({"Fn::ImportValue": name})})


def exported_later(account: Account) -> Any:
    """Execute a change set whose export did not exist when it was created."""
    stack = Stack(account)
    stack.change_set(importing("truth-later"))
    Stack(account).create(template(Outputs={"O": {"Value": "v", "Export": {"Name": "truth-later"}}}))
    stack.execute()
    return stack.shown()["StackStatus"]


def never_exported(account: Account) -> Any:
    stack = Stack(account)
    stack.call("create_stack", TemplateBody=body(importing("truth-never")))
    while stack.shown()["StackStatus"].endswith("IN_PROGRESS"):
        pass
    return stack.shown()


def drift(**settings: Any) -> Callable[[Account], Any]:
    """Return a call that changes a function outside its stack and detects drift."""

    def send(account: Account) -> Any:
        stack = Stack(account).create(FUNCTION_STACK, Capabilities=["CAPABILITY_IAM"])
        detail = stack.call("describe_stack_resource", LogicalResourceId="F")["StackResourceDetail"]
        client = account.client("lambda")
        if settings:
            client.update_function_configuration(FunctionName=detail["PhysicalResourceId"], **settings)
        return stack.call("detect_stack_resource_drift", LogicalResourceId="F")["StackResourceDrift"]

    return send


def missing_parameter(account: Account) -> Any:
    """Return the response to a request for a parameter that does not exist."""
    try:
        return account.client("ssm").get_parameter(Name="/truth/missing")
    except ClientError as error:
        return error.response


DRIFTED = f"{RECORDED}api/test_drift_detection.snapshot.json#test_drift_detection_on_lambda"
ROWS = [
    Row("route table", lambda a: a.client("ec2").describe_route_tables(
        RouteTableIds=[created(a, NETWORK, "T")])["RouteTables"][0],
        f"{OF_TYPES}test_ec2.snapshot.json#test_simple_route_table_creation",
        holds=lambda found: found["PropagatingVgws"] == [] and found["Associations"] == []),
    Row("log group", lambda a: a.client("logs").describe_log_groups(
        logGroupNamePrefix=created(a, template({"G": {"Type": "AWS::Logs::LogGroup"}}), "G"))["logGroups"][0],
        f"{OF_TYPES}test_logs.snapshot.json#test_cfn_handle_log_group_resource",
        holds=lambda found: found["logGroupClass"] == "STANDARD"),
    Row("topic", lambda a: a.client("sns").get_topic_attributes(
        TopicArn=created(a, template({"T": topic()}), "T"))["Attributes"],
        f"{OF_TYPES}test_sns.snapshot.json#test_sns_topic_update_attributes",
        holds=lambda found: "DeliveryPolicy" not in found and json.loads(found["EffectiveDeliveryPolicy"])["http"][
            "defaultRequestPolicy"] == {"headerContentType": "text/plain; charset=UTF-8"}),
    Row("topic with an archive", lambda a: a.client("sns").get_topic_attributes(TopicArn=created(a, template(
        {"T": topic(FifoTopic=True, ArchivePolicy={"MessageRetentionPeriod": 30})}), "T"))["Attributes"],
        f"{OF_TYPES}test_sns.snapshot.json#test_sns_topic_with_attributes",
        holds=lambda found: json.loads(found["ArchivePolicy"]) == {"MessageRetentionPeriod": "30"}),
    Row("function without layers", lambda a: a.client("lambda").get_function(
        FunctionName=created(a, FUNCTION_STACK, "F"))["Configuration"],
        f"{OF_TYPES}test_lambda.snapshot.json#TestCfnLambdaIntegrations::test_cfn_lambda_sqs_source",
        holds=lambda found: "RuntimeVersionConfig" in found
        and not {"Layers", "VpcConfig", "KMSKeyArn"} & found.keys()),
    Row("settings of a function changed outside its stack",
        drift(Description="two", Environment={"Variables": {"A": "2"}}), DRIFTED,
        holds=lambda found: found["StackResourceDriftStatus"] == "MODIFIED"
        and sorted(each["PropertyPath"] for each in found["PropertyDifferences"])
        == ["/Description", "/Environment/Variables/A"]
        and "Code" not in json.loads(found["ExpectedProperties"])),
    Row("function that has not changed", drift(), DRIFTED,
        holds=lambda found: found["StackResourceDriftStatus"] == "IN_SYNC"),
    Row("change set with a missing export",
        lambda a: Stack(a).described(importing("truth-missing"), values=True),
        f"{EXPORTS}test_describe_change_set_import_non_existent_export",
        holds=lambda found: found["ExecutionStatus"] == "AVAILABLE"
        and found["StatusReason"] == f"{INCOMPLETE}[A] because: No export named truth-missing"
        and "KNOWN_AFTER_APPLY" in found["Changes"][0]["ResourceChange"]["AfterContext"]),
    Row("change set with a missing export without values", lambda a: Stack(a).described(importing("truth-missing")),
        f"{EXPORTS}test_describe_change_set_import_non_existent_export",
        holds=lambda found: "StatusReason" not in found),
    Row("stack with a missing export", never_exported,
        f"{EXPORTS}test_describe_change_set_import_non_existent_export",
        holds=lambda found: found["StackStatus"] == "ROLLBACK_COMPLETE" and "DeletionTime" in found),
    Row("export added before the execution", exported_later,
        f"{EXPORTS}test_describe_change_set_import_non_existent_export_then_create",
        holds=lambda found: found == "CREATE_COMPLETE"),
    Row("Fn::Join of a list that is not known",
        lambda a: Stack(a).described(template({"A": topic(DisplayName="a-b"), "B": topic(DisplayName={"Fn::Join": [
            "_", {"Fn::Split": ["-", {"Fn::GetAtt": ["A", "TopicName"]}]}]})}), values=True),
        SPLIT, holds=lambda found: found["StatusReason"].startswith(
            f"{INCOMPLETE}[B] because: Template error: every Fn::Join object requires two parameters")),
    Row("parameter in Parameter Store that does not exist",
        creating(template(Parameters={"P": {"Type": "AWS::SSM::Parameter::Value<String>"}}),
                 Parameters=[{"ParameterKey": "P", "ParameterValue": "truth-missing"}]),
        f"{RECORDED}test_template_engine.snapshot.json#TestSsmParameters::test_resolve_ssm_missing_parameter",
        "ValidationError", "Parameter P should either have input value or default value", 400),
    Row("error without a message", missing_parameter,
        f"{RECORDED}api/test_changesets.snapshot.json#TestUpdates::test_deleting_resource",
        holds=lambda found: found["Error"] == {"Code": "ParameterNotFound", "Message": ""} and "message" not in found),
    Row("JSON with a comma after the last item",
        creating(body(template()).replace("}}}", "},},}")),
        f"{OF_TYPES}test_lambda.snapshot.json#test_lambda_cfn_dead_letter_config_async_invocation"),
    Row("metadata that refers to a changed parameter", updated(
        template({"A": parameter(Metadata={"m": {"Ref": "P"}})}, Parameters={"P": {"Type": "String", "Default": "1"}}),
        template({"A": parameter(Metadata={"m": {"Ref": "P"}})}, Parameters={"P": {"Type": "String", "Default": "2"}})),
        f"{RECORDED}api/test_stacks.snapshot.json#test_no_echo_parameter",
        holds=details("A", ("DirectModification", "Dynamic"), ("ParameterReference", "Static"))),
]  # fmt: skip
