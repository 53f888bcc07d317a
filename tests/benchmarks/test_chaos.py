"""The chaos experiment: a short run, and the detection of violations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.__main__ import main
from benchmarks.chaos.campaign import INTERVAL_STEPS, RECORD_LAG_STEPS, Campaign, Reference, max_lost_steps
from benchmarks.chaos.faults import FAULTS, FaultResult
from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from benchmarks.chaos.ranks import Gang
from benchmarks.chaos.tally import Report
from benchmarks.servers.local_moto import endpoint_environment
from training.checkpoint.resume import RESUMED_LOCALLY
from training.checkpoint.storage.s3 import S3Backend
from training.checkpoint.storage.urls import open_backend
from training.errors import StoreError


@pytest.mark.slow  # `make chaos` runs the same for minutes
def test_short_experiment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "chaos.json"
    arguments = ["--seed", "294", "--cycles", "7", "--steps", "80", "--supervised-cycles", "0", "--min-cycles", "7"]
    code = main([*arguments, "--directory", str(tmp_path), "--output", str(output)])
    assert code == 0, capfd.readouterr()
    document = json.loads(output.read_text())
    assert (document["seed"], document["cycles"], document["violations"]) == (294, 7, 0)
    assert document["runs_compared"] >= 1
    assert sum(fault["cycles"] for fault in document["faults"].values()) == 7


def judged(tmp_path: Path, result: FaultResult, **changes: Any) -> Report:
    """Return the report on a generation that trained from step 20 to 23."""
    report = Report()
    backend = open_backend(str(tmp_path / "store"))
    reference = Reference({step: float(step) for step in range(100)}, backend)
    campaign = Campaign("c", None, tmp_path, {}, 1, reference, report, backend, str(tmp_path / "store"))  # type: ignore[arg-type]
    campaign._last_fault, campaign._done_step, campaign._expected_step, campaign._bound = "before", 25, 20, 30
    for name, value in changes.items():
        setattr(campaign, name, value)
    records = [{"record": "start", "resumed_from_step": 20}]
    records += [{"record": "step", "step": step, "loss": float(step)} for step in (21, 22, 23)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    campaign._judge(Gang(1, tmp_path), "fault", result, 0)
    return report


def violations(report: Report) -> list[tuple[str, str]]:
    kinds = ("hangs", "unreadable", "wrong", "stale", "excess", "unequal")
    return [(fault, kind) for fault, tally in report.tallies.items() for kind in kinds if getattr(tally, kind)]


def test_correct_generation_is_no_violation(tmp_path: Path) -> None:
    report = judged(tmp_path, FaultResult(ended=True))
    assert violations(report) == []
    assert report.of("before").lost == 5


@pytest.mark.parametrize(
    ("result", "changes", "expected"),
    [
        (FaultResult(ended=False), {}, ("fault", "hangs")),
        (FaultResult(ended=True, problems=("a problem",)), {}, ("fault", "wrong")),
        (FaultResult(ended=True), {"_expected_step": 10}, ("before", "wrong")),
        (FaultResult(ended=True), {"_bound": 4}, ("before", "excess")),
        (FaultResult(ended=True), {"reference": Reference({21: 21.0, 22: 22.0, 23: 23.5}, None)}, ("fault", "wrong")),  # type: ignore[arg-type]
    ],
)
def test_violation_is_counted_for_its_fault(
    tmp_path: Path, result: FaultResult, changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    report = judged(tmp_path, result, **changes)
    assert violations(report) == [expected]
    assert report.violations == len(report.problems) == 1
    assert expected[0] in report.table()


def test_plans_depend_on_name_and_number_and_cover_every_fault(tmp_path: Path) -> None:
    def plans(name: str) -> list[tuple[float, str]]:
        backend = open_backend(str(tmp_path))
        campaign = Campaign(name, None, tmp_path, {}, 1, Reference({}, backend), Report(), backend, str(tmp_path))  # type: ignore[arg-type]
        drawn = [campaign.plan(number) for number in range(30)]
        return [(choice.random(), fault) for choice, fault in drawn]

    assert plans("a") == plans("a") != plans("b")
    assert {fault for _, fault in plans("a")} == set(FAULTS["directory"])


@pytest.mark.parametrize(("message", "expected"), [(RESUMED_LOCALLY, []), ("", ["wrong"])])
def test_logged_resume_from_the_local_tier_is_no_violation(tmp_path: Path, message: str, expected: list[str]) -> None:
    (tmp_path / "stderr-0").write_text(f"{message}: step 20")
    report = judged(tmp_path, FaultResult(ended=True), local_tier=tmp_path / "local", _expected_step=10)
    assert [kind for _, kind in violations(report)] == expected
    assert report.local_resumes == (not expected)


@pytest.fixture
def faulty(s3_endpoint: str) -> Any:
    proxy = FaultyS3(s3_endpoint, "seed")
    yield proxy
    proxy.close()


def backend_on(endpoint: str, monkeypatch: pytest.MonkeyPatch, bucket: str) -> S3Backend:
    for name, value in endpoint_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("training.checkpoint.storage.s3.READ_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr("training.checkpoint.storage.s3.ATTEMPTS", 2)
    return S3Backend(bucket, "p")


@pytest.mark.parametrize("fault", ["errors", "slow-down", "timeouts", "truncated bodies"])
def test_faulty_s3_fails_requests(faulty: FaultyS3, bucket: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_on(faulty.endpoint, monkeypatch, bucket)
    backend.put("key", b"x" * 1000)
    assert backend.get("key") == b"x" * 1000
    faulty.misbehaviour = Misbehaviour(fault, 1.0)
    with pytest.raises(StoreError):
        backend.get("key")
    assert faulty.done[fault] >= 1
    faulty.misbehaviour = Misbehaviour()
    assert backend.get("key") == b"x" * 1000


def test_lost_response_of_a_completed_request(faulty: FaultyS3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_on(faulty.endpoint, monkeypatch, bucket)
    faulty.misbehaviour = Misbehaviour("lost responses", 1.0)
    with pytest.raises(StoreError):
        backend.put("key", b"x")
    faulty.misbehaviour = Misbehaviour()
    assert backend.get("key") == b"x"


def test_bound_of_a_kill_depends_on_the_duration_of_saves(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"record": "start", "resumed_from_step": 100}]
    records += [{"record": "step", "step": step} for step in range(101, 151)]
    path = tmp_path / "metrics.jsonl"
    assert max_lost_steps(tmp_path) == 2 * INTERVAL_STEPS + RECORD_LAG_STEPS, "no steps"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert max_lost_steps(tmp_path) == 50 + RECORD_LAG_STEPS, "before its first save, all of its steps"
    records += [
        {"record": "checkpoint", "step": 143},
        {"record": "step", "step": 151},
        {"record": "checkpoint", "step": 150},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert max_lost_steps(tmp_path) == 2 * INTERVAL_STEPS + 2 * 7 + RECORD_LAG_STEPS
