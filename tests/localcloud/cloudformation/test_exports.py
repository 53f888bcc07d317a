"""Values that travel between stacks, and what guards stacks against their callers."""

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


def test_an_export_is_used_and_listed(cloud, fleet):
    cloud.deploy("giver", exporter())
    assert cloud.deploy("taker", IMPORTER) == "CREATE_COMPLETE"
    assert fleet.resources[cloud.physical_id("taker", "B")]["Value"] == "v1"
    (export,) = cloud("ListExports")["Exports"]
    assert (export["Name"], export["Value"]) == ("shared", "v1")
    assert cloud("ListImports", ExportName="shared")["Imports"] == ["taker"]


def test_an_export_in_use_cannot_go_or_change(cloud):
    cloud.deploy("giver", exporter())
    cloud.deploy("taker", IMPORTER)
    assert cloud.deploy("giver", exporter("v2")) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Cannot update export shared as it is in use by taker" in str(cloud.events("giver"))
    assert cloud.deploy("giver", {"Resources": {"A": parameter("1")}}) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Cannot delete export shared as it is in use by taker" in str(cloud.events("giver"))
    assert cloud.delete("giver") == "UPDATE_ROLLBACK_COMPLETE"
    assert "Delete canceled. Cannot delete export shared" in cloud.stack("giver")["StackStatusReason"]
    assert cloud("ListExports")["Exports"][0]["Value"] == "v1"
    cloud.delete("taker")
    assert cloud.deploy("giver", exporter("v2")) == "UPDATE_COMPLETE"
    assert cloud.delete("giver") == "DELETE_COMPLETE"


def test_an_export_name_belongs_to_one_stack(cloud):
    cloud.deploy("giver", exporter())
    assert cloud.deploy("second", exporter()) == "ROLLBACK_COMPLETE"
    assert "Export with name shared is already exported by stack giver" in str(cloud.events("second"))


def test_an_import_that_nobody_exports_is_refused_in_words(cloud):
    with pytest.raises((ApiError, AssertionError), match="No export named shared found"):
        cloud.deploy("taker", IMPORTER)


def test_drift_is_found_when_a_resource_is_gone(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("2")}})

    def detect() -> Any:
        detection = cloud("DetectStackDrift", StackName="app")["StackDriftDetectionId"]
        return cloud.until(
            lambda: cloud("DescribeStackDriftDetectionStatus", StackDriftDetectionId=detection),
            lambda answer: answer["DetectionStatus"] != "DETECTION_IN_PROGRESS",
        )

    assert detect()["StackDriftStatus"] == "IN_SYNC"
    fleet.resources.pop(cloud.physical_id("app", "A"))
    answer = detect()
    assert answer["DetectionStatus"] == "DETECTION_COMPLETE"
    assert (answer["StackDriftStatus"], answer["DriftedStackResourceCount"]) == ("DRIFTED", 1)
    drifts = cloud("DescribeStackResourceDrifts", StackName="app")["StackResourceDrifts"]
    assert {d["LogicalResourceId"]: d["StackResourceDriftStatus"] for d in drifts} == {"A": "DELETED", "B": "IN_SYNC"}


def test_a_protected_stack_is_not_deleted(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    cloud("UpdateTerminationProtection", StackName="app", EnableTerminationProtection=True)
    assert cloud.stack("app")["EnableTerminationProtection"] is True
    with pytest.raises(ApiError, match="TerminationProtection is enabled"):
        cloud("DeleteStack", StackName="app")
    assert len(fleet.resources) == 1
    cloud("UpdateTerminationProtection", StackName="app", EnableTerminationProtection=False)
    assert cloud.delete("app") == "DELETE_COMPLETE"


def test_a_second_operation_is_refused_while_one_is_under_way(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    release = threading.Event()
    fleet.before = lambda action, logical_id: release.wait(5) and None
    body = '{"Resources": {"A": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "2"}}}}'
    cloud("UpdateStack", StackName="app", TemplateBody=body)
    try:
        with pytest.raises(ApiError, match="is in UPDATE_IN_PROGRESS state and can not be updated"):
            cloud("UpdateStack", StackName="app", TemplateBody=body.replace('"2"', '"3"'))
    finally:
        release.set()
    assert cloud.settled("app") == "UPDATE_COMPLETE"


def test_a_deleted_stack_is_found_by_its_arn_only(cloud):
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
    assert len(events) == 3 + 2 * 80
    assert events[0]["ResourceStatus"] == "CREATE_COMPLETE"
    assert len({event["EventId"] for event in events}) == len(events)


@pytest.mark.parametrize("answers", [True, False])
def test_a_custom_resource_is_made_by_its_function(cloud, answers):
    function = cloud.clients.services["lambda"]
    function.answer = lambda request: (
        {
            "Status": "SUCCESS" if answers or request["RequestType"] == "Delete" else "FAILED",
            "Reason": "the function's own words",
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
        assert "the function's own words" in str(cloud.events("app"))
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


def test_a_custom_resource_whose_function_is_silent_times_out(cloud):
    cloud.clients.services["lambda"].answer = lambda request: (
        None if request["RequestType"] == "Create" else {"Status": "SUCCESS"}
    )
    properties = {"ServiceToken": "arn:aws:lambda:eu-west-1:123456789012:function:f", "ServiceTimeout": "1"}
    assert cloud.deploy("app", {"Resources": {"T": {"Type": "Custom::Thing", "Properties": properties}}}) == (
        "ROLLBACK_COMPLETE"
    )
    assert "1" in str([e.get("ResourceStatusReason") for e in cloud.events("app")])
