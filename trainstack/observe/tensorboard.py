"""The command `tensorboard`: copies a run's event files from S3 while they grow, and starts TensorBoard on them.

The nodes upload event files every 30 s (`bootstrap.supervise.trainers.results`).
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer
from botocore.exceptions import ClientError

from bootstrap.documents.object_keys import is_event_file, results_prefix
from trainstack import account
from trainstack.observe.current import observing
from trainstack.session import MISSING, Account, CommandError, Name, Region

POLL_SECONDS = 10.0
DEFAULT_PORT = 6006
_CHANGED = ("PreconditionFailed", "InvalidRange", "NoSuchKey", "412", "416", "404")


def add(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("tensorboard")(show_tensorboard)


def show_tensorboard(
    name: Name,
    region: Region = None,
    directory: Annotated[
        Path | None, typer.Option(help="Folder for the event files; default: build/tensorboard/NAME/RUN.")
    ] = None,
    follows: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Start TensorBoard and copy new events until Ctrl-C.")
    ] = True,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of TensorBoard on this machine.")] = DEFAULT_PORT,
) -> None:
    """Copy the current run's TensorBoard event files, and start TensorBoard if it is installed."""
    opened = observing(region)
    copy = _copy_of(opened, name, directory)
    copied = copy.update()
    print(f"{copy.folder}: event files: {copied.files}, new bytes: {copied.bytes:,}", file=sys.stderr, flush=True)
    if not copied.files and not follows:
        raise CommandError(
            MISSING, f"{name}: s3://{copy.bucket}/{copy.prefix} has no event files; set observation.tensorboard: true"
        )
    if follows:
        _follow(copy, port)


@dataclass(frozen=True)
class Copied:
    """The number of event files of the run, and the bytes that one update has added."""

    files: int
    bytes: int


@dataclass(frozen=True)
class Copy:
    """A local copy of the event files under an S3 prefix."""

    s3: Any
    bucket: str
    prefix: str
    folder: Path

    def update(self) -> Copied:
        """Append to each local file what its object has more. An event file only grows.

        Raises:
            botocore.exceptions.ClientError: AWS rejected a call.
        """
        files = added = 0
        for key, size, etag in self._objects():
            path = _inside(self.folder, key.removeprefix(self.prefix))
            if path is None:
                print(f"s3://{self.bucket}/{key}: left out: the name leads outside the folder", file=sys.stderr)
                continue
            files += 1
            added += self._append(key, size, etag, path)
        return Copied(files, added)

    def _objects(self) -> Iterator[tuple[str, int, str]]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        for page in pages:
            for item in page.get("Contents", []):
                if is_event_file(item["Key"]):
                    yield item["Key"], item["Size"], item["ETag"]

    def _append(self, key: str, size: int, etag: str, path: Path) -> int:
        has = path.stat().st_size if path.exists() else 0
        if has > size:  # another file with the same name
            has = 0
        if has == size and path.exists():
            return 0
        parts = {} if has == 0 else {"Range": f"bytes={has}-"}
        try:
            response = self.s3.get_object(Bucket=self.bucket, Key=key, IfMatch=etag, **parts)
        except ClientError as error:
            if error.response["Error"]["Code"] in _CHANGED:  # since the listing: the next update copies it
                return 0
            raise
        path.parent.mkdir(parents=True, exist_ok=True)
        added = 0
        with path.open("ab" if has else "wb") as stream:
            for block in response["Body"].iter_chunks(1 << 20):
                added += stream.write(block)
        return added


def _inside(folder: Path, name: str) -> Path | None:
    """Return the path of an object below a folder, or None if its name leads elsewhere. Nodes choose these names."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        return None
    path = folder.joinpath(*parts)
    return path if path.resolve().is_relative_to(folder.resolve()) else None


def _copy_of(opened: Account, name: str, directory: Path | None) -> Copy:
    deployment = account.find(opened.client, name)
    problems: list[str] = []
    run = account.run_document(opened.client, deployment, problems)
    if run is None:
        raise CommandError(MISSING, "; ".join(problems))
    folder = directory or Path("build") / "tensorboard" / name / run.run
    return Copy(opened.client("s3"), deployment.checkpoint_bucket, results_prefix(name, run.run), folder)


def _follow(copy: Copy, port: int) -> None:
    """Copy new events until TensorBoard ends. Without TensorBoard, until Ctrl-C."""
    copy.folder.mkdir(parents=True, exist_ok=True)
    server: subprocess.Popen[bytes] | None = None
    if importlib.util.find_spec("tensorboard") is None:
        print(
            f"tensorboard is not installed; install it, and run `tensorboard --logdir {copy.folder}`", file=sys.stderr
        )
    else:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(copy.folder), "--port", str(port)]
        server = subprocess.Popen(command)
    try:
        while server is None or server.poll() is None:
            time.sleep(POLL_SECONDS)
            copied = copy.update()
            if copied.bytes:
                print(f"event files: {copied.files}, new bytes: {copied.bytes:,}", file=sys.stderr, flush=True)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    if server is not None and server.returncode:
        raise CommandError(1, f"TensorBoard ended with code {server.returncode}")
