"""The copy of event files in S3: it grows with them, and stays within its folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from trainstack.observe import tensorboard
from trainstack.observe.tensorboard import Copied, Copy
from trainstack.session import CommandError

PREFIX = "runs/demo/first/results/"
NAME = "gen-1/node-0/tensorboard/events.out.tfevents.1.node.2.0"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="checkpoints")
        yield client


def put(s3: Any, name: str, content: bytes) -> None:
    s3.put_object(Bucket="checkpoints", Key=PREFIX + name, Body=content)


def test_only_new_bytes_are_appended(s3: Any, tmp_path: Path) -> None:
    ranges: list[Any] = []
    s3.meta.events.register(
        "before-parameter-build.s3.GetObject", lambda params, **_: ranges.append(params.get("Range"))
    )
    copy = Copy(s3, "checkpoints", PREFIX, tmp_path)
    assert copy.update() == Copied(0, 0)
    put(s3, NAME, b"first")
    put(s3, "gen-1/node-0/metrics.jsonl", b"{}")
    assert (copy.update(), copy.update()) == (Copied(1, 5), Copied(1, 0))
    put(s3, NAME, b"first second")
    put(s3, NAME.replace("gen-1", "gen-2"), b"x")
    assert copy.update() == Copied(2, 8)
    assert (tmp_path / NAME).read_bytes() == b"first second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gen-1", "gen-2"]
    assert ranges == [None, "bytes=5-", None]
    put(s3, NAME, b"other")  # shorter: another file
    assert copy.update() == Copied(2, 5) and (tmp_path / NAME).read_bytes() == b"other"


def test_an_object_that_changes_after_the_listing_is_copied_by_the_next_update(s3: Any, tmp_path: Path) -> None:
    put(s3, NAME, b"first")
    stale = [(PREFIX + NAME, 5, '"0"'), (PREFIX + "gen-9/tfevents", 3, '"1"')]

    class Late(Copy):
        def _objects(self) -> Iterator[tuple[str, int, str]]:
            return iter(stale)

    assert Late(s3, "checkpoints", PREFIX, tmp_path).update() == Copied(2, 0) and list(tmp_path.iterdir()) == []
    assert Copy(s3, "checkpoints", PREFIX, tmp_path).update() == Copied(1, 5)


@pytest.mark.parametrize("name", ["../../tfevents", "gen-1/../../../tfevents", "/tfevents", "link/tfevents"])
def test_no_object_is_written_outside_the_folder(
    s3: Any, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)

    class Hostile(Copy):
        def _objects(self) -> Iterator[tuple[str, int, str]]:
            return iter([(PREFIX + name, 1, '"0"')])

    assert Hostile(s3, "checkpoints", PREFIX, folder).update() == Copied(0, 0)
    assert "outside the folder" in capsys.readouterr().err
    assert not list(tmp_path.rglob("tfevents"))


class Server:
    """Stands in for TensorBoard. It exits at the third poll, with an exit code."""

    def __init__(self, command: list[str], code: int) -> None:
        self.command, self.code, self.looks, self.ended = command, code, 0, False

    @property
    def returncode(self) -> int:
        return self.code

    def poll(self) -> int | None:
        self.looks += 1
        return self.code if self.looks == 3 else None

    def terminate(self) -> None:
        self.ended = True

    def wait(self) -> int:
        return self.code


@pytest.mark.parametrize("code", [0, 3])
def test_tensorboard_reads_the_copy_while_it_grows(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    started: list[Server] = []
    contents = iter([b"first", b"first second"])

    def start(command: list[str]) -> Server:
        started.append(Server(command, code))
        return started[-1]

    monkeypatch.setattr("trainstack.observe.tensorboard.subprocess.Popen", start)
    monkeypatch.setattr("trainstack.observe.tensorboard.time.sleep", lambda seconds: put(s3, NAME, next(contents)))
    copy = Copy(s3, "checkpoints", PREFIX, tmp_path / "new")
    if code:
        with pytest.raises(CommandError, match="ended with code 3"):
            tensorboard._follow(copy, 7007)
    else:
        tensorboard._follow(copy, 7007)
    (server,) = started
    folder = str(tmp_path / "new")
    assert server.command == [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "7007"]
    assert server.ended and (tmp_path / "new" / NAME).read_bytes() == b"first second"
    assert "event files: 1, new bytes: 7" in capsys.readouterr().err


def test_without_tensorboard_the_copy_grows_until_the_user_ends_it(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([None, None])

    def sleep(seconds: float) -> None:
        put(s3, NAME, b"first")
        if next(looks, "end") == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr("trainstack.observe.tensorboard.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("trainstack.observe.tensorboard.time.sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        tensorboard._follow(Copy(s3, "checkpoints", PREFIX, tmp_path), 6006)
    assert (tmp_path / NAME).read_bytes() == b"first"
    assert "tensorboard is not installed; install it" in capsys.readouterr().err
