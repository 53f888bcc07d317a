from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from bootstrap.__main__ import main
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.desired_state import RUNNING, DesiredState, Restart
from bootstrap.errors import DocumentError


def node() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "deployment": "demo",
        "region": "us-east-1",
        "dataset_bucket": "data",
        "checkpoint_bucket": "checkpoints",
        "role_id": "AROA0123456789EXAMPLE",
        "control_bucket": "control",
        "run_parameter": "/trainstack/demo/run",
        "log_group": "/trainstack/demo",
        "bundle": {"bucket": "assets", "key": "a.zip", "sha256": "0" * 64},
        "gpus": 8,
        "fabric": "efa",
        "python": {"interpreter": "python3", "packages": ["torch", "numpy"]},
        "supervise": {
            "poll_seconds": 1,
            "heartbeat_seconds": 2,
            "heartbeat_timeout_seconds": 10.5,
            "gang_timeout_seconds": 600,
            "boot_timeout_seconds": 900,
        },
    }


def run() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "deployment": "demo",
        "run": "first",
        "nodes": 2,
        "min_nodes": 1,
        "processes_per_node": 8,
        "code": {"bucket": "assets", "key": "c.zip", "sha256": "1" * 64},
        "dataset": "stdlib",
        "training": {"steps": 10, "model": {"num_hidden_layers": 2}, "note": "ä"},
    }


def problems(decode: Any, value: object) -> dict[str, str]:
    with pytest.raises(DocumentError) as caught:
        decode(value)
    return {problem.path: str(problem) for problem in caught.value.problems}


def with_storage() -> dict[str, Any]:
    made = {"kind": "dataset", "device": "/dev/sdf", "mount": "/mnt/dataset", "read_only": True, "warm": True}
    kept = {"kind": "checkpoint", "device": "/dev/sdg", "mount": "/mnt/checkpoints", "read_only": False, "warm": False}
    lustre = {"dns_name": "fs.example", "mount_name": "abc", "mount": "/mnt/lustre", "options": "flock"}
    return {
        **node(),
        "volumes": [made, {**kept, "volume_id": "vol-0123456789abcdef0", "availability_zone": "us-east-1a"}],
        "lustre": {**lustre, "stripe_count": -1},
    }


def test_storage_may_be_left_out() -> None:
    without, with_it = NodeDocument.from_json(node()), NodeDocument.from_json(with_storage())
    assert (without.volumes, without.lustre) == ((), None)
    assert with_it.to_json() == with_storage()
    assert with_it.volumes[0].volume_id is None
    assert with_it.volumes[1].volume_id == "vol-0123456789abcdef0"


def test_storage_is_decoded_strictly() -> None:
    wrong = with_storage()
    wrong["volumes"][0]["read_only"] = "yes"
    wrong["volumes"][1]["volume_id"] = "vol-XYZ"
    del wrong["lustre"]["mount_name"]
    found = problems(NodeDocument.from_json, wrong)
    assert set(found) == {"volumes[0].read_only", "volumes[1].volume_id", "lustre.mount_name"}


def test_round_trip() -> None:
    assert NodeDocument.from_json(node()).to_json() == node()
    assert RunDocument.from_text(json.dumps(run())).to_json() == run()


def test_digest_does_not_depend_on_the_order_of_keys() -> None:
    canonical = json.dumps(run(), sort_keys=True, separators=(",", ":")).encode()
    shuffled = dict(reversed(run().items()))
    assert RunDocument.from_json(shuffled).digest() == hashlib.sha256(canonical).hexdigest()


