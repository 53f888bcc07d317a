"""The chaos experiment: a short one, and that it sees what it is there to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.__main__ import main
from benchmarks.chaos.campaign import INTERVAL_STEPS, RECORD_LAG_STEPS, Campaign, Reference, most_lost_steps
from benchmarks.chaos.faults import FAULTS, Aftermath
from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from benchmarks.chaos.ranks import Gang
from benchmarks.chaos.tally import Report
from benchmarks.local_moto import endpoint_environment
from training.checkpoint.backend import open_backend
from training.checkpoint.s3 import S3Backend
from training.errors import StoreError


@pytest.mark.slow  # make chaos is the same for minutes
def test_short_experiment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "chaos.json"
    arguments = ["--seed", "294", "--cycles", "7", "--steps", "80", "--supervised-cycles", "0", "--least-cycles", "7"]
    code = main([*arguments, "--directory", str(tmp_path), "--output", str(output)])
    assert code == 0, capfd.readouterr()
    document = json.loads(output.read_text())
    assert (document["seed"], document["cycles"], document["violations"]) == (294, 7, 0)
    assert document["runs_compared"] >= 1
    assert sum(fault["cycles"] for fault in document["faults"].values()) == 7


def judged(tmp_path: Path, aftermath: Aftermath, **changes: Any) -> Report:
    """What the experiment says of a generation that went from step 20 to 23."""
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
    campaign._judge(Gang(1, tmp_path), "fault", aftermath, 0)
    return report


def violations(report: Report) -> list[tuple[str, str]]:
    kinds = ("hangs", "unreadable", "wrong", "stale", "excess", "unequal")
    return [(fault, kind) for fault, tally in report.tallies.items() for kind in kinds if getattr(tally, kind)]


def test_sound_generation_is_no_violation(tmp_path: Path) -> None:
    report = judged(tmp_path, Aftermath(ended=True))
    assert violations(report) == []
    assert report.of("before").lost == 5


@pytest.mark.parametrize(
    ("aftermath", "changes", "expected"),
    [
        (Aftermath(ended=False), {}, ("fault", "hangs")),
        (Aftermath(ended=True, problems=("told",)), {}, ("fault", "wrong")),
        (Aftermath(ended=True), {"_expected_step": 10}, ("before", "wrong")),
        (Aftermath(ended=True), {"_bound": 4}, ("before", "excess")),
        (Aftermath(ended=True), {"reference": Reference({21: 21.0, 22: 22.0, 23: 23.5}, None)}, ("fault", "wrong")),  # type: ignore[arg-type]
    ],
)
def test_breach_is_counted_with_the_fault_that_caused_it(
    tmp_path: Path, aftermath: Aftermath, changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    report = judged(tmp_path, aftermath, **changes)
    assert violations(report) == [expected]
    assert report.violations == len(report.problems) == 1
    assert expected[0] in report.table()


def test_plans_follow_from_name_and_number_and_cover_every_fault(tmp_path: Path) -> None:
    def plans(name: str) -> list[tuple[float, str]]:
        backend = open_backend(str(tmp_path))
        campaign = Campaign(name, None, tmp_path, {}, 1, Reference({}, backend), Report(), backend, str(tmp_path))  # type: ignore[arg-type]
        drawn = [campaign.plan(number) for number in range(30)]
        return [(choice.random(), fault) for choice, fault in drawn]

    assert plans("a") == plans("a") != plans("b")
    assert {fault for _, fault in plans("a")} == set(FAULTS["directory"])


@pytest.mark.parametrize(("told", "expected"), [("was not durable yet", []), ("", ["wrong"])])
def test_a_start_from_what_was_near_is_no_violation_if_it_says_so(
    tmp_path: Path, told: str, expected: list[str]
) -> None:
    (tmp_path / "stderr-0").write_text(f"step 20 {told}")
    report = judged(tmp_path, Aftermath(ended=True), near=tmp_path / "near", _expected_step=10)
    assert [kind for _, kind in violations(report)] == expected
    assert report.near_resumes == (not expected)


@pytest.fixture
def faulty(s3_endpoint: str) -> Any:
    proxy = FaultyS3(s3_endpoint, "seed")
    yield proxy
    proxy.close()


def backend_on(endpoint: str, monkeypatch: pytest.MonkeyPatch, bucket: str) -> S3Backend:
    for name, value in endpoint_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("training.checkpoint.s3.READ_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr("training.checkpoint.s3.ATTEMPTS", 2)
    return S3Backend(bucket, "p")


@pytest.mark.parametrize("fault", ["errors", "slow-down", "time-outs", "truncated bodies"])
def test_misbehaving_s3_is_seen_as_such(
    faulty: FaultyS3, bucket: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_on(faulty.endpoint, monkeypatch, bucket)
    backend.put("key", b"x" * 1000)
    assert backend.get("key") == b"x" * 1000
    faulty.misbehaviour = Misbehaviour(fault, 1.0)
    with pytest.raises(StoreError):
        backend.get("key")
    assert faulty.done[fault] >= 1
    faulty.misbehaviour = Misbehaviour()
    assert backend.get("key") == b"x" * 1000


def test_answers_get_lost_after_the_deed(faulty: FaultyS3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_on(faulty.endpoint, monkeypatch, bucket)
    faulty.misbehaviour = Misbehaviour("lost answers", 1.0)
    with pytest.raises(StoreError):
        backend.put("key", b"x")
    faulty.misbehaviour = Misbehaviour()
    assert backend.get("key") == b"x"


def test_what_a_kill_may_cost_follows_from_how_long_saves_take(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"record": "start", "resumed_from_step": 100}]
    records += [{"record": "step", "step": step} for step in range(101, 151)]
    path = tmp_path / "metrics.jsonl"
    assert most_lost_steps(tmp_path) == 2 * INTERVAL_STEPS + RECORD_LAG_STEPS, "nothing was done"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert most_lost_steps(tmp_path) == 50 + RECORD_LAG_STEPS, "its own steps, before its first save"
    records += [
        {"record": "checkpoint", "step": 143},
        {"record": "step", "step": 151},
        {"record": "checkpoint", "step": 150},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert most_lost_steps(tmp_path) == 2 * INTERVAL_STEPS + 2 * 7 + RECORD_LAG_STEPS
