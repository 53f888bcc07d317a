"""A dataset object that is overwritten after the index is read and before the object is downloaded."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path

from tests.bootstrap.account import ROLE_ID, Account
from tests.bootstrap.test_boot import Machine

SHARD = b"\1\0" * 5000
# The same length: only the hash differs.
OVERWRITTEN = b"\2\0" * 5000

# Precedes the real s5cmd on PATH. It runs after the index is read and before any download.
REWRITING_S5CMD = """#!{python}
import os, sys
import boto3
boto3.client("s3", region_name="us-east-1").put_object(Bucket="{bucket}", Key="{key}", Body={body!r})
os.execv("{s5cmd}", ["s5cmd", *sys.argv[1:]])
"""


def test_a_dataset_object_that_changes_during_staging_ends_the_boot(account: Account, tmp_path: Path) -> None:
    account.put_dataset({"train-00000.bin": SHARD, "train-00001.bin": SHARD})
    code = account.put_code({"training/__init__.py": "", "training/__main__.py": ""})
    account.put_run(account.run(code=code))
    machine = Machine(tmp_path, account.node(python={"interpreter": sys.executable, "packages": []}))
    s5cmd = shutil.which("s5cmd", path=machine.environment["PATH"])
    assert s5cmd is not None
    script = tmp_path / "bin" / "s5cmd"
    key = "datasets/words/train-00001.bin"
    script.write_text(
        REWRITING_S5CMD.format(python=sys.executable, bucket=account.datasets, key=key, body=OVERWRITTEN, s5cmd=s5cmd)
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    try:
        exit_code, errors = machine.end(machine.boot())
    finally:
        machine.metadata.close()

    assert (exit_code, machine.was_shut_down) == (1, True), errors
    (failed,) = machine.events("boot_failed")
    assert failed["step"] == "staging"
    assert "train-00001.bin: found BLAKE3" in failed["message"]
    assert "train-00000.bin" not in failed["message"]
    assert "overwritten during the download" in failed["remedy"]
    answer = account.s3.get_object(Bucket=account.records, Key=f"nodes/{ROLE_ID}:i-0001/boot-failure.json")
    assert json.loads(answer["Body"].read())["message"] == failed["message"]
    directory = tmp_path / "datasets" / "words"
    assert not (directory / "dataset.json").exists()
    assert not (directory / "train-00001.bin").exists()
