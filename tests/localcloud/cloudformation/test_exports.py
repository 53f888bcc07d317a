"""Exports, drift detection, stack protection, event paging and custom resources."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from localcloud.api import ApiError


def parameter(value: Any, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}, **more}


def exporter(value: Any = "v1", name: str = "shared") -> dict[str, Any]:
    return {"Resources": {"A": parameter("1")}, "Outputs": {"O": {"Value": value, "Export": {"Name": name}}}}


IMPORTER = {"Resources": {"B": parameter({"Fn::ImportValue": "shared"})}}


def test_export_is_imported_and_listed(cloud, account):
    cloud.deploy("exporter", exporter())
    assert cloud.deploy("importer", IMPORTER) == "CREATE_COMPLETE"
    assert account.resources[cloud.physical_id("importer", "B")]["Value"] == "v1"
    (export,) = cloud("ListExports")["Exports"]
    assert (export["Name"], export["Value"]) == ("shared", "v1")
    assert cloud("ListImports", ExportName="shared")["Imports"] == ["importer"]


def test_imported_export_cannot_change_or_be_deleted(cloud):
    cloud.deploy("exporter", exporter())
    cloud.deploy("importer", IMPORTER)
    assert cloud.deploy("exporter", exporter("v2")) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Cannot update export shared as it is in use by importer" in str(cloud.events("exporter"))
    assert cloud.deploy("exporter", {"Resources": {"A": parameter("1")}}) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Cannot delete export shared as it is in use by importer" in str(cloud.events("exporter"))
    assert cloud.delete("exporter") == "UPDATE_ROLLBACK_COMPLETE"
    assert "Delete canceled. Cannot delete export shared" in cloud.stack("exporter")["StackStatusReason"]
    assert cloud("ListExports")["Exports"][0]["Value"] == "v1"
    cloud.delete("importer")
    assert cloud.deploy("exporter", exporter("v2")) == "UPDATE_COMPLETE"
    assert cloud.delete("exporter") == "DELETE_COMPLETE"


def test_export_names_are_unique(cloud):
    cloud.deploy("exporter", exporter())
    assert cloud.deploy("second", exporter()) == "ROLLBACK_COMPLETE"
    assert "Export with name shared is already exported by stack exporter" in str(cloud.events("second"))


def test_import_without_an_export_fails_when_it_is_created(cloud):
    assert cloud.deploy("importer", IMPORTER) == "ROLLBACK_COMPLETE"
    assert "No export named shared found" in str(cloud.events("importer"))


def test_drift_detection_finds_a_deleted_resource(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("2")}})

    def detect() -> Any:
        detection = cloud("DetectStackDrift", StackName="app")["StackDriftDetectionId"]
        return cloud.until(
            lambda: cloud("DescribeStackDriftDetectionStatus", StackDriftDetectionId=detection),
            lambda answer: answer["DetectionStatus"] != "DETECTION_IN_PROGRESS",
        )

    assert detect()["StackDriftStatus"] == "IN_SYNC"
    account.resources.pop(cloud.physical_id("app", "A"))
    answer = detect()
    assert answer["DetectionStatus"] == "DETECTION_COMPLETE"
    assert (answer["StackDriftStatus"], answer["DriftedStackResourceCount"]) == ("DRIFTED", 1)
    drifts = cloud("DescribeStackResourceDrifts", StackName="app")["StackResourceDrifts"]
    assert {d["LogicalResourceId"]: d["StackResourceDriftStatus"] for d in drifts} == {"A": "DELETED"}
    unread = cloud("DescribeStackResource", StackName="app", LogicalResourceId="B")["StackResourceDetail"]
    assert unread["DriftInformation"] == {"StackResourceDriftStatus": "NOT_CHECKED"}


def test_protected_stack_is_not_deleted(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    cloud("UpdateTerminationProtection", StackName="app", EnableTerminationProtection=True)
    assert cloud.stack("app")["EnableTerminationProtection"] is True
    with pytest.raises(ApiError, match="TerminationProtection is enabled"):
        cloud("DeleteStack", StackName="app")
    assert len(account.resources) == 1
    cloud("UpdateTerminationProtection", StackName="app", EnableTerminationProtection=False)
    assert cloud.delete("app") == "DELETE_COMPLETE"


def test_second_operation_is_rejected_while_one_is_running(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    release = threading.Event()
    account.before = lambda action, logical_id: release.wait(5) and None
    body = '{"Resources": {"A": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "2"}}}}'
    cloud("UpdateStack", StackName="app", TemplateBody=body)
    try:
        with pytest.raises(ApiError, match="is in UPDATE_IN_PROGRESS state and can not be updated"):
            cloud("UpdateStack", StackName="app", TemplateBody=body.replace('"2"', '"3"'))
    finally:
        release.set()
    assert cloud.settled("app") == "UPDATE_COMPLETE"


def test_deleted_stack_is_found_by_its_arn_only(cloud):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    stack_id = cloud.stack("app")["StackId"]
    cloud.delete("app")
    assert cloud.stack(stack_id)["StackStatus"] == "DELETE_COMPLETE"
    with pytest.raises(ApiError, match="^ValidationError: Stack with id app does not exist$"):
        cloud("DescribeStacks", StackName="app")
    cloud("DeleteStack", StackName="app")
    assert cloud.deploy("app", {"Resources": {"A": parameter("1")}}) == "CREATE_COMPLETE"
    assert cloud.stack("app")["StackId"] != stack_id


def test_events_are_paged_newest_first(cloud):
    cloud.deploy("app", {"Resources": {f"P{i}": parameter(str(i)) for i in range(80)}})
    page = cloud("DescribeStackEvents", StackName="app")
    events = list(page["StackEvents"])
    assert len(events) == 100
    while page.get("NextToken"):
        page = cloud("DescribeStackEvents", StackName="app", NextToken=page["NextToken"])
        events += page["StackEvents"]
    assert len(events) == 3 + 3 * 80
    assert events[0]["ResourceStatus"] == "CREATE_COMPLETE"
    assert len({event["EventId"] for event in events}) == len(events)


@pytest.mark.parametrize("answers", [True, False])
def test_custom_resource_is_created_by_its_function(cloud, answers):
    function = cloud.clients.services["lambda"]
    function.answer = lambda request: (
        {
            "Status": "SUCCESS" if answers or request["RequestType"] == "Delete" else "FAILED",
            "Reason": "a reason from the function",
            "PhysicalResourceId": f"custom-{request['ResourceProperties']['Size']}",
            "Data": {"Answer": "42"},
        }
    )

    def template(size: int) -> dict[str, Any]:
        arn = "arn:aws:lambda:eu-west-1:123456789012:function:f"
        custom = {"Type": "Custom::Thing", "Properties": {"ServiceToken": arn, "Size": size, "On": True}}
        return {
            "Resources": {"T": custom, "P": parameter({"Fn::GetAtt": ["T", "Answer"]})},
            "Outputs": {"Answer": {"Value": {"Fn::GetAtt": ["T", "Answer"]}}, "Id": {"Value": {"Ref": "T"}}},
        }

    status = cloud.deploy("app", template(1))
    request = function.requests[0]
    assert request["RequestType"] == "Create"
    assert request["ResourceType"] == "Custom::Thing"
    assert request["ResourceProperties"]["Size"] == "1"
    assert request["ResourceProperties"]["On"] == "true"
    if not answers:
        assert status == "ROLLBACK_COMPLETE"
        assert "a reason from the function" in str(cloud.events("app"))
        assert [r["RequestType"] for r in function.requests] == ["Create", "Delete"]
        assert function.requests[1]["PhysicalResourceId"] == "custom-1"
        return
    assert status == "CREATE_COMPLETE"
    assert cloud.outputs("app") == {"Answer": "42", "Id": "custom-1"}
    assert cloud.deploy("app", template(2)) == "UPDATE_COMPLETE"
    kinds = [(r["RequestType"], r.get("PhysicalResourceId")) for r in function.requests]
    assert kinds == [("Create", None), ("Update", "custom-1"), ("Delete", "custom-1")]
    assert function.requests[1]["OldResourceProperties"]["Size"] == "1"
    assert cloud.delete("app") == "DELETE_COMPLETE"


def test_custom_resource_without_a_response_times_out(cloud):
    cloud.clients.services["lambda"].answer = lambda request: (
        None if request["RequestType"] == "Create" else {"Status": "SUCCESS"}
    )
    properties = {"ServiceToken": "arn:aws:lambda:eu-west-1:123456789012:function:f", "ServiceTimeout": "1"}
    assert cloud.deploy("app", {"Resources": {"T": {"Type": "Custom::Thing", "Properties": properties}}}) == (
        "ROLLBACK_COMPLETE"
    )
    assert "1" in str([e.get("ResourceStatusReason") for e in cloud.events("app")])
