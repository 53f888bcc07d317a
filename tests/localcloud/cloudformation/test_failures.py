"""Failed operations: rollback to the previous state, or a status that reports the failure."""

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
def test_failed_create_leaves_no_resources(cloud, account, logical_id):
    account.failures["create", logical_id] = "no capacity"
    assert cloud.deploy("app", CHAIN) == "ROLLBACK_COMPLETE"
    assert account.resources == {}
    failed = [e for e in cloud.events("app") if e["ResourceStatus"] == "CREATE_FAILED"]
    assert [(e["LogicalResourceId"], e["ResourceStatusReason"]) for e in failed] == [(logical_id, "no capacity")]
    assert cloud.statuses("app")[-2:] == ["ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE"]
    removed = [name for name in account.done("delete") if name != "D"]
    assert removed == sorted(removed, reverse=True)


def test_rolled_back_create_can_only_be_deleted(cloud, account):
    account.failures["create", "A"] = "no capacity"
    cloud.deploy("app", CHAIN)
    with pytest.raises(Exception, match="ROLLBACK_COMPLETE state and can not be updated"):
        cloud("UpdateStack", StackName="app", TemplateBody='{"Resources": {"A": {"Type": "AWS::SSM::Parameter"}}}')
    assert cloud.delete("app") == "DELETE_COMPLETE"


def test_failed_create_without_rollback_keeps_resources_and_can_be_updated(cloud, account):
    account.failures["create", "B"] = "no capacity"
    assert cloud.deploy("app", CHAIN, DisableRollback=True) == "CREATE_FAILED"
    assert "A" in {
        r["LogicalResourceId"] for r in cloud("ListStackResources", StackName="app")["StackResourceSummaries"]
    }
    account.failures.clear()
    assert cloud.deploy("app", CHAIN, DisableRollback=True) == "UPDATE_COMPLETE"
    assert {who for _, who, _ in account.log} == {"A", "B", "C", "D"}
    assert account.done("create").count("A") == 1


@pytest.mark.parametrize("failing", ["A", "B", "C", "Q", "New"])
def test_failed_update_restores_all_resources(cloud, account, failing):
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
    before = dict(account.resources)
    ids = {name: cloud.physical_id("app", name) for name in ("A", "B", "C", "Q")}
    new = {"New": parameter("new", DependsOn="C")}
    account.failures["create" if failing in ("Q", "New") else "update", failing] = "quota"
    real_update = account.failures.pop(("update", failing), None)
    calls: list[str] = []
    if real_update:
        # Fails only once, since the rollback updates the same resource.
        def fail_once(action: str, logical_id: str) -> None:
            if (action, logical_id) == ("update", failing) and not calls:
                calls.append(logical_id)
                account.failures["update", failing] = "quota"
            else:
                account.failures.pop(("update", failing), None)

        account.before = fail_once
    assert cloud.deploy("app", template("2", **new)) == "UPDATE_ROLLBACK_COMPLETE"
    assert account.resources == before
    assert {name: cloud.physical_id("app", name) for name in ids} == ids
    assert cloud.statuses("app")[-3:] == [
        "UPDATE_ROLLBACK_IN_PROGRESS",
        "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS",
        "UPDATE_ROLLBACK_COMPLETE",
    ]
    assert '"1-${A}"' in cloud("GetTemplate", StackName="app")["TemplateBody"]
    account.before = lambda action, logical_id: None
    account.failures.clear()
    assert cloud.deploy("app", template("2", **new)) == "UPDATE_COMPLETE"


def test_failed_roll_back_can_be_continued(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("1", DependsOn="A")}})
    account.failures["update", "B"] = "quota"
    count: list[str] = []

    def fail_the_roll_back(action: str, logical_id: str) -> None:
        if (action, logical_id) == ("update", "A"):
            count.append(logical_id)
            if len(count) == 2:
                account.failures["update", "A"] = "throttled"

    account.before = fail_the_roll_back
    new = {"Resources": {"A": parameter("2"), "B": parameter("2", DependsOn="A")}}
    assert cloud.deploy("app", new) == "UPDATE_ROLLBACK_FAILED"
    assert "throttled" in str(cloud.events("app"))
    account.failures.clear()
    cloud("ContinueUpdateRollback", StackName="app")
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"
    assert account.resources[cloud.physical_id("app", "A")]["Value"] == "1"


