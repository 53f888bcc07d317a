"""Stack operations: cancellation, rollback, NoEcho parameters, regions, snapshots and rejected requests."""

from __future__ import annotations

import json
import threading
from typing import Any

import botocore.session
import pytest

from localcloud.api import ApiError, Call, Principal
from localcloud.cloudformation.engine.stack import Stack
from localcloud.cloudformation.views import stack_view


def parameter(value: Any, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}, **more}


def test_every_operation_of_the_api_has_a_handler(cloud):
    model = botocore.session.get_session().get_service_model("cloudformation")
    assert set(cloud.service.operations()) == set(model.operation_names)
    with pytest.raises(ApiError, match="CreateStackSet: this CloudFormation operation is not emulated"):
        cloud("CreateStackSet", StackSetName="x")


@pytest.mark.parametrize(
    "option",
    [
        {"NotificationARNs": ["arn:aws:sns:eu-west-1:123456789012:t"]},
        {"RollbackConfiguration": {"RollbackTriggers": [{"Arn": "a", "Type": "AWS::CloudWatch::Alarm"}]}},
        {"TimeoutInMinutes": 5},
        {"StackPolicyBody": "{}"},
        {"ResourceTypes": ["AWS::S3::Bucket"]},
    ],
)
def test_options_not_emulated_are_rejected(cloud, option):
    with pytest.raises(ApiError, match=next(iter(option))):
        cloud("CreateStack", StackName="app", TemplateBody=json.dumps({"Resources": {"A": parameter("1")}}), **option)
    assert not cloud.exists("app")


def test_running_update_can_be_cancelled(cloud, account):
    chain = {"Resources": {"A": parameter("1"), "B": parameter("1", DependsOn="A")}}
    cloud.deploy("app", chain)
    started, release = threading.Event(), threading.Event()

    def hold(action: str, logical_id: str) -> None:
        if (action, logical_id) == ("update", "A") and not started.is_set():
            started.set()
            release.wait(5)

    account.before = hold
    new = {"Resources": {"A": parameter("2"), "B": parameter("2", DependsOn="A")}}
    cloud("UpdateStack", StackName="app", TemplateBody=json.dumps(new))
    assert started.wait(5)
    cloud("CancelUpdateStack", StackName="app")
    release.set()
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"
    assert account.done("update") == ["A", "A"]
    assert account.resources[cloud.physical_id("app", "A")]["Value"] == "1"
    with pytest.raises(ApiError, match="cannot be called from current stack status"):
        cloud("CancelUpdateStack", StackName="app")


def test_returned_status_always_has_its_event(monkeypatch):
    stack = Stack("app", "arn:app", "eu-west-1", "123456789012")
    seen: list[tuple[str, int]] = []
    reader = threading.Thread(target=lambda: seen.append((stack_view(stack)["StackStatus"], len(stack.events))))
    write = stack.event

    def write_late(*event: Any) -> None:
        reader.start()
        reader.join(0.2)
        write(*event)

    monkeypatch.setattr(stack, "event", write_late)
    stack.set_status("CREATE_COMPLETE", None)
    reader.join(5)
    assert seen == [("CREATE_COMPLETE", 1)]


def test_on_failure_delete_deletes_the_stack(cloud, account):
    account.failures["create", "B"] = "no"
    body = json.dumps({"Resources": {"A": parameter("1"), "B": parameter({"Ref": "A"})}})
    stack_id = cloud("CreateStack", StackName="app", TemplateBody=body, OnFailure="DELETE")["StackId"]
    assert cloud.settled(stack_id) == "DELETE_COMPLETE"
    assert account.resources == {}


