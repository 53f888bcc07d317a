"""Creation, update, replacement and deletion: the calls and their order."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from localcloud.api import ApiError


def parameter(value: Any, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}, **more}


def queue(name: str | None = None, **properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::SQS::Queue", "Properties": {**({"QueueName": name} if name else {}), **properties}}


def test_resources_are_created_after_their_dependencies_and_deleted_before_them(cloud, account):
    template = {
        "Resources": {
            "Last": parameter({"Fn::Sub": "${Middle}"}),
            "Middle": parameter({"Fn::GetAtt": ["First", "Arn"]}),
            "First": parameter("1", DependsOn="Zeroth"),
            "Zeroth": parameter("0"),
        }
    }
    assert cloud.deploy("app", template) == "CREATE_COMPLETE"
    assert account.done("create") == ["Zeroth", "First", "Middle", "Last"]
    assert cloud.delete("app") == "DELETE_COMPLETE"
    assert account.done("delete") == ["Last", "Middle", "First", "Zeroth"]
    assert account.resources == {}


def test_events_are_in_order_with_the_callers_token(cloud):
    template = {"Resources": {"B": parameter({"Ref": "A"}), "A": parameter("1")}}
    cloud.deploy("app", template, ClientRequestToken="exec-1")
    seen = [(e["LogicalResourceId"], e["ResourceStatus"]) for e in cloud.events("app")]
    assert seen == [
        ("app", "REVIEW_IN_PROGRESS"),
        ("app", "CREATE_IN_PROGRESS"),
        ("A", "CREATE_IN_PROGRESS"),
        ("A", "CREATE_IN_PROGRESS"),  # with its physical ID
        ("A", "CREATE_COMPLETE"),
        ("B", "CREATE_IN_PROGRESS"),
        ("B", "CREATE_IN_PROGRESS"),  # with its physical ID
        ("B", "CREATE_COMPLETE"),
        ("app", "CREATE_COMPLETE"),
    ]
    assert {e.get("ClientRequestToken") for e in cloud.events("app")[1:]} == {"exec-1"}
    times = [e["Timestamp"] for e in cloud.events("app")]
    # Also ordered at millisecond resolution, since clients sort by milliseconds.
    milliseconds = [int(time.timestamp() * 1000) for time in times]
    assert milliseconds == sorted(set(milliseconds))


def test_independent_resources_are_created_in_parallel(cloud, account):
    barrier = threading.Barrier(3)
    account.before = lambda action, _: barrier.wait(timeout=5) if action == "create" else None
    template = {"Resources": {name: parameter("1") for name in ("A", "B", "C")}}
    assert cloud.deploy("app", template) == "CREATE_COMPLETE"


def test_changed_property_updates_only_its_resource(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("2")}})
    before = cloud.physical_id("app", "A")
    assert cloud.deploy("app", {"Resources": {"A": parameter("9"), "B": parameter("2")}}) == "UPDATE_COMPLETE"
    assert account.done("update") == ["A"]
    assert cloud.physical_id("app", "A") == before
    assert account.resources[before]["Value"] == "9"
    assert cloud.statuses("app")[-3:] == [
        "UPDATE_IN_PROGRESS",
        "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS",
        "UPDATE_COMPLETE",
    ]


def test_replacement_creates_updates_dependants_and_deletes_in_order(cloud, account):
    def template(name: str) -> dict[str, Any]:
        return {"Resources": {"Q": queue(name), "P": parameter({"Ref": "Q"}), "Other": parameter("same")}}

    cloud.deploy("app", template("one"))
    account.log.clear()
    assert cloud.deploy("app", template("two")) == "UPDATE_COMPLETE"
    assert [(what, who) for what, who, _ in account.log] == [("create", "Q"), ("update", "P"), ("delete", "Q")]
    assert account.log[-1][2] == "one"
    assert account.resources[cloud.physical_id("app", "P")]["Value"] == "two"


def test_named_resource_cannot_be_replaced_under_the_same_name(cloud, account):
    def template(path: str) -> dict[str, Any]:
        properties = {"RoleName": "worker", "AssumeRolePolicyDocument": {}, "Path": path}
        return {"Resources": {"R": {"Type": "AWS::IAM::Role", "Properties": properties}}}

    capabilities = {"Capabilities": ["CAPABILITY_NAMED_IAM"]}
    cloud.deploy("app", template("/a/"), **capabilities)
    assert cloud.deploy("app", template("/b/"), **capabilities) == "UPDATE_ROLLBACK_COMPLETE"
    reasons = [e.get("ResourceStatusReason", "") for e in cloud.events("app") if e["LogicalResourceId"] == "R"]
    assert any("custom-named resource requires replacing" in r and "Rename worker" in r for r in reasons), reasons
    assert account.resources["worker"]["Path"] == "/a/"


def test_resource_type_cannot_change(cloud, account):
    cloud.deploy("app", {"Resources": {"X": parameter("1")}})
    with pytest.raises(ApiError, match=r"Update of resource type is not permitted.*\[X\]"):
        cloud.change_set("app", {"Resources": {"X": queue()}})
    assert [r["Value"] for r in account.resources.values()] == ["1"]


@pytest.mark.parametrize(("policy", "stays"), [("Retain", True), ("RetainExceptOnCreate", True), ("Delete", False)])
def test_deletion_policy_of_a_removed_resource(cloud, account, policy, stays):
    kept = parameter("1", DeletionPolicy=policy)
    cloud.deploy("app", {"Resources": {"Kept": kept, "Other": parameter("2")}})
    physical_id = cloud.physical_id("app", "Kept")
    cloud.deploy("app", {"Resources": {"Other": parameter("2")}})
    assert (physical_id in account.resources) is stays
    assert ("DELETE_SKIPPED" in cloud.statuses("app", "Kept")) is stays
    assert [r["LogicalResourceId"] for r in cloud("ListStackResources", StackName="app")["StackResourceSummaries"]] == [
        "Other"
    ]


def test_stack_deletion_keeps_retained_resources(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1", DeletionPolicy="Retain"), "B": parameter("2")}})
    physical_id = cloud.physical_id("app", "A")
    assert cloud.delete("app") == "DELETE_COMPLETE"
    assert list(account.resources) == [physical_id]


def test_update_replace_policy_retains_the_old_resource(cloud, account):
    cloud.deploy("app", {"Resources": {"Q": {**queue("one"), "UpdateReplacePolicy": "Retain"}}})
    cloud.deploy("app", {"Resources": {"Q": {**queue("two"), "UpdateReplacePolicy": "Retain"}}})
    assert set(account.resources) == {"one", "two"}


def test_changed_deletion_policy_applies_to_a_later_removal(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("2")}})
    physical_id = cloud.physical_id("app", "A")
    retained = {"Resources": {"A": parameter("1", DeletionPolicy="Retain"), "B": parameter("2")}}
    assert cloud.deploy("app", retained) == "UPDATE_COMPLETE"
    cloud.deploy("app", {"Resources": {"B": parameter("2")}})
    assert physical_id in account.resources


def test_condition_adds_and_removes_resources(cloud, account):
    template = {
        "Parameters": {"Big": {"Type": "String", "Default": "no", "AllowedValues": ["yes", "no"]}},
        "Conditions": {"IsBig": {"Fn::Equals": [{"Ref": "Big"}, "yes"]}},
        "Resources": {"A": parameter("1"), "B": parameter("2", Condition="IsBig")},
        "Outputs": {"B": {"Value": {"Ref": "B"}, "Condition": "IsBig"}},
    }

    def deploy(value: str) -> str:
        return str(cloud.deploy("app", template, Parameters=[{"ParameterKey": "Big", "ParameterValue": value}]))

    assert deploy("no") == "CREATE_COMPLETE"
    assert account.done("create") == ["A"]
    assert cloud.outputs("app") == {}
    assert deploy("yes") == "UPDATE_COMPLETE"
    assert account.done("create") == ["A", "B"]
    assert "B" in cloud.outputs("app")
    assert deploy("no") == "UPDATE_COMPLETE"
    assert account.done("delete") == ["B"]


def test_metadata_change_updates_no_resource(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1", Metadata={"v": 1})}})
    assert cloud.deploy("app", {"Resources": {"A": parameter("1", Metadata={"v": 2})}}) == "UPDATE_COMPLETE"
    assert account.done("update") == []
    assert '"v": 2' in cloud("GetTemplate", StackName="app")["TemplateBody"]


def test_change_of_outputs_only(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    assert cloud.deploy("app", {"Resources": {"A": parameter("1")}, "Outputs": {"O": {"Value": "x"}}}) == (
        "UPDATE_COMPLETE"
    )
    assert cloud.outputs("app") == {"O": "x"}
    assert account.done("update") == []


def test_changed_stack_tags_update_the_resources(cloud, account):
    template = {"Resources": {"A": parameter("1")}}
    cloud.deploy("app", template, Tags=[{"Key": "team", "Value": "red"}])
    tags = account.contexts["A"].tags
    assert tags["team"] == "red"
    assert tags["aws:cloudformation:stack-name"] == "app"
    assert tags["aws:cloudformation:logical-id"] == "A"
    assert cloud.deploy("app", template, Tags=[{"Key": "team", "Value": "blue"}]) == "UPDATE_COMPLETE"
    assert account.done("update") == ["A"]
    assert account.contexts["A"].tags["team"] == "blue"


def test_providers_get_creation_and_update_policies(cloud, account):
    group = {
        "Type": "AWS::AutoScaling::AutoScalingGroup",
        "Properties": {"MinSize": "0", "MaxSize": "1"},
        "UpdatePolicy": {"AutoScalingRollingUpdate": {"MinInstancesInService": 0}},
    }
    cloud.deploy("app", {"Resources": {"G": group}})
    assert account.contexts["G"].attributes == {"UpdatePolicy": group["UpdatePolicy"]}
    assert set(account.resources[cloud.physical_id("app", "G")]) == {"Type", "MinSize", "MaxSize"}


def test_clients_use_the_stacks_role(cloud, account):
    role = "arn:aws:iam::123456789012:role/exec"
    cloud.deploy("app", {"Resources": {"A": parameter("1")}}, RoleARN=role)
    account.contexts["A"].client("ssm")
    assert cloud.clients.asked[-1] == ("ssm", role)
    assert cloud.stack("app")["RoleARN"] == role


def test_generated_name_is_stable_over_updates(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    first = account.contexts["A"].generated_name()
    cloud.deploy("app", {"Resources": {"A": parameter("2")}})
    assert account.contexts["A"].generated_name() == first


def test_direct_calls_create_and_update_a_stack(cloud, account):
    body = json.dumps({"Resources": {"A": parameter("1")}})
    stack_id = cloud("CreateStack", StackName="app", TemplateBody=body)["StackId"]
    assert cloud.settled(stack_id) == "CREATE_COMPLETE"
    cloud("UpdateStack", StackName="app", TemplateBody=json.dumps({"Resources": {"A": parameter("2")}}))
    assert cloud.settled(stack_id) == "UPDATE_COMPLETE"
    with pytest.raises(Exception, match="No updates are to be performed."):
        cloud("UpdateStack", StackName="app", UsePreviousTemplate=True)
    with pytest.raises(Exception, match="AlreadyExists"):
        cloud("CreateStack", StackName="app", TemplateBody=body)
