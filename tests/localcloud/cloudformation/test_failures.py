"""Failures in the middle: everything goes back to where it was, or is told."""

from __future__ import annotations

from typing import Any

import pytest


def parameter(value: Any, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}, **more}


def queue(name: str) -> dict[str, Any]:
    return {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name}}


CHAIN = {
    "Resources": {
        "A": parameter("1"),
        "B": parameter({"Ref": "A"}),
        "C": parameter({"Ref": "B"}),
        "D": parameter("alone"),
    }
}


@pytest.mark.parametrize("logical_id", CHAIN["Resources"])
def test_a_failed_create_leaves_nothing_wherever_it_fails(cloud, fleet, logical_id):
    fleet.failures["create", logical_id] = "no capacity"
    assert cloud.deploy("app", CHAIN) == "ROLLBACK_COMPLETE"
    assert fleet.resources == {}
    failed = [e for e in cloud.events("app") if e["ResourceStatus"] == "CREATE_FAILED"]
    assert [(e["LogicalResourceId"], e["ResourceStatusReason"]) for e in failed] == [(logical_id, "no capacity")]
    assert cloud.statuses("app")[-2:] == ["ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE"]
    removed = [name for name in fleet.done("delete") if name != "D"]
    assert removed == sorted(removed, reverse=True)


def test_a_rolled_back_create_can_only_be_deleted(cloud, fleet):
    fleet.failures["create", "A"] = "no capacity"
    cloud.deploy("app", CHAIN)
    with pytest.raises(Exception, match="ROLLBACK_COMPLETE state and can not be updated"):
        cloud("UpdateStack", StackName="app", TemplateBody='{"Resources": {"A": {"Type": "AWS::SSM::Parameter"}}}')
    assert cloud.delete("app") == "DELETE_COMPLETE"


def test_without_rollback_a_failed_create_keeps_what_was_made_and_can_be_mended(cloud, fleet):
    fleet.failures["create", "B"] = "no capacity"
    assert cloud.deploy("app", CHAIN, DisableRollback=True) == "CREATE_FAILED"
    assert "A" in {
        r["LogicalResourceId"] for r in cloud("ListStackResources", StackName="app")["StackResourceSummaries"]
    }
    fleet.failures.clear()
    assert cloud.deploy("app", CHAIN, DisableRollback=True) == "UPDATE_COMPLETE"
    assert {who for _, who, _ in fleet.log} == {"A", "B", "C", "D"}
    assert fleet.done("create").count("A") == 1


@pytest.mark.parametrize("failing", ["A", "B", "C", "Q", "New"])
def test_a_failed_update_restores_everything_wherever_it_fails(cloud, fleet, failing):
    def template(version: str, **more: Any) -> dict[str, Any]:
        return {
            "Resources": {
                "A": parameter(version),
                "B": parameter({"Fn::Sub": version + "-${A}"}),
                "C": parameter({"Fn::Sub": version + "-${Q}"}),
                "Q": {**queue(f"queue-{version}"), "DependsOn": "B"},
                **more,
            }
        }

    cloud.deploy("app", template("1"))
    before = dict(fleet.resources)
    ids = {name: cloud.physical_id("app", name) for name in ("A", "B", "C", "Q")}
    new = {"New": parameter("new", DependsOn="C")}
    fleet.failures["create" if failing in ("Q", "New") else "update", failing] = "quota"
    real_update = fleet.failures.pop(("update", failing), None)
    calls: list[str] = []
    if real_update:
        # Fails once only: the roll-back changes the same resource back.
        def fail_once(action: str, logical_id: str) -> None:
            if (action, logical_id) == ("update", failing) and not calls:
                calls.append(logical_id)
                fleet.failures["update", failing] = "quota"
            else:
                fleet.failures.pop(("update", failing), None)

        fleet.before = fail_once
    assert cloud.deploy("app", template("2", **new)) == "UPDATE_ROLLBACK_COMPLETE"
    assert fleet.resources == before
    assert {name: cloud.physical_id("app", name) for name in ids} == ids
    assert cloud.statuses("app")[-3:] == [
        "UPDATE_ROLLBACK_IN_PROGRESS",
        "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS",
        "UPDATE_ROLLBACK_COMPLETE",
    ]
    assert '"1-${A}"' in cloud("GetTemplate", StackName="app")["TemplateBody"]
    fleet.before = lambda action, logical_id: None
    fleet.failures.clear()
    assert cloud.deploy("app", template("2", **new)) == "UPDATE_COMPLETE"


def test_a_failed_roll_back_waits_to_be_continued(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("1", DependsOn="A")}})
    fleet.failures["update", "B"] = "quota"
    count: list[str] = []

    def break_the_way_back(action: str, logical_id: str) -> None:
        if (action, logical_id) == ("update", "A"):
            count.append(logical_id)
            if len(count) == 2:
                fleet.failures["update", "A"] = "throttled"

    fleet.before = break_the_way_back
    new = {"Resources": {"A": parameter("2"), "B": parameter("2", DependsOn="A")}}
    assert cloud.deploy("app", new) == "UPDATE_ROLLBACK_FAILED"
    assert "throttled" in str(cloud.events("app"))
    fleet.failures.clear()
    cloud("ContinueUpdateRollback", StackName="app")
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"
    assert fleet.resources[cloud.physical_id("app", "A")]["Value"] == "1"


