"""The report's figures, from a made-up run whose answers are known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.demo.report import build_report

REQUIRED = (
    "deployed_stacks resources_by_type unsupported_resources instances interruptions steps_total steps_lost "
    "resumed_from_step train_loss_first train_loss_last validation_loss_last validation_loss_unigram "
    "bits_per_byte_last tokens_per_second downtime_seconds boot_steps_seconds cost_spot_usd cost_on_demand_usd "
    "iam_denied_calls"
)


def test_a_run_with_notice_loses_nothing(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(with_notice["events"], with_notice["records"], deployment, prices)
    assert set(REQUIRED.split()) <= report.keys()
    assert json.loads(json.dumps(report)) == report
    assert report["problems"] == [] and report["succeeded"] is True
    assert (report["steps_total"], report["steps_lost"], report["resumed_from_step"]) == (300, 0, 140)
    assert report["downtime_seconds"] == pytest.approx(0.05 + 21.5 + 0.22)
    assert report["train_loss_first"] > 8 > 2.5 > report["train_loss_last"]
    assert report["validation_loss_last"] < report["validation_loss_unigram"] == 6.31
    assert 17_600 < report["tokens_per_second"] < 19_400
    assert report["verdict"].startswith("Trained all 300 steps through a spot interruption, no step lost, 22 seconds")
    assert report["deployed_stacks"] == deployment["deployed_stacks"]
    (interruption,) = report["interruptions"]
    assert (interruption["notice_seconds"], interruption["step"]) == (120.0, 140)


def test_instances_tell_their_life(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(with_notice["events"], with_notice["records"], deployment, prices)
    taken = report["instances"][1]
    assert set(taken) == {"id", "type", "market", "zone", "launched", "ended", "reason"}
    assert (taken["market"], taken["zone"], taken["type"]) == ("spot", "us-east-1a", "c7i.xlarge")
    assert taken["reason"] == "Client.InstanceInitiatedShutdown" and taken["ended"] > taken["launched"]


def test_a_run_without_notice_counts_the_steps_trained_twice(without_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(without_notice["events"], without_notice["records"], deployment, prices)
    assert (report["steps_lost"], report["resumed_from_step"]) == (20, 120)
    assert report["resumes"][0]["highest_step_before"] == 140
    assert report["problems"] == []
    assert report["interruptions"][0]["notice_seconds"] is None
    assert "20 steps trained twice" in report["verdict"]


def test_steps_that_were_trained_after_the_last_log_line_count(with_notice: Any, deployment: Any, prices: Any) -> None:
    events = [e for e in with_notice["events"] if not is_late(e)]
    report = build_report(events, with_notice["records"], deployment, prices)
    assert report["resumes"][0]["highest_step_before"] == 140  # from generation_ended
    assert report["steps_lost"] == 0


def test_a_start_from_scratch_after_a_loss_loses_everything(with_notice: Any, deployment: Any, prices: Any) -> None:
    events = [dict(event) for event in with_notice["events"]]
    for event in events:
        if event.get("record", {}).get("resumed_from_step") == 140:
            event["record"] = {**event["record"], "resumed_from_step": None}
    report = build_report(events, with_notice["records"], deployment, prices)
    assert report["steps_lost"] == 140
    assert any("trained twice although every loss" in problem for problem in report["problems"])


def test_costs_are_lifetimes_at_dated_prices(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(with_notice["events"], with_notice["records"], deployment, prices)
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


def test_an_on_demand_instance_costs_its_on_demand_price(with_notice: Any, deployment: Any, prices: Any) -> None:
    records = [{**r, "market": "on-demand"} if r["kind"] == "instance_launched" else r for r in with_notice["records"]]
    report = build_report(with_notice["events"], records, deployment, prices)
    assert report["cost_spot_usd"] == report["cost_on_demand_usd"] > 0
    assert report["costs"]["saved_usd"] == 0


def test_boot_steps_are_medians_in_order(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(with_notice["events"], with_notice["records"], deployment, prices)
    assert report["boot_steps_seconds"]["python_env"] == 5.2
    assert list(report["boot_steps_seconds"])[:2] == ["identity", "instance_checks"]


def test_the_timeline_holds_boot_generations_and_marks(with_notice: Any, deployment: Any, prices: Any) -> None:
    report = build_report(with_notice["events"], with_notice["records"], deployment, prices)
    first, taken, replacement = report["timeline"]
    generations = [[s["generation"] for s in row["spans"] if s["kind"] == "generation"] for row in report["timeline"]]
    assert generations == [[1, 2], [1], [2]]
    assert [span["outcome"] for span in taken["spans"]][-1] == "stopped"
    assert [mark["kind"] for mark in taken["marks"]] == ["interruption", "interruption_notice", "node_leaving"]
    assert sum(span["kind"] == "boot_step" for span in replacement["spans"]) == 5
    assert first["marks"][-1]["kind"] == "run_finished"


def test_a_generation_that_is_cut_off_lasts_until_its_instance_is_gone(
    without_notice: Any, deployment: Any, prices: Any
) -> None:
    report = build_report(without_notice["events"], without_notice["records"], deployment, prices)
    taken = report["timeline"][1]
    assert taken["spans"][-1]["outcome"] is None and taken["spans"][-1]["ended"] == taken["ended"]


def test_nothing_at_all_gives_a_report_of_problems(deployment: Any) -> None:
    report = build_report([], [], {}, {})
    assert set(REQUIRED.split()) <= report.keys()
    assert report["succeeded"] is False and report["verdict"] == "No training step was recorded."
    assert report["cost_spot_usd"] is None and report["train_loss_first"] is None
    text = "\n".join(report["problems"])
    assert "no training step" in text and "no instance was launched" in text and "price table is empty" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, d, p: d["iam_denied_calls"].append({"action": "s3:PutObject"}), "1 call denied by IAM"),
        (lambda s, d, p: d["unsupported_resources"].append("AWS::DLM::LifecyclePolicy"), "AWS::DLM::LifecyclePolicy"),
        (lambda s, d, p: p["hourly"].pop("c6i.xlarge"), "no spot price of c6i.xlarge"),
        (lambda s, d, p: s["records"].pop(), "still running at the end: i-0ccc5555dddd6666e"),
        (lambda s, d, p: s["events"].append({"event": "boot_started"}), "1 event left out: no unix_seconds"),
        (
            lambda s, d, p: s["events"].append(
                {
                    "event": "boot_failed",
                    "unix_seconds": 1.0,
                    "instance_id": "i-1",
                    "step": "staging",
                    "message": "full",
                }
            ),
            "i-1: boot step staging: full",
        ),
        (
            lambda s, d, p: s["records"].insert(
                0, {"kind": "event_refused", "unix_seconds": 1.0, "rule": "r", "reason": "not admitted"}
            ),
            "r: an event was not delivered: not admitted",
        ),
        (
            lambda s, d, p: s["records"].insert(
                0, {"kind": "function_failed", "unix_seconds": 1.0, "function": "f", "error_message": "boom"}
            ),
            "function f: boom",
        ),
        (lambda s, d, p: s.update(events=[e for e in s["events"] if not finishes(e)]), "did not finish: last step 300"),
        (lambda s, d, p: s.update(events=[raise_loss(e) for e in s["events"]]), "has learned nothing yet"),
    ],
)
def test_what_went_wrong_is_named(with_notice: Any, deployment: Any, prices: Any, change: Any, words: str) -> None:
    deployment = json.loads(json.dumps(deployment))
    prices = json.loads(json.dumps(prices))
    change(with_notice, deployment, prices)
    report = build_report(with_notice["events"], with_notice["records"], deployment, prices)
    assert words in "\n".join(report["problems"])
    assert report["succeeded"] is False


def is_late(event: dict[str, Any]) -> bool:
    record = event.get("record", {})
    return record.get("record") != "start" and record.get("step") in (139, 140)


def finishes(event: dict[str, Any]) -> bool:
    return event["event"] == "run_finished"


def raise_loss(event: dict[str, Any]) -> dict[str, Any]:
    record = event.get("record", {})
    return {**event, "record": {**record, "loss": 9.0}} if record.get("record") == "validation" else event
