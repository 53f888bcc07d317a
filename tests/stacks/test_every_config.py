"""Invariants of the templates of every deployment in config/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import CONFIGS, ROOT, STACKS, Assembly, Synthesis, cdk_context


def test_cfn_lint_finds_nothing(synthesis: Synthesis) -> None:
    templates = [str(synthesis.of(name).directory / f"{stack}.template.json") for name in CONFIGS for stack in STACKS]
    program = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run([str(program), *templates], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_no_network_has_internet_access(synthesis: Synthesis, name: str) -> None:
    kinds = {item["Type"] for item in synthesis.of(name).resources("NetworkStack").values()}
    assert not kinds & {"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway", "AWS::EC2::EIP", "AWS::EC2::Route"}


@pytest.mark.parametrize("name", CONFIGS)
def test_no_custom_resources(synthesis: Synthesis, name: str) -> None:
    """A custom resource is a third-party Lambda function with permissions in the account."""
    for stack in STACKS:
        for item in synthesis.of(name).resources(stack).values():
            assert not item["Type"].startswith("Custom::")
            assert item["Type"] != "AWS::CloudFormation::CustomResource"


def test_synthesis_is_reproducible_and_prints_nothing(synthesis: Synthesis, tmp_path: Path) -> None:
    """Templates depend only on the file and the sources, and the CDK prints no warnings."""
    config = ROOT / "config" / "demo.yaml"
    environment = {
        **os.environ,
        "CDK_OUTDIR": str(tmp_path),
        "CDK_CONTEXT_JSON": json.dumps(cdk_context(config)),
        "CDK_DEFAULT_ACCOUNT": "123456789012",
        "CDK_DEFAULT_REGION": "eu-west-1",
        "PYTHONHASHSEED": "1",
    }
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for stack in STACKS:
        assert Assembly(tmp_path).text(stack) == synthesis.of("demo").text(stack)


def test_invalid_file_exits_with_a_message(tmp_path: Path) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text("name: x\n")
    environment = {**os.environ, "CDK_OUTDIR": str(tmp_path), "CDK_CONTEXT_JSON": json.dumps(cdk_context(config))}
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode != 0
    assert "capacity" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.template.json"))
