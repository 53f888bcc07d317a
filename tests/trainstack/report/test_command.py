"""`trainstack report` against the embedded cloud, and the reports of deployments with several runs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localcloud.cloud import LocalCloud
from tests.localcloud.core.conftest import as_role, make_role
from tests.trainstack.report.conftest import START, synthetic_run
from tests.trainstack.test_commands import REGION, deploy, run
from tests.trainstack.test_status import RUN
from trainstack.account import find, observe
from trainstack.reader_policy import model_statements, reader_policy
from trainstack.report import about as about_module
from trainstack.report.about import about_run, text_sample
from trainstack.report.command import _inputs
from trainstack.report.summary import Inputs, build_report
from trainstack.report.timeline import events_of_run, records_of

DATASET = {
    "splits": {"train": {"tokens": 1000}, "validation": {"tokens": 100}},
    "tokenizer": {"file": "tokenizer.json"},
    "vocabulary_size": 300,
    "bytes_per_token": 3.0,
    "source": {"files": 4, "bytes": 3300, "digest": "d" * 64},
}


def events(run_name: str = RUN.run) -> list[dict[str, Any]]:
    """Return the events of a synthetic run that has just ended, sorted by time."""
    found = synthetic_run()["events"]
    shift = time.time() - 600.0 - START
    for event in found:
        event["unix_seconds"] += shift
        if event["event"] == "generation_started":
            event["run"] = run_name
        if event["event"] == "trainer":
            event["record"]["unix_seconds"] += shift
        if event["event"] == "interruption_notice":
            event["reclaim_unix_seconds"] += shift
    started = {"event": "supervisor_started", "schema_version": 2, "market": "spot", "instance_type": "c7i.2xlarge"}
    first = {event["instance_id"]: event["unix_seconds"] for event in reversed(found)}
    found += [
        {**started, "unix_seconds": at + 1.0, "instance_id": name, "availability_zone": "us-east-1a"}
        for name, at in first.items()
    ]
    return sorted(found, key=lambda event: float(event["unix_seconds"]))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION)
    running.start()
    deploy(running, "demo")
    client = running.clients.client
    client("s3").create_bucket(Bucket="demo-datasets")
    key = f"datasets/{RUN.dataset}/dataset.json"
    client("s3").put_object(Bucket="demo-datasets", Key=key, Body=json.dumps(DATASET).encode())
    entries: dict[str, list[dict[str, Any]]] = {}
    for event in events():
        entry = {"timestamp": int(event["unix_seconds"] * 1000), "message": json.dumps(event)}
        entries.setdefault(event["instance_id"], []).append(entry)
    for stream, found in entries.items():
        place = {"logGroupName": "/trainstack/demo", "logStreamName": stream}
        client("logs").create_log_stream(**place)
        client("logs").put_log_events(**place, logEvents=found)
    yield running
    running.close()


def test_report_is_a_page_and_the_same_figures_as_json(cloud: LocalCloud, tmp_path: Path) -> None:
    page, figures = tmp_path / "new" / "report.html", tmp_path / "report.json"
    done = run(cloud, "report", "demo", "-o", str(page), "--json", str(figures), "--no-sample")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{page}: Trained all 300 steps with 1 spot interruption: no steps lost")
    report = json.loads(figures.read_text())
    assert report["problems"] == [] and not report["is_running"]
    assert (report["steps_total"], len(report["instances"])) == (300, 3)
    assert report["interruptions"][0]["notice_seconds"] == 120
    assert report["about"]["dataset"]["tokens"] == {"train": 1000, "validation": 100}
    assert report["about"]["weights"] == {
        "url": f"s3://demo-checkpoints/runs/demo/{RUN.run}/checkpoints", "step": 300
    }  # fmt: skip
    assert report["about"]["code"]["sha256"] == RUN.code.sha256
    assert report["resources_by_type"]["AWS::Logs::LogGroup"] == 1
    text = page.read_text()
    assert "1\u202f000 for train" in text and "var uPlot=" in text and "Text sample" not in text


def test_the_reader_policy_with_models_suffices(cloud: LocalCloud) -> None:
    client = cloud.clients.client
    found = find(client, "demo")
    policy = reader_policy(found, REGION, cloud.clients.account)
    without = make_role(cloud, "report-reader", *policy["Statement"])
    full = make_role(cloud, "report-models", *policy["Statement"], *model_statements(found))
    for arn, can_read in ((without, False), (full, True)):
        reader = partial(as_role, cloud, arn)
        seen = observe(reader, find(reader, "demo"), time.time())
        assert seen.run is not None
        opened: Any = SimpleNamespace(client=reader, region=REGION)
        report = build_report(_inputs(opened, seen, seen.run, 3600.0, None))
        assert report["steps_total"] == 300
        dataset = about_run(reader, found, seen.run, 300)["dataset"]
        assert ("tokens" in dataset) == can_read
        assert can_read or "reader-policy --models" in dataset["problem"]


def test_a_live_node_has_no_end() -> None:
    found = events()
    ids = {event["instance_id"] for event in found}
    (live, *_) = sorted(ids)
    ended = {each["instance_id"] for each in records_of(found, {live}) if each["kind"] == "instance_ended"}
    assert ended == ids - {live}


def test_a_running_run_is_no_problem() -> None:
    found = [event for event in events() if event["event"] not in ("run_finished", "generation_ended")]
    cut = found[: len(found) // 2]
    live = {event["instance_id"] for event in cut}
    report = build_report(Inputs(cut, list(records_of(cut, live)), {}, {}, is_running=True, knows_cloud=False))
    assert report["is_running"] and report["verdict"].startswith("At step ")
    assert [each for each in report["problems"] if "price" not in each] == []


def test_runs_of_a_deployment_are_kept_apart() -> None:
    first, second = events("first"), events("second")
    for event in second:  # the same nodes train the second run after the first one
        event["unix_seconds"] += 1000.0
        if event["event"] == "trainer":
            event["record"]["unix_seconds"] += 1000.0
    boots = ("boot_started", "boot_step", "boot_finished", "supervisor_started")
    second = [event for event in second if event["event"] not in boots]
    failed = {"event": "boot_failed", "schema_version": 2, "unix_seconds": second[5]["unix_seconds"]}
    stranger = {**failed, "instance_id": "i-0eee", "step": "staging", "message": "full"}
    both = sorted([*first, *second, stranger], key=lambda event: float(event["unix_seconds"]))
    assert events_of_run(both, "first") == first
    assert [event for event in events_of_run(both, "second") if event is not stranger] == second
    assert stranger in events_of_run(both, "second")


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "The end\n", {"text": "The end", "prompt": "The", "step": 7}),
        (1, "", {"problem": "`python -m training sample` failed with code 1: error: no <model>"}),
    ],
)
def test_sample_or_its_problem(
    code: int, output: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def sampled(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, code, output, "trace\nerror: no <model>\n")

    monkeypatch.setattr(about_module.subprocess, "run", sampled)
    about = {
        "name": "demo", "settings": {"model.preset": "demo"}, "weights": {"url": "s3://c/runs", "step": 7},
        "dataset": {"url": "s3://d/datasets/t", "tokens": {}},
    }  # fmt: skip
    found = text_sample(about, "The")
    assert found is not None and expected.items() <= found.items()
    assert calls[0][3:6] == ["sample", "s3://c/runs#7", "--dataset"] and "--prompt=The" in calls[0]


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"entrypoint": "train.py"}},
        {"settings": {"model.function": "m:f"}},
        {"settings": {"data.function": "m:f"}},
        {"dataset": {"url": "s3://d/x"}},
        {"weights": {"url": "s3://c/runs", "step": None}},
    ],
)
def test_runs_without_text_have_no_sample(change: dict[str, Any]) -> None:
    about = {"settings": {}, "weights": {"url": "u", "step": 1}, "dataset": {"url": "s3://d/t", "tokens": {}}}
    assert text_sample({**about, **change}, "The") is None
