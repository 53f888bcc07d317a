"""An AWS account with the resources of a deployed stack, for tests."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import blake3
import boto3
import zstandard

from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.desired_state import DesiredState, desired_parameter
from bootstrap.documents.object_keys import control_prefix

REGION = "us-east-1"
ROLE_ID = "AROA0123456789EXAMPLE"
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


class Account:
    """The resources of a deployed stack: buckets, run parameter, log group, code bundle, dataset."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.s3 = boto3.client("s3", endpoint_url=endpoint, region_name=REGION, **KEYS)
        self.ssm = boto3.client("ssm", endpoint_url=endpoint, region_name=REGION, **KEYS)
        self.logs = boto3.client("logs", endpoint_url=endpoint, region_name=REGION, **KEYS)
        self.datasets, self.checkpoints, self.records = (
            f"{name}-{kind}" for kind in ("datasets", "checkpoints", "control")
        )
        for bucket in (self.datasets, self.checkpoints, self.records):
            self.s3.create_bucket(Bucket=bucket)
        self.parameter = f"/trainstack/{name}/run"
        self.log_group = f"/trainstack/{name}"
        self.logs.create_log_group(logGroupName=self.log_group)

    def node(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "deployment": self.name,
            "region": REGION,
            "role_id": ROLE_ID,
            "dataset_bucket": self.datasets,
            "checkpoint_bucket": self.checkpoints,
            "control_bucket": self.records,
            "run_parameter": self.parameter,
            "log_group": self.log_group,
            "bundle": {"bucket": "assets", "key": "node.zip", "sha256": "a" * 64},
            "gpus": 0,
            "fabric": "tcp",
            "python": {"interpreter": "python3", "packages": []},
            "supervise": {
                "poll_seconds": 0.1,
                "heartbeat_seconds": 0.2,
                "heartbeat_timeout_seconds": 1.5,
                "gang_timeout_seconds": 2,
                "boot_timeout_seconds": 60,
            },
            **changes,
        }

    def run(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "deployment": self.name,
            "run": "first",
            "nodes": 2,
            "min_nodes": 2,
            "processes_per_node": 1,
            "dataset": "words",
            "training": {"steps": 20, "step_seconds": 0.01},
            **changes,
        }

    def put_run(self, run: dict[str, Any]) -> None:
        self.ssm.put_parameter(Name=self.parameter, Value=json.dumps(run), Type="String", Overwrite=True)

    def put_desired(self, desired: DesiredState) -> None:
        name, text = desired_parameter(self.name), json.dumps(desired.to_json())
        self.ssm.put_parameter(Name=name, Value=text, Type="String", Overwrite=True)

    def put_code(self, files: dict[str, str], key: str = "code.zip") -> dict[str, str]:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        body = buffer.getvalue()
        self.s3.put_object(Bucket=self.checkpoints, Key=key, Body=body)
        return {"bucket": self.checkpoints, "key": key, "sha256": hashlib.sha256(body).hexdigest()}

    def put_packed(self, shards: dict[str, bytes], name: str = "words") -> dict[str, Any]:
        """Put a dataset whose shards are zstd objects."""
        index = self.put_dataset(shards, name)
        for entry in index["splits"]["train"]["shards"]:
            packed = zstandard.compress(shards[entry["file"]])
            entry |= {"encoding": "zstd", "stored_bytes": len(packed)}
            self.s3.put_object(Bucket=self.datasets, Key=f"datasets/{name}/{entry['file']}.zst", Body=packed)
            self.s3.delete_object(Bucket=self.datasets, Key=f"datasets/{name}/{entry['file']}")
        self.s3.put_object(Bucket=self.datasets, Key=f"datasets/{name}/dataset.json", Body=json.dumps(index).encode())
        return index

    def put_dataset(self, shards: dict[str, bytes], name: str = "words") -> dict[str, Any]:
        tokenizer = b'{"model": {}}'
        index = {
            "schema_version": 1,
            "name": name,
            "tokenizer": {"file": "tokenizer.json", "sha256": hashlib.sha256(tokenizer).hexdigest()},
            "splits": {
                "train": {
                    "shards": [
                        {"file": file, "tokens": len(body) // 2, "bytes": len(body), "blake3": digest(body)}
                        for file, body in shards.items()
                    ]
                }
            },
        }
        prefix = f"datasets/{name}"
        for file, body in {**shards, "tokenizer.json": tokenizer}.items():
            self.s3.put_object(Bucket=self.datasets, Key=f"{prefix}/{file}", Body=body)
        self.s3.put_object(Bucket=self.datasets, Key=f"{prefix}/dataset.json", Body=json.dumps(index).encode())
        return index

    def scope(self, run: str = "first") -> dict[str, str]:
        """Return the arguments of a ControlStore for a run, except the client."""
        return {"bucket": self.records, "fleet": self.name, "run": run, "role_id": ROLE_ID}

    def control(self, name: str, run: str = "first") -> Any:
        answer = self.s3.get_object(Bucket=self.records, Key=control_prefix(self.name, run) + name)
        return json.loads(answer["Body"].read())


def digest(body: bytes) -> str:
    return blake3.blake3(body).hexdigest()
