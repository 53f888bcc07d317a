"""The report's figures for a synthetic run with known results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainstack.report.summary import Inputs, build_report

REQUIRED = (
    "deployed_stacks resources_by_type unsupported_resources instances interruptions steps_total steps_lost "
    "resumed_from_step train_loss_first train_loss_last validation_loss_last validation_loss_unigram "
    "bits_per_byte_last tokens_per_second downtime_seconds boot_steps_seconds cost_spot_usd cost_on_demand_usd "
    "iam_denied_calls"
)


def test_run_with_notice_loses_no_steps(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(with_notice["events"], with_notice["records"], deployment, prices))
    assert set(REQUIRED.split()) <= report.keys()
    assert json.loads(json.dumps(report)) == report
    assert report["problems"] == [] and report["succeeded"] is True
    assert (report["steps_total"], report["steps_lost"], report["resumed_from_step"]) == (300, 0, 140)
    assert report["downtime_seconds"] == pytest.approx(0.05 + 21.5 + 0.22)
    assert report["train_loss_first"] > 8 > 2.5 > report["train_loss_last"]
    assert report["validation_loss_last"] < report["validation_loss_unigram"] == 6.31
    assert 17_600 < report["tokens_per_second"] < 19_400
    assert report["verdict"].startswith("Trained all 300 steps with 1 spot interruption: no steps lost, 22 seconds of")
    assert report["deployed_stacks"] == deployment["deployed_stacks"]
    (interruption,) = report["interruptions"]
    assert (interruption["notice_seconds"], interruption["step"]) == (120.0, 140)


def test_instances_have_their_lifetime(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(with_notice["events"], with_notice["records"], deployment, prices))
    lost = report["instances"][1]
    assert set(lost) == {"id", "type", "market", "zone", "launched", "ended", "reason"}
    assert (lost["market"], lost["zone"], lost["type"]) == ("spot", "us-east-1a", "c7i.xlarge")
    assert lost["reason"] == "Client.InstanceInitiatedShutdown" and lost["ended"] > lost["launched"]


def test_run_without_notice_counts_lost_steps(without_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(without_notice["events"], without_notice["records"], deployment, prices))
    assert (report["steps_lost"], report["resumed_from_step"]) == (20, 120)
    assert report["resumes"][0]["highest_step_before"] == 140
    assert report["problems"] == []
    assert report["interruptions"][0]["notice_seconds"] is None
    assert "20 steps lost" in report["verdict"]


def test_steps_after_the_last_step_record_count(with_notice: Any, deployment: Any, prices: Any) -> None:
    events = [e for e in with_notice["events"] if not is_late(e)]
    report = build_report(Inputs(events, with_notice["records"], deployment, prices))
    assert report["resumes"][0]["highest_step_before"] == 140  # from generation_ended
    assert report["steps_lost"] == 0


def test_start_from_scratch_loses_all_steps(with_notice: Any, deployment: Any, prices: Any) -> None:
    events = [dict(event) for event in with_notice["events"]]
    for event in events:
        if event.get("record", {}).get("resumed_from_step") == 140:
            event["record"] = {**event["record"], "resumed_from_step": None}
    report = build_report(Inputs(events, with_notice["records"], deployment, prices))
    assert report["steps_lost"] == 140
    assert "140 steps lost, although a notice preceded every interruption" in report["problems"]


def test_costs_are_lifetimes_times_prices(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(with_notice["events"], with_notice["records"], deployment, prices))
    spot = demand = 0.0
    for instance in report["instances"]:
        hours = max(60.0, instance["ended"] - instance["launched"]) / 3600
        spot += hours * prices["hourly"][instance["type"]]["spot"]
        demand += hours * prices["hourly"][instance["type"]]["on_demand"]
    assert report["cost_spot_usd"] == pytest.approx(spot, abs=2e-6)
    assert report["cost_on_demand_usd"] == pytest.approx(demand, abs=2e-6)
    assert report["costs"]["saved_usd"] == pytest.approx(demand - spot, abs=3e-6)
    assert report["costs"]["price_date"] == "2026-11-20"
    lived = [line["seconds"] for line in report["costs"]["lines"]]
    assert min(lived) < 60 and report["costs"]["lines"][1]["cost_usd"] == pytest.approx(0.0714 / 60, abs=1e-6)


def test_on_demand_instance_has_its_on_demand_price(with_notice: Any, deployment: Any, prices: Any) -> None:
    records = [{**r, "market": "on-demand"} if r["kind"] == "instance_launched" else r for r in with_notice["records"]]
    report = build_report(Inputs(with_notice["events"], records, deployment, prices))
    assert report["cost_spot_usd"] == report["cost_on_demand_usd"] > 0
    assert report["costs"]["saved_usd"] == 0


def test_boot_steps_are_medians_in_start_order(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(with_notice["events"], with_notice["records"], deployment, prices))
    assert report["boot_steps_seconds"]["python_env"] == 5.2
    assert list(report["boot_steps_seconds"])[:2] == ["identity", "instance_checks"]


def test_timeline_has_boot_steps_generations_and_marks(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(with_notice["events"], with_notice["records"], deployment, prices))
    first, lost, replacement = report["timeline"]
    generations = [[s["generation"] for s in row["spans"] if s["kind"] == "generation"] for row in report["timeline"]]
    assert generations == [[1, 2], [1], [2]]
    assert [span["outcome"] for span in lost["spans"]][-1] == "stopped"
    assert [mark["kind"] for mark in lost["marks"]] == ["interruption", "interruption_notice", "node_leaving"]
    assert sum(span["kind"] == "boot_step" for span in replacement["spans"]) == 5
    assert first["marks"][-1]["kind"] == "run_finished"


def test_aborted_generation_ends_with_its_instance(without_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(Inputs(without_notice["events"], without_notice["records"], deployment, prices))
    lost = report["timeline"][1]
    assert lost["spans"][-1]["outcome"] is None and lost["spans"][-1]["ended"] == lost["ended"]


def test_report_without_input_has_problems(deployment: Any) -> None:
    report = build_report(Inputs([], [], {}, {}))
    assert set(REQUIRED.split()) <= report.keys()
    assert report["succeeded"] is False and report["verdict"] == "No training steps were recorded."
    assert report["cost_spot_usd"] is None and report["train_loss_first"] is None
    text = "\n".join(report["problems"])
    assert "no training steps" in text and "no instances were launched" in text and "price table is empty" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s, d, p: d["iam_denied_calls"].append({"action": "s3:PutObject"}), "1 call denied by IAM"),
        (lambda s, d, p: d["unsupported_resources"].append("AWS::DLM::LifecyclePolicy"), "AWS::DLM::LifecyclePolicy"),
        (lambda s, d, p: p["hourly"].pop("c6i.xlarge"), "no spot price for c6i.xlarge"),
        (lambda s, d, p: s["records"].pop(), "still running at the end: i-0ccc5555dddd6666e"),
        (
            lambda s, d, p: s["events"].append({"event": "boot_started", "schema_version": 2}),
            "1 event ignored: no unix_seconds",
        ),
        (
            lambda s, d, p: s["events"].extend(2 * [{"event": "boot_started", "unix_seconds": 1.0}]),
            "2 events ignored: event boot_started has schema_version 1, expected 2",
        ),
        (
            lambda s, d, p: next(e for e in s["events"] if "record" in e)["record"].update(schema_version=3),
            "1 event ignored: record start has schema_version 3, expected 2",
        ),
        (
            lambda s, d, p: s["events"].append(
                {
                    "event": "boot_failed",
                    "schema_version": 2,
                    "unix_seconds": 1.0,
                    "instance_id": "i-1",
                    "step": "staging",
                    "message": "full",
                }
            ),
            "i-1: boot step staging failed: full",
        ),
        (
            lambda s, d, p: s["records"].insert(
                0, {"kind": "event_refused", "unix_seconds": 1.0, "rule": "r", "reason": "not admitted"}
            ),
            "r: cannot deliver an event: not admitted",
        ),
        (
            lambda s, d, p: s["records"].insert(
                0, {"kind": "function_failed", "unix_seconds": 1.0, "function": "f", "error_message": "boom"}
            ),
            "function f failed: boom",
        ),
        (lambda s, d, p: s.update(events=[e for e in s["events"] if not finishes(e)]), "did not finish: last step 300"),
        (lambda s, d, p: s.update(events=[raise_loss(e) for e in s["events"]]), "has not learned anything yet"),
    ],
)
def test_each_problem_is_reported(with_notice: Any, deployment: Any, prices: Any, change: Any, text: str) -> None:
    deployment = json.loads(json.dumps(deployment))
    prices = json.loads(json.dumps(prices))
    change(with_notice, deployment, prices)
    report = build_report(Inputs(with_notice["events"], with_notice["records"], deployment, prices))
    assert text in "\n".join(report["problems"])
    assert report["succeeded"] is False


def is_late(event: dict[str, Any]) -> bool:
    record = event.get("record", {})
    return record.get("record") != "start" and record.get("step") in (139, 140)


def finishes(event: dict[str, Any]) -> bool:
    return event["event"] == "run_finished"


def raise_loss(event: dict[str, Any]) -> dict[str, Any]:
    record = event.get("record", {})
    return {**event, "record": {**record, "loss": 9.0}} if record.get("record") == "validation" else event
