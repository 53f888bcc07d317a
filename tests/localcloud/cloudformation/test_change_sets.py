"""Change sets' contents, and requests that are rejected before any resource is created."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.api import ApiError

NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."


def parameter(value: Any, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}, **more}


def role(description: str, path: str = "/") -> dict[str, Any]:
    properties = {"AssumeRolePolicyDocument": {}, "Path": path, "Description": description}
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def changes(described: Any) -> dict[str, dict[str, Any]]:
    return {c["ResourceChange"]["LogicalResourceId"]: c["ResourceChange"] for c in described["Changes"]}


def test_change_set_of_a_new_stack_adds_all_resources_and_creates_none(cloud, account):
    described = cloud.change_set("app", {"Resources": {"A": parameter("1"), "B": parameter({"Ref": "A"})}})
    assert described["Status"] == "CREATE_COMPLETE"
    assert described["ExecutionStatus"] == "AVAILABLE"
    assert {name: c["Action"] for name, c in changes(described).items()} == {"A": "Add", "B": "Add"}
    assert all("Replacement" not in c for c in changes(described).values())
    assert cloud.stack("app")["StackStatus"] == "REVIEW_IN_PROGRESS"
    assert account.resources == {}


def test_changes_have_action_replacement_and_details(cloud):
    capabilities = {"Capabilities": ["CAPABILITY_IAM"]}
    old = {"Resources": {"Gone": parameter("1"), "R": role("a"), "S": role("a"), "Same": parameter("1")}}
    new = {"Resources": {"New": parameter("1"), "R": role("b"), "S": role("a", "/other/"), "Same": parameter("1")}}
    cloud.deploy("app", old, **capabilities)
    found = changes(cloud.change_set("app", new, **capabilities))
    assert {name: c["Action"] for name, c in found.items()} == {
        "Gone": "Remove",
        "New": "Add",
        "R": "Modify",
        "S": "Modify",
    }
    assert found["R"]["Replacement"] == "False"
    assert found["S"]["Replacement"] == "True"
    assert found["S"]["Scope"] == ["Properties"]
    (detail,) = found["S"]["Details"]
    assert detail["Target"]["Attribute"] == "Properties"
    assert detail["Target"]["Name"] == "Path"
    assert detail["Target"]["RequiresRecreation"] == "Always"
    assert detail["ChangeSource"] == "DirectModification"
    assert found["R"]["PhysicalResourceId"] == cloud.physical_id("app", "R")


def test_dependants_of_a_replaced_resource_change_with_it(cloud):
    def template(name: str) -> dict[str, Any]:
        queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name}}
        return {"Resources": {"Q": queue, "P": parameter({"Ref": "Q"}), "F": parameter({"Fn::GetAtt": "Q.Arn"})}}

    cloud.deploy("app", template("one"))
    found = changes(cloud.change_set("app", template("two")))
    assert found["Q"]["Replacement"] == "True"
    for name, source, entity in (("P", "ResourceReference", "Q"), ("F", "ResourceAttribute", "Q.Arn")):
        assert found[name]["Action"] == "Modify"
        (detail,) = found[name]["Details"]
        assert (detail["Evaluation"], detail["ChangeSource"], detail["CausingEntity"]) == ("Static", source, entity)


def test_update_in_place_changes_dependants_of_its_attributes_only(cloud):
    def template(user_data: str) -> dict[str, Any]:
        launch = {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": {"UserData": user_data}}}
        group = {
            "Type": "AWS::AutoScaling::AutoScalingGroup",
            "Properties": {
                "MinSize": "0",
                "MaxSize": "1",
                "LaunchTemplate": {
                    "LaunchTemplateId": {"Ref": "Launch"},
                    "Version": {"Fn::GetAtt": ["Launch", "LatestVersionNumber"]},
                },
            },
        }
        return {"Resources": {"Launch": launch, "Group": group, "Pointer": parameter({"Ref": "Launch"})}}

    cloud.deploy("app", template("a"))
    found = changes(cloud.change_set("app", template("b much longer")))
    assert set(found) == {"Launch", "Group"}
    assert found["Group"]["Replacement"] == "False"
    (detail,) = found["Group"]["Details"]  # without IncludePropertyValues, only the cause is shown
    assert detail["Evaluation"] == "Dynamic"
    assert detail["ChangeSource"] == "ResourceAttribute"
    assert detail["CausingEntity"] == "Launch.LatestVersionNumber"
    assert cloud.deploy("app", template("b much longer")) == "UPDATE_COMPLETE"
    assert cloud.account.done("update") == ["Launch", "Group"]


def test_property_values_are_returned_on_request(cloud):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    described = cloud.change_set("app", {"Resources": {"A": parameter("2")}})
    names = {"StackName": "app", "ChangeSetName": described["ChangeSetName"]}
    plain = changes(described)["A"]
    assert "BeforeContext" not in plain
    found = changes(cloud("DescribeChangeSet", **names, IncludePropertyValues=True))["A"]
    assert json.loads(found["BeforeContext"])["Properties"]["Value"] == "1"
    assert json.loads(found["AfterContext"])["Properties"]["Value"] == "2"
    target = found["Details"][0]["Target"]
    assert (target["BeforeValue"], target["AfterValue"]) == ("1", "2")
    assert target["Path"] == "/Properties/Value"


def test_changed_parameter_store_value_is_a_change_of_an_equal_template(cloud):
    template = {
        "Parameters": {"Image": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/image"}},
        "Resources": {"A": parameter({"Ref": "Image"}), "B": parameter("{{resolve:ssm:/image}}")},
    }
    cloud.deploy("app", template)
    shown = cloud.stack("app")["Parameters"]
    assert shown == [{"ParameterKey": "Image", "ParameterValue": "/image", "ResolvedValue": "ami-1"}]
    cloud.clients.services["ssm"].values["/image"] = "ami-2"
    assert set(changes(cloud.change_set("app", template))) == {"A", "B"}


def test_change_set_without_changes_fails_with_the_message_that_the_cdk_recognises(cloud):
    template = {"Resources": {"A": parameter("1")}}
    cloud.deploy("app", template)
    described = cloud.change_set("app", template)
    assert described["Status"] == "FAILED"
    assert described["StatusReason"] == NO_CHANGES
    assert described["ExecutionStatus"] == "UNAVAILABLE"
    names = {"StackName": "app", "ChangeSetName": described["ChangeSetName"]}
    with pytest.raises(ApiError) as refused:
        cloud("ExecuteChangeSet", **names)
    assert refused.value.code == "InvalidChangeSetStatus"
    cloud("DeleteChangeSet", **names)
    listed = [s["ChangeSetName"] for s in cloud("ListChangeSets", StackName="app")["Summaries"]]
    assert described["ChangeSetName"] not in listed


def test_reordered_keys_are_no_change(cloud):
    first = {"Resources": {"A": {"Type": "AWS::S3::Bucket", "Properties": {"Tags": [{"Key": "k", "Value": "v"}]}}}}
    second = {"Resources": {"A": {"Properties": {"Tags": [{"Value": "v", "Key": "k"}]}, "Type": "AWS::S3::Bucket"}}}
    cloud.deploy("app", first)
    assert cloud.change_set("app", second)["Status"] == "FAILED"


def test_missing_change_set_is_a_404_and_deleting_it_is_no_error(cloud):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    with pytest.raises(ApiError) as refused:
        cloud("DescribeChangeSet", StackName="app", ChangeSetName="nothing")
    assert (refused.value.code, refused.value.status) == ("ChangeSetNotFound", 404)
    cloud("DeleteChangeSet", StackName="app", ChangeSetName="nothing")


def test_change_sets_are_paged(cloud):
    template = {"Resources": {f"P{i}": parameter(str(i)) for i in range(150)}}
    described = cloud.change_set("app", template)
    names = {"StackName": "app", "ChangeSetName": described["ChangeSetName"]}
    seen = [c["ResourceChange"]["LogicalResourceId"] for c in described["Changes"]]
    assert len(seen) == 100
    while described.get("NextToken"):
        described = cloud("DescribeChangeSet", **names, NextToken=described["NextToken"])
        seen += [c["ResourceChange"]["LogicalResourceId"] for c in described["Changes"]]
    assert sorted(seen) == sorted(template["Resources"])


def test_change_set_is_obsolete_after_another_was_executed(cloud):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    late = cloud.change_set("app", {"Resources": {"A": parameter("2")}})
    cloud.deploy("app", {"Resources": {"A": parameter("3")}})
    with pytest.raises(ApiError):
        cloud("ExecuteChangeSet", StackName="app", ChangeSetName=late["ChangeSetName"])


def test_deleting_the_only_change_set_keeps_a_stack_in_review(cloud):
    described = cloud.change_set("app", {"Resources": {"A": parameter("1")}})
    cloud("DeleteChangeSet", StackName="app", ChangeSetName=described["ChangeSetName"])
    assert cloud.stack("app")["StackStatus"] == "REVIEW_IN_PROGRESS"
    assert cloud.deploy("app", {"Resources": {"A": parameter("1")}}) == "CREATE_COMPLETE"


def test_type_without_provider_is_rejected(cloud, account):
    template = {"Resources": {"A": parameter("1"), "Db": {"Type": "AWS::Neptune::DBCluster", "Properties": {}}}}
    with pytest.raises(ApiError, match="Resources/Db: AWS::Neptune::DBCluster is not emulated"):
        cloud.change_set("app", template)
    assert not cloud.exists("app")
    assert account.resources == {}


def test_accepted_types_deploy_without_a_provider(cloud, account):
    metadata = {"Type": "AWS::CDK::Metadata", "Properties": {"Analytics": "v2"}}
    assert cloud.deploy("app", {"Resources": {"CDKMetadata": metadata}}) == "CREATE_COMPLETE"
    assert account.resources == {}


def test_missing_required_properties_fail_the_resource(cloud, account):
    broken = {"Type": "AWS::SSM::Parameter", "Properties": {"Value": "1"}}
    assert cloud.deploy("app", {"Resources": {"A": broken}}) == "ROLLBACK_COMPLETE"
    failed = next(event for event in cloud.events("app") if event["ResourceStatus"] == "CREATE_FAILED")
    assert failed["ResourceStatusReason"] == "Property validation failure: [The property {/Type} is required]"
    assert account.resources == {}


@pytest.mark.parametrize(
    ("properties", "given", "needed"),
    [
        ({"AssumeRolePolicyDocument": {}}, [], "CAPABILITY_IAM"),
        ({"AssumeRolePolicyDocument": {}, "RoleName": "x"}, ["CAPABILITY_IAM"], "CAPABILITY_NAMED_IAM"),
    ],
)
def test_iam_resources_require_a_capability(cloud, properties, given, needed):
    template = {"Resources": {"R": {"Type": "AWS::IAM::Role", "Properties": properties}}}
    with pytest.raises(ApiError) as refused:
        cloud("CreateStack", StackName="app", TemplateBody=json.dumps(template), Capabilities=given)
    assert refused.value.code == "InsufficientCapabilitiesException"
    assert needed in refused.value.message


def test_import_is_rejected(cloud):
    with pytest.raises(ApiError, match="ChangeSetType IMPORT: importing existing resources is not emulated"):
        cloud(
            "CreateChangeSet",
            StackName="app",
            ChangeSetName="x",
            ChangeSetType="IMPORT",
            TemplateBody='{"Resources": {"A": {"Type": "AWS::S3::Bucket"}}}',
        )
