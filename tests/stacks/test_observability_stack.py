"""Metric filters match the logged lines; alarms use these metrics and publish to an encrypted topic."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stacks.constructs.observability.run_metrics import (
    CONTROLLER_METRICS,
    NODE_METRICS,
    LoggedMetric,
    cause_metric,
)
from stacks.functions.run_controller.causes import REMEDIES, TOO_FEW_NODES

from .conftest import Assembly, Synthesis

STACK = "ObservabilityStack"
STEP = {
    "record": "step",
    "step": 7,
    "loss": 3.25,
    "tokens_per_second": 900.0,
    "checkpoint_age_seconds": 70.0,
    "checkpoint_age_intervals": 0.5,
    "unix_seconds": 1.0,
}
CHECKPOINT = {"record": "checkpoint", "step": 8, "seconds": 2.5, "blocked_seconds": 0.25, "unix_seconds": 1.0}
SPENDING = {"usd": 12.5, "usd_per_hour": 1.25, "on_demand_usd": 30.0, "run_hours": 10.0, "unpriced_hours": 0.0}
LINES: dict[str, dict[str, Any]] = {
    "step": {"event": "trainer", "instance_id": "i-1", "record": STEP},
    "checkpoint": {"event": "trainer", "instance_id": "i-1", "record": CHECKPOINT},
    "end": {"event": "trainer", "instance_id": "i-1", "record": {"record": "end", "step": 9}},
    "gpu": {"event": "gpu_use", "gpus": 8, "gpu_utilization_percent": 91.5, "idlest_gpu_utilization_percent": 80.0},
    "boot failed": {"event": "boot_failed", "step": "staging", "message": "no space"},
    "booted": {"event": "boot_finished", "seconds": 41.0},
    "notice": {"event": "interruption_notice", "action": "terminate"},
    "controller": {"event": "run_controller", "nodes": 4, "cause": None, "spending": SPENDING, "ledger": "updated"},
    "ledger": {"event": "run_controller", "nodes": 4, "cause": None, "spending": None, "ledger": "failed"},
    **{str(cause): {"event": "run_controller", "nodes": 0, "cause": str(cause)} for cause in TOO_FEW_NODES},
}
EXPECTED = {
    "Steps": {"step": 1.0},
    "Loss": {"step": 3.25},
    "TokensPerSecond": {"step": 900.0},
    "CheckpointSeconds": {"checkpoint": 2.5},
    "CheckpointBlockedSeconds": {"checkpoint": 0.25},
    "CheckpointAgeSeconds": {"step": 70.0},
    "CheckpointAgeIntervals": {"step": 0.5},
    "GpuUtilization": {"gpu": 91.5},
    "IdlestGpuUtilization": {"gpu": 80.0},
    "BootFailures": {"boot failed": 1.0},
    "BootSeconds": {"booted": 41.0},
    "Interruptions": {"notice": 1.0},
    "UsdPerHour": {"controller": 1.25},
    "Usd": {"controller": 12.5},
    "LedgerFailed": {"ledger": 1.0},
    "Nodes": {"controller": 4.0, "ledger": 4.0, **dict.fromkeys(map(str, TOO_FEW_NODES), 0.0)},
    **{cause_metric(cause): {str(cause): 1.0} for cause in TOO_FEW_NODES},
}


def at(path: str, line: dict[str, Any]) -> Any:
    """Return the value at a path of the filter language, or None."""
    found: Any = line
    for name in path.removeprefix("$.").split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def value(metric: LoggedMetric, line: dict[str, Any]) -> float | None:
    """Evaluate the parts of the filter language that the patterns use, joined by `&&`, on a line."""
    terms = re.findall(r'(\$[\w.]+) = (\*|"[^"]*")', metric.pattern)
    assert terms and metric.pattern.count("=") == len(terms), metric.pattern
    for path, wanted in terms:
        found = at(path, line)
        if found is None or (wanted != "*" and found != wanted.strip('"')):
            return None
    if metric.value.startswith("$"):
        found = at(metric.value, line)
        return None if found is None else float(found)
    return float(metric.value)


@pytest.mark.parametrize("name", sorted(NODE_METRICS | CONTROLLER_METRICS))
def test_each_metric_counts_the_right_lines_only(name: str) -> None:
    metric = (NODE_METRICS | CONTROLLER_METRICS)[name]
    made = {label: found for label, line in LINES.items() if (found := value(metric, line)) is not None}
    assert made == EXPECTED[name]


def alarms(assembly: Assembly) -> dict[str, dict[str, Any]]:
    found = assembly.of_type(STACK, "AWS::CloudWatch::Alarm")
    return {name.removeprefix("Alarms")[:-8]: item["Properties"] for name, item in found.items()}


def test_no_gpu_alarm_without_gpus(demo: Assembly) -> None:
    others = {"HeartbeatMissing", "RunControllerSilent", "CheckpointAge", "BootFailures", "Interruptions"}
    others |= {"LedgerFailed", "Zombies", "ZombiesSearchFailed"}
    assert set(alarms(demo)) == others | {cause_metric(cause) for cause in TOO_FEW_NODES}
    assert "GpuUtilization" not in json.dumps(demo.one(STACK, "AWS::CloudWatch::Dashboard"))


def test_each_threshold_of_the_file_is_in_its_alarm(synthesis: Synthesis) -> None:
    numbers = {
        "heartbeat_missing_minutes": 7,
        "too_few_nodes_minutes": 45,
        "gpu_utilization_below_percent": 33,
        "gpu_idle_minutes": 44,
        "boot_failures": 5,
        "interruptions_per_hour": 9,
        "usd_per_hour": 12.5,
    }
    changes = {f"observability.alarms.{key}": number for key, number in numbers.items()}
    changes |= {"limits.usd": 5000.0, "limits.warn_at_percent": 60}
    found = alarms(synthesis.variant("alarms", changes, base="single-gpu"))
    assert found["HeartbeatMissing"]["EvaluationPeriods"] == 7
    assert (found["GpusIdle"]["Threshold"], found["GpusIdle"]["EvaluationPeriods"]) == (33, 44)
    assert (found["BootFailures"]["Threshold"], found["BootFailures"]["Period"]) == (5, 3600)
    assert (found["Interruptions"]["Threshold"], found["Interruptions"]["Period"]) == (9, 3600)
    assert (found["UsdPerHour"]["Threshold"], found["UsdPerHour"]["EvaluationPeriods"]) == (12.5, 15)
    assert (found["Usd"]["Threshold"], found["Usd"]["Statistic"]) == (3000, "Maximum")
    for cause in TOO_FEW_NODES:
        alarm = found[cause_metric(cause)]
        assert (alarm["EvaluationPeriods"], alarm["Period"]) == (9, 300)
        assert f"45 minutes. Cause: {cause}. Remedy: {REMEDIES[cause]}" in alarm["AlarmDescription"]
    assert (found["CheckpointAge"]["MetricName"], found["CheckpointAge"]["Threshold"]) == ("CheckpointAgeIntervals", 3)
    topic = {"Ref": next(iter(demo_topic(synthesis.of("single-gpu"))))}
    assert all(alarm["AlarmActions"] == [topic] and alarm["OKActions"] == [topic] for alarm in found.values())


def demo_topic(assembly: Assembly) -> dict[str, Any]:
    return assembly.of_type(STACK, "AWS::SNS::Topic")


def test_alarms_use_metrics_of_a_filter(synthesis: Synthesis) -> None:
    assembly = synthesis.of("single-gpu")
    made = {
        (transformation["MetricNamespace"], transformation["MetricName"])
        for item in assembly.of_type(STACK, "AWS::Logs::MetricFilter").values()
        for transformation in item["Properties"]["MetricTransformations"]
    }
    made.add(("AWS/Lambda", "Errors"))
    for alarm in alarms(assembly).values():
        stats = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", []) if "MetricStat" in each] or [alarm]
        assert {(each["Namespace"], each["MetricName"]) for each in stats} <= made


def test_gpu_alarm_and_dashboard_are_optional(synthesis: Synthesis) -> None:
    changes = {"observability.alarms.gpu_utilization_below_percent": 0, "observability.dashboard": False}
    assembly = synthesis.variant("quiet", changes, base="single-gpu")
    assert "GpusIdle" not in alarms(assembly)
    assert assembly.of_type(STACK, "AWS::CloudWatch::Dashboard") == {}


def test_the_daily_search_reads_only_and_counts_its_log_lines(demo: Assembly) -> None:
    (role,) = (name for name in demo.of_type(STACK, "AWS::IAM::Role") if name.startswith("Zombies"))
    actions = {one for each in demo.statements(STACK, role).values() for one in listed(each["Action"])}
    calls = {action.partition(":")[2] for action in actions if not action.startswith("logs:")}
    assert all(call.startswith(("Describe", "List", "GetParameters")) for call in calls)
    (clock,) = demo.of_type(STACK, "AWS::Events::Rule").values()
    assert clock["Properties"]["ScheduleExpression"] == "rate(1 day)"
    found = [item["Properties"] for name, item in demo.of_type(STACK, "AWS::Logs::MetricFilter").items()]
    (filtered,) = (each for each in found if each["FilterPattern"] == '{ $.event = "zombies" }')
    (transformation,) = filtered["MetricTransformations"]
    alarm = alarms(demo)["Zombies"]
    names = ("MetricNamespace", "MetricName")
    assert tuple(transformation[name] for name in names) == (alarm["Namespace"], alarm["MetricName"])
    assert (transformation["MetricValue"], alarm["Threshold"], alarm["Period"]) == ("$.found", 0, 86400)


def test_the_daily_search_is_optional(synthesis: Synthesis) -> None:
    assembly = synthesis.variant("no-search", {"observability.daily_zombie_search": False})
    assert not [name for name in assembly.resources(STACK) if name.startswith("Zombies")]
    assert assembly.of_type(STACK, "AWS::Lambda::Function") == {}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_topic_is_encrypted_and_has_two_publishers(demo: Assembly) -> None:
    key = next(iter(demo.of_type(STACK, "AWS::KMS::Key")))
    assert demo.one(STACK, "AWS::SNS::Topic")["Properties"]["KmsMasterKeyId"] == {"Fn::GetAtt": [key, "Arn"]}
    for kind, document, action in (
        ("AWS::SNS::TopicPolicy", "PolicyDocument", "sns:Publish"),
        ("AWS::KMS::Key", "KeyPolicy", "kms:GenerateDataKey"),
    ):
        statements = [
            each
            for each in demo.one(STACK, kind)["Properties"][document]["Statement"]
            if action in each["Action"] and each["Effect"] == "Allow"
        ]
        assert {each["Principal"]["Service"] for each in statements} == {
            "cloudwatch.amazonaws.com",
            "budgets.amazonaws.com",
        }
        for each in statements:
            assert each["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
            assert "aws:SourceArn" in each["Condition"]["ArnLike"]


def test_removing_an_email_keeps_the_other_subscriptions(synthesis: Synthesis) -> None:
    both = synthesis.variant("two-emails", {"observability.emails": ["a@example.com", "b@example.com"]})
    one = synthesis.variant("one-email", {"observability.emails": ["b@example.com"]})
    before, after = (each.of_type(STACK, "AWS::SNS::Subscription") for each in (both, one))
    assert {item["Properties"]["Endpoint"] for item in before.values()} == {"a@example.com", "b@example.com"}
    assert after.items() <= before.items() and len(after) == 1


def test_budget_covers_the_deployment_and_notifies_the_topic(synthesis: Synthesis, demo: Assembly) -> None:
    assert demo.of_type(STACK, "AWS::Budgets::Budget") == {}
    changes = {"budget.monthly_usd": 900.0, "budget.warn_at_percent": [60, 90]}
    budget = synthesis.variant("budget", changes).one(STACK, "AWS::Budgets::Budget")
    properties = budget["Properties"]
    assert properties["Budget"]["BudgetLimit"] == {"Amount": 900, "Unit": "USD"}
    assert properties["Budget"]["CostFilters"] == {"TagKeyValue": ["user:trainstack:deployment$demo"]}
    assert "BudgetName" not in properties["Budget"]
    assert [each["Notification"]["Threshold"] for each in properties["NotificationsWithSubscribers"]] == [60, 90]
    assert any(name.startswith("TopicPolicy") for name in budget["DependsOn"])


def test_no_other_stack_depends_on_observability(demo: Assembly) -> None:
    manifest = json.loads((demo.directory / "manifest.json").read_text())["artifacts"]
    for stack in ("NetworkStack", "StorageStack", "TrainingStack"):
        assert STACK not in manifest[stack].get("dependencies", [])
    assert "TrainingStack" in manifest[STACK]["dependencies"]


def test_log_groups_use_the_data_key(demo: Assembly) -> None:
    groups = demo.of_type("TrainingStack", "AWS::Logs::LogGroup")
    assert len(groups) == 2
    for group in groups.values():
        assert "StorageStack" in json.dumps(group["Properties"]["KmsKeyId"])
        assert group["Properties"]["RetentionInDays"] == 7
    key = demo.one("StorageStack", "AWS::KMS::Key")["Properties"]["KeyPolicy"]["Statement"]
    admitted = next(each for each in key if each.get("Sid") == "LogsEncrypt")
    assert "kms:EncryptionContext:aws:logs:arn" in admitted["Condition"]["ArnLike"]