def test_continued_roll_back_can_skip_a_resource(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1")}})
    account.failures["update", "A"] = "permanent failure"
    assert cloud.deploy("app", {"Resources": {"A": parameter("2")}}) == "UPDATE_ROLLBACK_FAILED"
    cloud("ContinueUpdateRollback", StackName="app", ResourcesToSkip=["A"])
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"


def test_failed_delete_reports_the_reason_and_can_retain_the_resource(cloud, account):
    cloud.deploy("app", CHAIN)
    account.failures["delete", "B"] = "in use"
    assert cloud.delete("app") == "DELETE_FAILED"
    assert "B" in cloud.stack("app")["StackStatusReason"]
    assert [e["ResourceStatusReason"] for e in cloud.events("app") if e["ResourceStatus"] == "DELETE_FAILED"][0] == (
        "in use"
    )
    assert "A" not in account.done("delete"), "a dependency must be deleted after its dependents"
    account.log.clear()
    assert cloud.delete("app", RetainResources=["B"]) == "DELETE_COMPLETE"
    assert account.done("delete") == ["A"]


def test_failed_delete_keeps_only_the_dependencies_of_the_resource(cloud, account):
    others = {f"O{i}": parameter("1", **({"DependsOn": f"O{i - 1}"} if i else {})) for i in range(20)}
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter({"Ref": "A"}), **others}})
    account.failures["delete", "B"] = "in use"
    assert cloud.delete("app") == "DELETE_FAILED"
    left = {r["LogicalResourceId"] for r in cloud("ListStackResources", StackName="app")["StackResourceSummaries"]}
    assert left == {"A", "B"}


def test_roll_back_starts_from_the_attempted_properties_in_reverse_order(cloud, account):
    def template(version: str) -> dict[str, Any]:
        return {
            "Resources": {
                "A": parameter(version),
                "B": parameter({"Fn::Sub": version + " ${A}"}),
                "C": parameter(version, DependsOn="B"),
            }
        }

    cloud.deploy("app", template("1"))
    account.before = lambda action, logical_id: (
        account.failures.update({("update", "C"): "no"})
        if (action, logical_id) == ("update", "C") and account.done("update").count("C") == 0
        else account.failures.clear()
    )
    assert cloud.deploy("app", template("2")) == "UPDATE_ROLLBACK_COMPLETE"
    made = [(name, old["Value"][0], new["Value"][0]) for name, old, new in account.updates]
    assert made[:3] == [("A", "1", "2"), ("B", "1", "2"), ("C", "1", "2")]
    assert made[3:] == [("C", "2", "1"), ("B", "2", "1"), ("A", "2", "1")]


def test_roll_back_restores_attributes(cloud, account):
    def template(name: str, **more: Any) -> dict[str, Any]:
        return {"Resources": {"Q": queue(name), "P": parameter({"Fn::GetAtt": ["Q", "Arn"]}), **more}}

    cloud.deploy("app", template("one"))
    account.failures["create", "Last"] = "no"
    assert cloud.deploy("app", template("two", Last=parameter("1", DependsOn="P"))) == "UPDATE_ROLLBACK_COMPLETE"
    later = {"Later": parameter({"Fn::GetAtt": ["Q", "Arn"]})}
    assert cloud.deploy("app", template("one", **later)) == "UPDATE_COMPLETE"
    assert account.resources[cloud.physical_id("app", "Later")]["Value"].endswith(":one")


def test_failed_clean_up_does_not_fail_the_update(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("2")}})
    account.failures["delete", "B"] = "in use"
    assert cloud.deploy("app", {"Resources": {"A": parameter("1")}}) == "UPDATE_COMPLETE"
    assert "DELETE_FAILED" in cloud.statuses("app", "B")


def test_rollback_stack_rolls_back_a_failed_update(cloud, account):
    cloud.deploy("app", {"Resources": {"A": parameter("1"), "B": parameter("1", DependsOn="A")}})
    account.failures["update", "B"] = "quota"
    new = {"Resources": {"A": parameter("2"), "B": parameter("2", DependsOn="A")}}
    assert cloud.deploy("app", new, DisableRollback=True) == "UPDATE_FAILED"
    assert account.resources[cloud.physical_id("app", "A")]["Value"] == "2"
    account.failures.clear()
    cloud("RollbackStack", StackName="app")
    assert cloud.settled("app") == "UPDATE_ROLLBACK_COMPLETE"
    assert account.resources[cloud.physical_id("app", "A")]["Value"] == "1"


def test_retain_except_on_create_deletes_a_created_resource(cloud, account):
    account.failures["create", "B"] = "no"
    template = {"Resources": {"A": parameter("1", DeletionPolicy="RetainExceptOnCreate"), "B": parameter({"Ref": "A"})}}
    assert cloud.deploy("app", template) == "ROLLBACK_COMPLETE"
    assert account.resources == {}
