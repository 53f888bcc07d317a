"""The readers of external data, each with valid input to damage, and the errors that it may raise."""

from __future__ import annotations

import io
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import boto3
from blake3 import blake3
from botocore.response import StreamingBody
from moto import mock_aws

from bootstrap.context import Context
from bootstrap.datasets.index import index_files
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.documents.desired_state import DesiredState, Restart
from bootstrap.documents.object_keys import control_prefix
from bootstrap.errors import BootstrapError
from bootstrap.imds import InstanceMetadata
from bootstrap.prepare.claims import Claim, ClaimStore
from bootstrap.supervise.membership import records
from bootstrap.supervise.membership.control import ControlStore
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.monitors import Board, ControlWatch
from bootstrap.system import System
from stacks.errors import ConfigError
from stacks.functions.run_controller.parameters import (
    UnreadableDesiredState,
    UnreadableRunDocument,
    read_run,
    read_stop,
)
from stacks.loading import load
from tests.bootstrap.account import Account
from tests.bootstrap.recorded_events import RecordedEvents
from tests.bootstrap.test_control import BEAT, OUTCOME, record
from tests.fuzz.damage import damaged_bytes, damaged_json, damaged_response, damaged_yaml
from tests.fuzz.templates import VALID, check_review, disguised_attack
from tests.stacks.run_controller.test_handler import World
from training.checkpoint import chunks
from training.checkpoint.log import LogWriter, newest_first
from training.checkpoint.manifest import (
    ChunkRecord,
    LogEntry,
    Manifest,
    PartRecord,
    TensorRecord,
    chunk_key,
    parse_record,
)
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.tags import read_tags
from training.config import read_config
from training.data.dataset import parse_record as parse_dataset
from training.errors import TrainingError

ROOT = Path(__file__).resolve().parents[2]
DATASET = {
    "schema_version": 1,
    "name": "words",
    "dtype": "uint16",
    "vocabulary_size": 300,
    "tokenizer": {"file": "tokenizer.json", "sha256": "0" * 64},
    "end_of_text_id": 0,
    "bytes_per_token": 2.5,
    "unigram_entropy_nats": 3.5,
    "splits": {
        "train": {
            "tokens": 10,
            "documents": 1,
            "shards": [{"file": "train-00000.bin", "tokens": 10, "bytes": 20, "blake3": "0" * 64}],
        }
    },
    "source": {"digest": "d", "files": 1, "bytes": 25},
}
REFUSALS = (BootstrapError, TrainingError, ConfigError, UnreadableDesiredState, UnreadableRunDocument)
"""Errors with a message for the user. Any other exception is a fault of the reader."""
Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Reader:
    """A reader of one kind of input.

    Attributes:
        valid: inputs to damage.
        damage: function that damages an input.
        read: function that reads an input.
    """

    valid: tuple[bytes, ...]
    damage: Callable[[Random, bytes], bytes]
    read: Read


@contextmanager
def yaml_readers() -> Iterator[list[Reader]]:
    """Deployment files, read and validated as `check` does."""
    valid = tuple(path.read_bytes() for path in sorted((ROOT / "config").glob("*.yaml")))
    with _file("deployment.yaml") as path:
        yield [Reader(valid, damaged_yaml, _from_file(path, load))]


@contextmanager
def document_readers() -> Iterator[list[Reader]]:
    """Documents that a node, the trainer or the run controller reads."""
    dataset, training = (
        json.dumps(DATASET).encode(),
        json.dumps({"steps": 20, "seed": 1, "optimizer": {"learning_rate": 0.1}}).encode(),
    )
    account = object.__new__(Account)
    account.name, account.datasets, account.checkpoints, account.records, account.parameter, account.log_group = (
        "abcdef"
    )
    node = json.dumps(account.node(run_parameter="/trainstack/a/run")).encode()
    run = json.dumps(account.run(code={"bucket": "assets", "key": "code.zip", "sha256": "a" * 64})).encode()

    stopped = DesiredState(state="stopped", restart=Restart("first", 3), requested_by="arn:aws:iam::1:user/ada")
    desired = json.dumps(stopped.to_json()).encode()

    def text(read: Callable[[str], object]) -> Read:
        return lambda content: read(content.decode(errors="surrogateescape"))

    with _file("config.json") as path:
        yield [
            Reader((node,), damaged_json, text(NodeDocument.from_text)),
            Reader((run,), damaged_json, text(RunDocument.from_text)),
            Reader((run,), damaged_json, text(read_run)),
            Reader((desired,), damaged_json, text(DesiredState.from_text)),
            Reader((desired,), damaged_json, text(read_stop)),
            Reader((training,), damaged_json, _from_file(path, read_config)),
            Reader((dataset,), damaged_json, lambda content: parse_dataset(content, "dataset.json")),
            Reader((dataset,), damaged_json, text(lambda content: index_files(content, "dataset.json"))),
        ]