def test_a_resource_can_be_skipped_when_a_roll_back_is_continued(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    fleet.failures["update", "A"] = "broken for good"
    assert cloud.deploy("app", {"Resources": {"A": parameter("2")}}) == "UPDATE_ROLLBACK_FAILED"
    cloud("ContinueUpdateRollback", StackName="app", ResourcesToSkip=["A"])
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"


def test_a_failed_delete_says_why_and_can_be_repeated_without_the_resource(cloud, fleet):
    cloud.deploy("app", CHAIN)
    fleet.failures["delete", "B"] = "in use"
    assert cloud.delete("app") == "DELETE_FAILED"
    assert "B" in cloud.stack("app")["StackStatusReason"]
    assert [e["ResourceStatusReason"] for e in cloud.events("app") if e["ResourceStatus"] == "DELETE_FAILED"][0] == (
        "in use"
    )
    assert "A" not in fleet.done("delete"), "what a resource needs must outlive it"
    fleet.log.clear()
    assert cloud.delete("app", RetainResources=["B"]) == "DELETE_COMPLETE"
    assert fleet.done("delete") == ["A"]


def test_a_failed_delete_holds_up_only_what_the_resource_needs(cloud, fleet):
    others = {f"O{i}": parameter("1", **({"DependsOn": f"O{i - 1}"} if i else {})) for i in range(20)}
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter({"Ref": "A"}), **others}})
    fleet.failures["delete", "B"] = "in use"
    assert cloud.delete("app") == "DELETE_FAILED"
    left = {r["LogicalResourceId"] for r in cloud("ListStackResources", StackName="app")["StackResourceSummaries"]}
    assert left == {"A", "B"}


def test_a_roll_back_goes_backwards_from_what_was_attempted(cloud, fleet):
    def template(version: str) -> dict[str, Any]:
        return {
            "Resources": {
                "A": parameter(version),
                "B": parameter({"Fn::Sub": version + " ${A}"}),
                "C": parameter(version, DependsOn="B"),
            }
        }

    cloud.deploy("app", template("1"))
    fleet.before = lambda action, logical_id: (
        fleet.failures.update({("update", "C"): "no"})
        if (action, logical_id) == ("update", "C") and fleet.done("update").count("C") == 0
        else fleet.failures.clear()
    )
    assert cloud.deploy("app", template("2")) == "UPDATE_ROLLBACK_COMPLETE"
    made = [(name, old["Value"][0], new["Value"][0]) for name, old, new in fleet.updates]
    assert made[:3] == [("A", "1", "2"), ("B", "1", "2"), ("C", "1", "2")]
    assert made[3:] == [("C", "2", "1"), ("B", "2", "1"), ("A", "2", "1")]


def test_after_a_roll_back_attributes_are_those_of_the_old_resource(cloud, fleet):
    def template(name: str, **more: Any) -> dict[str, Any]:
        return {"Resources": {"Q": queue(name), "P": parameter({"Fn::GetAtt": ["Q", "Arn"]}), **more}}

    cloud.deploy("app", template("one"))
    fleet.failures["create", "Last"] = "no"
    assert cloud.deploy("app", template("two", Last=parameter("1", DependsOn="P"))) == "UPDATE_ROLLBACK_COMPLETE"
    later = {"Later": parameter({"Fn::GetAtt": ["Q", "Arn"]})}
    assert cloud.deploy("app", template("one", **later)) == "UPDATE_COMPLETE"
    assert fleet.resources[cloud.physical_id("app", "Later")]["Value"].endswith(":one")


def test_a_clean_up_that_fails_does_not_fail_the_update(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("2")}})
    fleet.failures["delete", "B"] = "in use"
    assert cloud.deploy("app", {"Resources": {"A": parameter("1")}}) == "UPDATE_COMPLETE"
    assert "DELETE_FAILED" in cloud.statuses("app", "B")


def test_rollback_stack_takes_back_an_update_that_was_left_failed(cloud, fleet):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("1", DependsOn="A")}})
    fleet.failures["update", "B"] = "quota"
    new = {"Resources": {"A": parameter("2"), "B": parameter("2", DependsOn="A")}}
    assert cloud.deploy("app", new, DisableRollback=True) == "UPDATE_FAILED"
    assert fleet.resources[cloud.physical_id("app", "A")]["Value"] == "2"
    fleet.failures.clear()
    cloud("RollbackStack", StackName="app")
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"
    assert fleet.resources[cloud.physical_id("app", "A")]["Value"] == "1"


def test_a_role_that_was_made_is_removed_although_retained_except_on_create(cloud, fleet):
    fleet.failures["create", "B"] = "no"
    template = {"Resources": {"A": parameter("1", DeletionPolicy="RetainExceptOnCreate"), "B": parameter({"Ref": "A"})}}
    assert cloud.deploy("app", template) == "ROLLBACK_COMPLETE"
    assert fleet.resources == {}
