"""Concurrent conditional writes to one S3 object."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from localcloud.api import Call, Principal
from localcloud.cloud import LocalCloud
from training.checkpoint.storage.s3 import S3Backend

WRITERS = 8
ROOT = Principal("arn:aws:iam::123456789012:root", "123456789012", "root")


@pytest.fixture(scope="module")
def bucket(cloud: LocalCloud) -> str:
    cloud.clients.client("s3").create_bucket(Bucket="writes")
    return "writes"


def test_one_of_several_conditional_writes_succeeds(cloud: LocalCloud, bucket: str) -> None:
    s3 = cloud.clients.client("s3")

    def write(number: int) -> str:
        try:
            s3.put_object(Bucket=bucket, Key="fence", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return str(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        found = list(pool.map(write, range(WRITERS)))
    assert found.count("PreconditionFailed") == WRITERS - 1
    (winner,) = (one for one in found if one != "PreconditionFailed")
    assert s3.get_object(Bucket=bucket, Key="fence")["Body"].read() == winner.encode()


def test_delete_during_a_conditional_write_is_a_conflict_that_the_trainer_retries(
    cloud: LocalCloud, bucket: str
) -> None:
    writes, s3 = cloud._object_writes, cloud.clients.client("s3")
    s3.put_object(Bucket=bucket, Key="log/1", Body=b"old")
    delete = Call("s3", "DeleteObject", {"Bucket": bucket, "Key": "log/1"}, ROOT, cloud.region, ROOT.account)
    attempts: list[int] = []
    s3.meta.events.register("response-received.s3.PutObject", lambda response_dict, **_: attempts.append(
        response_dict["status_code"]
    ))  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        with writes.guard(delete):
            written = pool.submit(S3Backend(bucket, "log", s3).create, "1", b"new")
            _until_waiting(writes._turns, (bucket, "log/1"))
            # The delete finishes while the write waits.
            cloud.clients.direct("s3").delete_object(Bucket=bucket, Key="log/1")
            writes.observers()["s3", "DeleteObject"](delete, {})
        written.result(timeout=60)
    assert attempts == [409, 200]
    assert s3.get_object(Bucket=bucket, Key="log/1")["Body"].read() == b"new"
    assert writes._turns == {}


def _until_waiting(turns: dict[tuple[str, str], Any], name: tuple[str, str]) -> None:
    deadline = time.monotonic() + 60
    while turns[name].users < 2:
        assert time.monotonic() < deadline, "the write does not wait"
        threading.Event().wait(0.01)
