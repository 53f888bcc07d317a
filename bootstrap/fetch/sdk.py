"""Makes boto3 importable from the wheelhouse if the image's interpreter does not have it.

The boot steps need boto3 to download the wheelhouse, which contains it. This module therefore downloads the wheelhouse
with the AWS CLI, as user data does, to the directory from which the `wheelhouse` step installs it. It imports only the
standard library.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from bootstrap.layout import Layout

DISTRIBUTIONS = ("boto3", "botocore", "jmespath", "python_dateutil", "s3transfer", "six", "urllib3")
"""boto3 and its dependencies, named as in their wheels. All are pure Python."""
DOWNLOAD_SECONDS = 300
_UNPACKED = "sdk"


class SdkError(Exception):
    """boto3 cannot be provided. The message contains the remedy."""


def provide_boto3(layout: Layout, bundle: Path) -> None:
    """Put boto3 from the wheelhouse on sys.path.

    Args:
        layout: Paths on the node.
        bundle: Directory of the unpacked node bundle, which names the wheelhouse.

    Raises:
        SdkError: There is no wheelhouse, it cannot be downloaded, or it does not contain boto3.
    """
    wheelhouse = _read(bundle / "wheelhouse.json", "run `python -m stacks bundle FILE`, and deploy again")
    node = _read(layout.node_document, "user data writes it; set --root or TRAINSTACK_ROOT")
    try:
        key, sha256 = str(wheelhouse["key"]), str(wheelhouse["sha256"])
        bucket, region = str(node["bundle"]["bucket"]), str(node["region"])
    except (KeyError, TypeError) as error:
        raise SdkError(f"the node document or wheelhouse.json is invalid ({error!r}); deploy again") from error
    directory = layout.wheelhouse(sha256)
    try:
        if not directory.is_dir():
            _download(f"s3://{bucket}/{key}", region, sha256, directory)
        _unpack(directory)
    except (OSError, zipfile.BadZipFile) as error:
        raise SdkError(f"{directory}: cannot unpack boto3 from the wheelhouse ({error}); see the message") from error
    sys.path.insert(0, str(directory / _UNPACKED))


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SdkError(f"{path}: cannot read ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise SdkError(f"{path}: not a JSON object; {remedy}")
    return content


def _download(url: str, region: str, sha256: str, directory: Path) -> None:
    """Download the wheelhouse, verify its digest, and unpack it atomically to `directory`."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".unpacking-") as temporary:
        archive, unpacked = Path(temporary) / "wheelhouse.zip", Path(temporary) / "unpacked"
        command = ["aws", "s3", "cp", "--only-show-errors", "--region", region, url, str(archive)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            output = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise SdkError(
                f"{url}: cannot download the wheelhouse ({output}); check that the image has the AWS CLI, and that the "
                "node's role and the S3 endpoint policy allow reading it"
            ) from error
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != sha256:
            raise SdkError(f"{url}: found SHA-256 {found}, the node bundle has {sha256}; deploy again")
        with zipfile.ZipFile(archive) as content:
            content.extractall(unpacked)
        unpacked.rename(directory)


def _unpack(directory: Path) -> None:
    """Unpack the wheels of boto3 and its dependencies. botocore cannot be imported from an archive."""
    target = directory / _UNPACKED
    if target.is_dir():
        return
    wheels = {path.name.split("-")[0].lower(): path for path in (directory / "wheels").glob("*-none-any.whl")}
    missing = [name for name in DISTRIBUTIONS if name not in wheels]
    if missing:
        raise SdkError(
            f"{directory}: the wheelhouse does not contain {', '.join(missing)}; run `python -m stacks bundle FILE`, "
            "and deploy again"
        )
    with tempfile.TemporaryDirectory(dir=directory, prefix=".unpacking-") as temporary:
        unpacked = Path(temporary) / "unpacked"
        for name in DISTRIBUTIONS:
            with zipfile.ZipFile(wheels[name]) as content:
                content.extractall(unpacked)
        unpacked.rename(target)