def test_rollback_stack_rolls_back_a_failed_create(cloud, account):
    account.failures["create", "B"] = "no"
    template = {"Resources": {"A": parameter("1", DeletionPolicy="Retain"), "B": parameter({"Ref": "A"})}}
    assert cloud.deploy("app", template, DisableRollback=True) == "CREATE_FAILED"
    assert len(account.resources) == 1
    cloud("RollbackStack", StackName="app", RetainExceptOnCreate=True)
    assert cloud.settled("app") == "ROLLBACK_COMPLETE"
    assert account.resources == {}


def test_two_failed_updates_are_rolled_back_to_the_start(cloud, account):
    def template(name: str, version: str) -> dict[str, Any]:
        queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name}}
        last = parameter(version, DependsOn=["Q", "P"])
        return {"Resources": {"Q": queue, "P": parameter({"Ref": "Q"}), "Last": last}}

    cloud.deploy("app", template("q1", "1"))
    before = dict(account.resources)
    account.failures["update", "Last"] = "no"
    for name in ("q2", "q3"):
        assert cloud.deploy("app", template(name, name), DisableRollback=True) == "UPDATE_FAILED"
    assert {"q1", "q2", "q3"} <= account.resources.keys()
    account.failures.clear()
    cloud("RollbackStack", StackName="app")
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"
    assert account.resources == before
    assert cloud.physical_id("app", "Q") == "q1"


def test_update_of_a_failed_stack_leaves_no_extra_resources(cloud, account):
    def template(name: str, version: str) -> dict[str, Any]:
        queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name}}
        return {"Resources": {"Q": queue, "Last": parameter(version, DependsOn="Q")}}

    cloud.deploy("app", template("q1", "1"))
    account.failures["update", "Last"] = "no"
    assert cloud.deploy("app", template("q2", "2"), DisableRollback=True) == "UPDATE_FAILED"
    account.failures.clear()
    assert cloud.deploy("app", template("q3", "3"), DisableRollback=True) == "UPDATE_COMPLETE"
    assert set(account.resources) == {"q3", cloud.physical_id("app", "Last")}


def test_noecho_values_are_masked(cloud):
    def template(**more: Any) -> dict[str, Any]:
        declared = {"Secret": {"Type": "String", "NoEcho": True}}
        value = {"Fn::Join": ["", ['{"key": "', {"Ref": "Secret"}, '"}']]}
        return {"Parameters": declared, "Resources": {"A": parameter(value, **more)}}

    secret = [{"ParameterKey": "Secret", "ParameterValue": 'open"sesame'}]
    cloud.deploy("app", template(), Parameters=secret)
    changed = [{"ParameterKey": "Secret", "ParameterValue": "other-word"}]
    described = cloud.change_set("app", template(), Parameters=changed)
    names = {"StackName": "app", "ChangeSetName": described["ChangeSetName"]}
    shown = json.dumps(cloud("DescribeChangeSet", **names, IncludePropertyValues=True), default=str)
    shown += json.dumps(cloud.stack("app"), default=str)
    assert "sesame" not in shown
    assert "other-word" not in shown
    assert "****" in shown


def test_new_resource_has_another_name_than_the_retained_one(cloud, account):
    kept = {"Resources": {"A": parameter("1", DeletionPolicy="Retain"), "B": parameter("1")}}
    cloud.deploy("app", kept)
    first = account.contexts["A"].generated_name()
    cloud.deploy("app", {"Resources": {"B": parameter("1")}})
    cloud.deploy("app", kept)
    assert account.contexts["A"].generated_name() != first


