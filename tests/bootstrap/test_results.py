from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bootstrap.context import Context
from bootstrap.supervise.trainers import results
from bootstrap.supervise.trainers.results import Results
from tests.bootstrap.account import Account
from tests.bootstrap.test_steps import real

LIMIT_SECONDS = 20.0


def write_results(context: Context) -> Path:
    directory = context.layout.run_directory("first", 2)
    for name, content in {
        "metrics.jsonl": b"{}\n",
        "outcomes/rank-00000.json": b"{}",
        "profiles/steps.json.gz": b"12345",
        "samples.txt": b"of the script ",
        "stop": b"{}",
        ".hidden": b"1",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    (directory / "link").symlink_to("/etc/hostname")
    os.mkfifo(directory / "collectives-pipe-0.pipe")  # without a writer: reading it would block
    return directory


def uploaded(account: Account) -> dict[str, bytes]:
    prefix = f"runs/{account.name}/first/results/gen-2/node-1/"
    listed = account.s3.list_objects_v2(Bucket=account.checkpoints, Prefix=prefix).get("Contents", [])
    get = account.s3.get_object
    bodies = {each["Key"]: get(Bucket=account.checkpoints, Key=each["Key"])["Body"] for each in listed}
    return {key[len(prefix) :]: body.read() for key, body in bodies.items()}


def events(context: Context) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context.layout.events.read_text().splitlines()]


def test_results_of_a_generation_are_uploaded(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    directory = write_results(context)
    work = Results(context)
    work.upload("first", 2, 1)
    work.finish(LIMIT_SECONDS)
    names = ["metrics.jsonl", "outcomes/rank-00000.json", "profiles/steps.json.gz", "samples.txt"]
    assert uploaded(account) == {name: (directory / name).read_bytes() for name in names}
    (event,) = events(context)
    assert (event["event"], event["files"], event["bytes"], event["skipped_files"]) == ("results_uploaded", 4, 24, [])


def test_files_over_the_limit_are_skipped_and_reported(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LIMIT_BYTES", 12)
    context = real(account, tmp_path)
    write_results(context)
    work = Results(context)
    work.upload("first", 2, 1)
    work.upload("first", 2, 1)  # one after the other
    work.finish(LIMIT_SECONDS)
    assert sorted(uploaded(account)) == ["metrics.jsonl", "outcomes/rank-00000.json", "profiles/steps.json.gz"]
    assert [event["skipped_files"] for event in events(context)] == [["samples.txt"], ["samples.txt"]]


def test_a_bucket_that_refuses_is_said(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    write_results(context)
    account.s3.delete_bucket(Bucket=account.checkpoints)
    work = Results(context)
    work.upload("first", 2, 1)
    work.finish(LIMIT_SECONDS)
    (event,) = events(context)
    assert "NoSuchBucket" in event["message"] and event["bytes"] == 0
