"""An image whose interpreter does not have boto3: the node program takes it from the wheelhouse."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bootstrap.fetch.sdk import DISTRIBUTIONS, SdkError, provide_boto3
from bootstrap.layout import Layout
from tests.bootstrap.account import ROLE_ID, Account
from tests.bootstrap.test_boot import Machine
from tests.bootstrap.wheels import wheel, wheelhouse

ROOT = Path(__file__).parent.parent.parent
SERVICES = ("s3", "ssm", "logs", "ec2", "sts")


def packed(name: str) -> tuple[str, bytes]:
    """Return an installed distribution as a wheel, with the data of the services that a boot calls."""
    distribution = importlib.metadata.distribution(name)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in distribution.files or []:
            parts = file.parts
            is_other_service = parts[:2] == ("botocore", "data") and len(parts) > 3 and parts[2] not in SERVICES
            if ".." not in parts and "__pycache__" not in parts and not is_other_service:
                archive.write(file.locate(), str(file))
    return f"{name.replace('-', '_')}-{distribution.version}-py3-none-any.whl", buffer.getvalue()


@pytest.fixture(scope="module")
def archive() -> bytes:
    return wheelhouse([packed(name.replace("_", "-")) for name in DISTRIBUTIONS])


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter without packages."""
    directory = tmp_path_factory.mktemp("image") / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    return directory / "bin" / "python3"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return an unpacked node bundle."""
    for name in ("bootstrap", "hardware"):
        shutil.copytree(ROOT / name, tmp_path / "bundle" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "bundle"


def ship(account: Account, bundle: Path, root: Path, body: bytes, sha256: str | None = None) -> str:
    sha256 = sha256 or hashlib.sha256(body).hexdigest()
    account.s3.put_object(Bucket=account.checkpoints, Key="wheels.zip", Body=body)
    (bundle / "wheelhouse.json").write_text(json.dumps({"key": "wheels.zip", "sha256": sha256}))
    root.mkdir(exist_ok=True)
    node = account.node(bundle={"bucket": account.checkpoints, "key": "node.zip", "sha256": "a" * 64})
    (root / "node.json").write_text(json.dumps(node))
    return sha256


def test_boto3_comes_from_the_wheelhouse(
    account: Account, tmp_path: Path, bundle: Path, bare_python: Path, archive: bytes
) -> None:
    root = tmp_path / "root"
    sha256 = ship(account, bundle, root, archive)
    machine = Machine(root, (root / "node.json").read_text())
    environment = {name: value for name, value in machine.environment.items() if name != "PYTHONPATH"}
    command = [bare_python, "-m", "bootstrap", "boot", "--root", str(root)]
    done = subprocess.run(command, env=environment, cwd=bundle, capture_output=True, text=True, check=False)
    machine.metadata.close()
    assert (done.returncode, machine.was_shut_down) == (1, True), done.stderr
    # The account has neither a run document nor pip's wheel. boto3 has uploaded the report.
    report = account.s3.get_object(Bucket=account.records, Key=f"nodes/{ROLE_ID}:i-0001/boot-failure.json")[
        "Body"
    ].read()
    assert json.loads(report)["step"] in ("run_document", "wheelhouse")
    assert (root / "wheelhouse" / sha256 / "sdk" / "boto3").is_dir()
    assert not list((root / "wheelhouse").glob(".unpacking-*"))


def test_without_a_wheelhouse_the_remedy_is_named(tmp_path: Path, bundle: Path, bare_python: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [bare_python, "-m", "bootstrap", "boot", "--root", str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=bundle, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"boto3 is not installed for {bare_python}" in done.stderr
    assert "wheelhouse.json: cannot read" in done.stderr and "run `python -m stacks bundle FILE`" in done.stderr


def test_the_list_of_distributions_is_complete() -> None:
    found: set[str] = set()
    names = ["boto3"]
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            requirements = [each for each in importlib.metadata.requires(name) or [] if "extra ==" not in each]
            names += [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requirements]
    assert {name.replace("-", "_") for name in found} == set(DISTRIBUTIONS)


def failure(account: Account, root: Path, bundle: Path) -> str:
    before = list(sys.path)
    with pytest.raises(SdkError) as caught:
        provide_boto3(Layout(root), bundle)
    assert sys.path == before and not list(root.glob("wheelhouse/*"))
    return str(caught.value)


def test_a_wheelhouse_that_cannot_be_used_is_refused(
    account: Account, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    body = wheelhouse([wheel("boto3", "1.44.8")])
    ship(account, bundle, root, body, "0" * 64)
    assert "found SHA-256" in failure(account, root, bundle)
    account.s3.delete_object(Bucket=account.checkpoints, Key="wheels.zip")
    message = failure(account, root, bundle)
    assert "cannot download the wheelhouse" in message and "404" in message and "node's role" in message
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "check that the image has the AWS CLI" in failure(account, root, bundle)
    (bundle / "wheelhouse.json").write_text("[]")
    assert "wheelhouse.json: not a JSON object" in failure(account, root, bundle)
    (bundle / "wheelhouse.json").write_text("{}")
    assert "invalid (KeyError('key')); deploy again" in failure(account, root, bundle)


def test_a_wheelhouse_without_boto3_is_refused(account: Account, tmp_path: Path, bundle: Path) -> None:
    root = tmp_path / "root"
    ship(account, bundle, root, wheelhouse([wheel("blake3", "1.0")]))
    with pytest.raises(SdkError, match="does not contain boto3, botocore, .*stacks bundle FILE"):
        provide_boto3(Layout(root), bundle)
