"""A store that rejects writes: the run fails with an error that contains the path, the cause and a remedy."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from localcloud.cloud import LocalCloud
from tests.flow.conftest import tokenize, train
from tests.localcloud.core.command_line import DEADLINE_SECONDS, NO_MARK, ROOT, wait_for
from tests.localcloud.core.conftest import denied_calls, make_role
from tests.training.conftest import TINY

FULL_BYTES = 6000
CHUNK_BYTES = 250_000
"""More than a chunk of the tiny model, which the trainer writes before the first step, and less than its state."""


def test_checkpoints_on_a_full_disk(dataset: Path, tmp_path: Path) -> None:
    """The checkpoint process can no longer write after the first checkpoint."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({**TINY, "steps": 1_000_000, "checkpoint": {"interval_steps": 5}}))
    arguments = ["--config", str(run / "config.json"), "--dataset", str(dataset), "--run-directory", str(run)]
    command = [sys.executable, "-m", "training", "train", *arguments, "--checkpoints", str(tmp_path / "store")]
    with subprocess.Popen(
        command, cwd=ROOT, env=NO_MARK, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as trainer:
        try:
            wait_for(lambda: '"checkpoint"' in _text(run / "metrics.jsonl"))
            for child in psutil.Process(trainer.pid).children(recursive=True):
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, 0))
            assert trainer.wait(DEADLINE_SECONDS) == 1
        finally:
            trainer.kill()
    outcome = json.loads(_text(run / "outcomes" / "rank-00000.json"))
    assert outcome["outcome"] == "failed"
    assert f"{tmp_path}/store/" in outcome["message"]
    assert "cannot be written: File too large; free space" in outcome["message"]
    assert outcome["checkpoint_step"] >= 5


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_no_memory_for_the_checkpoint_buffer(dataset: Path, tmp_path: Path) -> None:
    ended = train(dataset, tmp_path / "run", str(tmp_path / "store"), largest_file_bytes=CHUNK_BYTES)
    assert (ended.exit_code, ended.outcome["outcome"]) == (1, "failed")
    assert "bytes of shared memory for the checkpoint buffer" in ended.outcome["message"]


def test_metrics_on_a_full_disk(dataset: Path, tmp_path: Path) -> None:
    """The file from an earlier start almost has the maximum size."""
    (tmp_path / "run").mkdir()
    earlier = json.dumps({"record": "start", "padding": "x" * (CHUNK_BYTES - 2000)})
    (tmp_path / "run" / "metrics.jsonl").write_text(earlier + "\n")
    ended = train(dataset, tmp_path / "run", str(tmp_path / "store"), 100_000, largest_file_bytes=CHUNK_BYTES)
    assert (ended.exit_code, ended.outcome["outcome"]) == (1, "failed")
    assert f"{tmp_path}/run/metrics.jsonl: cannot be written: File too large; free space" in ended.outcome["message"]


def test_dataset_on_a_full_disk(text: Path, tmp_path: Path) -> None:
    done = tokenize(text, tmp_path / "out", largest_file_bytes=FULL_BYTES)
    assert done.returncode == 2
    assert "File too large; unfinished work is kept in" in done.stderr and "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "tiny").exists()
    again = tokenize(text, tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "tiny").is_dir()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path / "cloud")
    running.start()
    yield running
    running.close()


def test_bucket_that_denies_chunks(cloud: LocalCloud, dataset: Path, tmp_path: Path) -> None:
    s3 = cloud.clients.client("s3")
    s3.create_bucket(Bucket="sealed")
    resource = "arn:aws:s3:::sealed/runs/x/chunks/*"
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": resource}
    s3.put_bucket_policy(Bucket="sealed", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    everything = {"Action": "s3:*", "Resource": ["arn:aws:s3:::sealed", "arn:aws:s3:::sealed/*"]}
    arn = make_role(cloud, "trainer", everything)
    session = cloud.identity.issue(arn, "test", trusted_service="ec2.amazonaws.com", duration_seconds=900)
    environment = {
        "AWS_ENDPOINT_URL": cloud.endpoint_url,
        "AWS_DEFAULT_REGION": cloud.region,
        "AWS_ACCESS_KEY_ID": session.access_key_id,
        "AWS_SECRET_ACCESS_KEY": session.secret_access_key,
        "AWS_SESSION_TOKEN": session.session_token,
    }
    ended = train(dataset, tmp_path / "run", "s3://sealed/runs/x", environment=environment)
    assert (ended.exit_code, ended.outcome["outcome"]) == (1, "failed")
    message = ended.outcome["message"]
    assert message.startswith("s3://sealed/runs/x/chunks/")
    assert "s3:PutObject failed with AccessDenied; allow s3:PutObject in the role" in message
    assert {call["action"] for call in denied_calls(cloud)} == {"s3:PutObject"}
    kept = [item["Key"] for item in s3.list_objects_v2(Bucket="sealed")["Contents"]]
    assert kept == ["runs/x/log/00000000.json"]