def test_all_problems_are_reported_at_once() -> None:
    document = node()
    del document["region"]
    document["regoin"] = "us-east-1"
    document["deployment"] = ""
    document["gpus"] = True
    document["fabric"] = "infiniband"
    document["bundle"] = {"bucket": "", "key": 3, "sha256": "0" * 63}
    document["python"] = {"interpreter": "python3", "packages": ["torch", "not a name"]}
    document["supervise"]["poll_seconds"] = "1"
    document["supervise"]["gang_timeout_seconds"] = 0
    document["supervise"]["boot_timeout_seconds"] = float("inf")
    found = problems(NodeDocument.from_json, document)
    assert sorted(found) == [
        "bundle.bucket",
        "bundle.key",
        "bundle.sha256",
        "deployment",
        "fabric",
        "gpus",
        "python.packages[1]",
        "region",
        "regoin",
        "supervise.boot_timeout_seconds",
        "supervise.gang_timeout_seconds",
        "supervise.poll_seconds",
    ]
    assert "is not a known key" in found["regoin"] and "region" in found["regoin"]
    assert found["gpus"] == "gpus: true: must be an integer, found true or false; write an integer"
    assert "at least 1" in found["supervise.gang_timeout_seconds"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"run": "First Run"}, "run"),
        ({"run": "a" * 41}, "run"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 1.0}, "nodes"),
        ({"min_nodes": 3}, "min_nodes"),
        ({"processes_per_node": False}, "processes_per_node"),
        ({"dataset": "../secrets"}, "dataset"),
        ({"training": []}, "training"),
        ({"code": None}, "code"),
        ({"schema_version": True}, "schema_version"),
    ],
)
def test_run_document_rules(change: dict[str, Any], path: str) -> None:
    assert list(problems(RunDocument.from_json, {**run(), **change})) == [path]


def test_heartbeat_timeout_must_allow_one_late_heartbeat() -> None:
    document = node()
    document["supervise"]["heartbeat_timeout_seconds"] = 3
    found = problems(NodeDocument.from_json, document)
    assert list(found) == ["supervise.heartbeat_timeout_seconds"]
    assert "at least 2 times heartbeat_seconds (2)" in found["supervise.heartbeat_timeout_seconds"]


@pytest.mark.parametrize("decode", [NodeDocument.from_json, RunDocument.from_json])
@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_version_is_refused(decode: Any, version: int) -> None:
    found = problems(decode, {"schema_version": version, "something": "new"})
    assert list(found) == ["schema_version"]
    assert f"schema_version: {version}: is not supported" in found["schema_version"]
    assert f"reads version {SCHEMA_VERSION}" in found["schema_version"] and "deploy" in found["schema_version"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must be JSON"),
        ("[]", "must be an object"),
        ('{"run": 1, "run": 2}', "duplicate key"),
        ("null", "found null"),
    ],
)
def test_invalid_text_is_refused(text: str, expected: str) -> None:
    with pytest.raises(DocumentError, match=expected):
        RunDocument.from_text(text)


def test_check_command(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(node()))
    assert main(["check", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == NodeDocument.from_json(node()).digest()
    path.write_text(json.dumps({**node(), "gpus": -1, "fabric": "x"}))
    assert main(["check", str(path)]) == 2
    errors = capsys.readouterr().err
    assert "2 problems" in errors and "gpus: -1" in errors and "fabric" in errors
    assert main(["check", str(tmp_path / "missing.json")]) == 2


def test_desired_states_survive_their_text() -> None:
    stopped = DesiredState(state="stopped", restart=Restart("first", 3), requested_by="arn:aws:iam::1:user/a@b.c")
    for state in (RUNNING, stopped):
        assert DesiredState.from_text(json.dumps(state.to_json())) == state
    assert (stopped.restart_generation("first"), stopped.restart_generation("second")) == (3, 0)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"state": "paused"}, "state"),
        ({"state": "stopped", "restart": {"run": "first", "generation": 0}}, "restart.generation"),
        ({"until": 3}, "until"),
        ({"requested_by": "x" * 300}, "requested_by"),
        ([], "document"),
    ],
)
def test_wrong_desired_states_are_refused(value: Any, path: str) -> None:
    assert path in problems(lambda wrong: DesiredState.from_text(json.dumps(wrong)), value)
