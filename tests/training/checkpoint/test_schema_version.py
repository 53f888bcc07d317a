"""Stores and files of schema version 1 are rejected, with an error that names the version, and left unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.training.checkpoint.runs import load, newest, save, start
from training.__main__ import main
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest
from training.checkpoint.resume import resume
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.store import list_checkpoints, put_manifest, read_manifest
from training.checkpoint.tool.export import MANIFEST_KEY, import_file
from training.errors import ConfigurationError
from training.process.distributed import Gang

REMEDY = "use that version, or name a new run to start from the beginning"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryBackend:
    backend = DirectoryBackend(tmp_path / "store")
    save(start(backend), 1)
    return backend


def set_version(backend: DirectoryBackend, key: str, version: int) -> None:
    document = json.loads(backend.get(key))
    assert document["schema_version"] == 2
    backend.put(key, json.dumps({**document, "schema_version": version}).encode())


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (3, "a newer")])
@pytest.mark.parametrize(
    "use",
    [
        lambda backend, gang: LogWriter(backend, 2),
        lambda backend, gang: resume(gang, backend, None, None, 0),  # type: ignore[arg-type]
        lambda backend, gang: list(list_checkpoints(backend)),
    ],
    ids=["fence", "resume", "list"],
)
def test_refuses_log_entries_of_another_version(
    alone: Gang, store: DirectoryBackend, use: Callable[..., Any], version: int, age: str
) -> None:
    for key in store.keys("log/"):
        set_version(store, key, version)
    before = {key: store.get(key) for key in store.keys("")}
    with pytest.raises(ConfigurationError) as refused:
        use(store, alone)
    (problem,) = refused.value.problems
    assert problem.startswith(f"{store.url}/log/0000000")
    assert f"schema_version {version}: {age} version of Trainstack wrote it" in problem and REMEDY in problem
    assert {key: store.get(key) for key in store.keys("")} == before


def test_refuses_a_manifest_of_version_1(store: DirectoryBackend, capsys: pytest.CaptureFixture[str]) -> None:
    entry = newest(store)
    old = read_manifest(store, entry).model_copy(update={"schema_version": 1})
    reference = put_manifest(store, 0, old)
    log = json.loads(store.get("log/00000001.json"))
    store.put("log/00000001.json", json.dumps({**log, "manifest": reference.model_dump()}).encode())
    assert main(["checkpoint", "ls", store.url]) == 2
    errors = capsys.readouterr().err
    assert f"{reference.key}: schema_version 1: an older version" in errors and REMEDY in errors


def test_refuses_to_import_a_state_of_version_1(store: DirectoryBackend, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    assert main(["checkpoint", "export", "--state", store.url, str(file)]) == 0
    manifest = read_manifest(store, newest(store)).model_copy(update={"schema_version": 1})
    save_file(load_file(file), file, {MANIFEST_KEY: manifest.model_dump_json(exclude={"parts"})})
    destination = DirectoryBackend(tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"state\.safetensors: schema_version 1: an older version"):
        import_file(file, destination, lambda _: None)
    assert destination.keys("") == []


def test_reads_the_version_it_writes(store: DirectoryBackend) -> None:
    assert load(store, newest(store)).keys() == {"model/frozen", "model/large", "model/small", "optimizer/step"}
    assert Manifest.model_fields["schema_version"].default == 2