@contextmanager
def object_readers() -> Iterator[list[Reader]]:
    """Objects of a checkpoint store, of the control records and of prepared data."""
    name = "s3://bucket/runs/run/control"
    hashed = blake3(b"tensor" * 100).hexdigest()
    stored = chunks.encode(b"tensor" * 100, 4)
    entry = LogEntry(sequence=0, generation=1, writer="w", unix_seconds=1.0, kind="fence")
    tensor = TensorRecord(dtype="float32", shape=[150], offset_bytes=0, bytes=600)
    chunk = ChunkRecord(key=chunk_key(0, hashed), bytes=600, stored_bytes=10)
    part = PartRecord(tensors={"model/weight": tensor}, chunks=[chunk], written_bytes=10)
    manifest = Manifest(
        step=1,
        position=2,
        generation=1,
        world_size=1,
        config={"steps": 1},
        config_digest="d",
        scaler={},
        precision="fp32",
        device_type="cpu",
        torch_version="2.13",
        parts=[part],
    )
    claim = asdict(Claim(1, "i-a", "run"))

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))

        store = DirectoryBackend(folder / "store")

        def log(content: bytes) -> None:
            store.delete(store.keys("log/"))
            store.put("log/00000000.json", entry.model_dump_json().encode())
            store.put("log/00000001.json", content)
            LogWriter(store, 2)
            list(newest_first(store))

        def tag(content: bytes) -> None:
            store.put("tags/a.json", content)
            read_tags(store)

        yield [
            Reader((entry.model_dump_json().encode(),), damaged_json, log),
            Reader((b'{"name": "a", "sequence": 0, "step": 1, "unix_seconds": 1.0}',), damaged_json, tag),
            Reader(
                (manifest.model_dump_json().encode(),),
                damaged_json,
                lambda content: parse_record(Manifest, content, "manifest"),
            ),
            Reader(
                (part.model_dump_json().encode(),),
                damaged_json,
                lambda content: parse_record(PartRecord, content, "part"),
            ),
            Reader((stored,), damaged_bytes, lambda content: chunks.decode(content, hashed, 600)),
            Reader(
                (records.to_text(BEAT).encode(),),
                damaged_json,
                lambda content: records.heartbeat_from_bytes(content, f"{name}/heartbeats/AROA1:i-1.json"),
            ),
            Reader(
                (records.to_text(record(1)).encode(),),
                damaged_json,
                lambda content: records.generation_from_bytes(content, f"{name}/generations/00000001.json"),
            ),
            Reader(
                (records.to_text(OUTCOME).encode(),),
                damaged_json,
                lambda content: records.run_outcome_from_bytes(content, f"{name}/outcome.json"),
            ),
            Reader((json.dumps(claim).encode(),), damaged_json, lambda content: _claims(content).newest()),
            Reader((b'{"claim": 1}',), damaged_json, lambda content: _claims(content).committed()),
        ]


@contextmanager
def metadata_readers() -> Iterator[list[Reader]]:
    """Responses of the instance metadata service."""
    values = ("i-0123456789abcdef0", "us-east-1a", "2026-11-29T12:00:00Z")  # each also serves as the session token
    valid = tuple(f"HTTP/1.1 200 OK\r\nContent-Length: {len(each)}\r\n\r\n{each}".encode() for each in values)
    with _Server() as server:
        old = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.endpoint

        def read(content: bytes) -> None:
            server.response = content
            metadata = InstanceMetadata(_Impatient())
            metadata.get("instance-id")

        try:
            yield [Reader(valid, damaged_response, read)]
        finally:
            os.environ.pop("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            if old is not None:
                os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = old


@contextmanager
def control_readers() -> Iterator[list[Reader]]:
    """Objects under the control prefix, next to valid records, for a supervisor's watch and for the run controller.

    Reading raises an error if the supervisor no longer finds its peer, or the controller no longer responds.
    """
    names = (
        "heartbeats/AROA1:i-9.json",
        "heartbeats/zz",
        "heartbeats/i-1.json",
        "generations/00000003.json",
        "generations/zz",
        "zz",
    )
    names += ("controller.json", "generations/99999999.json", "heartbeats/i-1/x.json")
    random = Random(1)
    with mock_aws():
        world = World()
        world.document()
        s3 = boto3.client("s3", region_name="us-east-1")
        store = ControlStore(s3, bucket="control", fleet="x", run="run-1", role_id="AROA1")
        store.beat(BEAT)
        assert store.elect(record(1)) and store.elect(record(2))
        board = Board()
        board.scope = RunScope(store, "i-me")
        events = RecordedEvents()
        watch = ControlWatch(cast(Context, SimpleNamespace(system=System(), events=events)), board)
        steps = 0

        def read(content: bytes) -> None:
            nonlocal steps
            steps += 1
            name = random.choice(names)
            s3.put_object(Bucket="control", Key=control_prefix("x", "run-1") + name, Body=content)
            watch.check()
            assert board.scope is not None
            assert "i-1" in {peer.instance_id for peer in board.scope.view()[0]}, "the supervisor lost its peer"
            line = world.step(now=1000.0 + steps)
            assert "nodes" in line, "the run controller did not log its line"

        valid = (records.to_text(BEAT).encode(), records.to_text(record(3)).encode(), records.to_text(OUTCOME).encode())
        yield [Reader(valid, damaged_json, read)]
        assert any(each["event"] == "control_record_set_aside" for each in events.events) or not steps


@contextmanager
def template_readers() -> Iterator[list[Reader]]:
    """Dangerous changes to templates, for the review. Reading raises an error if a change passes without approval."""
    yield [Reader(VALID, disguised_attack, check_review)]


def _claims(content: bytes) -> ClaimStore:
    class Objects:
        def get_object(self, **_: str) -> dict[str, Any]:
            return {"Body": StreamingBody(io.BytesIO(content), len(content)), "ContentLength": len(content)}

    return ClaimStore(Objects(), "bucket", "d")


@contextmanager
def _file(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        yield Path(folder) / name


def _from_file(path: Path, read: Callable[[Path], object]) -> Read:
    def write_and_read(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return write_and_read


class _Impatient(System):
    """Does not wait between attempts."""

    def sleep(self, seconds: float) -> None:
        pass


class _Server:
    """Responds to each connection with the same bytes."""

    def __init__(self) -> None:
        self.response = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> _Server:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            with connected:
                try:
                    connected.recv(65536)
                    connected.sendall(self.response)
                except OSError:
                    continue  # the client has closed the connection

    def __exit__(self, *_: object) -> None:
        self._socket.close()