def test_stack_output_of_another_region_does_not_block_its_stack(cloud, account):
    body = json.dumps({"Resources": {"A": parameter("1")}, "Outputs": {"O": {"Value": "far"}}})
    root = Principal("arn:aws:iam::123456789012:root", "123456789012", "root")
    far = {"StackName": "exporter", "TemplateBody": body}
    cloud.service.operations()["CreateStack"](
        Call("cloudformation", "CreateStack", far, root, "us-east-2", "123456789012")
    )
    reference = {"Fn::GetStackOutput": {"StackName": "exporter", "OutputName": "O", "Region": "us-east-2"}}
    describe = cloud.service.operations()["DescribeStacks"]
    call = Call("cloudformation", "DescribeStacks", {"StackName": "exporter"}, root, "us-east-2", "123456789012")
    cloud.until(lambda: describe(call)["Stacks"][0]["StackStatus"], lambda status: status == "CREATE_COMPLETE")
    assert cloud.deploy("importer", {"Resources": {"B": parameter(reference)}}) == "CREATE_COMPLETE"
    assert account.resources[cloud.physical_id("importer", "B")]["Value"] == "far"
    with pytest.raises(ApiError, match="Stack with id exporter does not exist"):
        cloud("DescribeStacks", StackName="exporter")


def test_snapshot_policy_snapshots_volumes_and_rejects_other_types(cloud, account):
    taken: list[str] = []

    class Ec2:
        def create_snapshot(self, VolumeId: str, **_: Any) -> dict[str, Any]:  # noqa: N803
            assert VolumeId in account.resources
            taken.append(VolumeId)
            return {"SnapshotId": "snap-1"}

        def get_waiter(self, name: str) -> Any:
            assert name == "snapshot_completed"
            return self

        def wait(self, SnapshotIds: list[str]) -> None:  # noqa: N803
            assert SnapshotIds == ["snap-1"]

    cloud.clients.services["ec2"] = Ec2()
    volume = {"Type": "AWS::EC2::Volume", "Properties": {"AvailabilityZone": "a"}, "DeletionPolicy": "Snapshot"}
    cloud.deploy("app", {"Resources": {"V": volume}})
    volume_id = cloud.physical_id("app", "V")
    assert cloud.delete("app") == "DELETE_COMPLETE"
    assert taken == [volume_id]
    assert account.resources == {}
    with pytest.raises(ApiError, match="DeletionPolicy Snapshot"):
        cloud.change_set("app", {"Resources": {"A": parameter("1", DeletionPolicy="Snapshot")}})


def test_unsupported_update_is_rejected(cloud, account):
    def template(zone: str) -> dict[str, Any]:
        return {"Resources": {"V": {"Type": "AWS::EC2::Volume", "Properties": {"AvailabilityZone": zone, "Size": 1}}}}

    cloud.deploy("app", template("a"))
    with pytest.raises(ApiError, match="V: Updates of AvailabilityZone are not supported for AWS::EC2::Volume"):
        cloud.change_set("app", template("b"))


def test_reference_to_a_resource_with_a_false_condition_is_rejected(cloud):
    template = {
        "Conditions": {"No": {"Fn::Equals": ["a", "b"]}},
        "Resources": {"A": parameter("1", Condition="No"), "B": parameter("1")},
        "Outputs": {"O": {"Value": {"Ref": "A"}}},
    }
    with pytest.raises(ApiError, match=r"Unresolved resource dependencies \[A\]"):
        cloud.change_set("app", template)


def test_operation_events_list_failures(cloud, account):
    account.failures["create", "A"] = "no"
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    seen = cloud("DescribeEvents", StackName="app", Filters={"FailedEvents": True})["OperationEvents"]
    assert [(e["LogicalResourceId"], e["EventType"]) for e in seen] == [("A", "PROVISIONING_ERROR")]
    kinds = [entry["OperationType"] for entry in cloud.stack("app")["LastOperations"]]
    assert kinds == ["ROLLBACK", "CREATE_STACK"]
    rolled_back = cloud.stack("app")["LastOperations"][0]["OperationId"]
    events = cloud("DescribeEvents", OperationId=rolled_back)["OperationEvents"]
    assert {event["ResourceStatus"] for event in events} == {"ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE"}


def test_response_without_a_request_is_rejected(cloud):
    assert cloud.service.http("PUT", "response/unknown", b'{"Status": "SUCCESS"}')[0] == 403
    assert cloud.service.http("GET", "response/unknown", b"")[0] == 404
