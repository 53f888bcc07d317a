"""Warnings of `check` and of synthesis."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest

from stacks.__main__ import main
from stacks.capacity.catalogue import catalogue
from stacks.loading import load
from stacks.validators import warnings
from stacks.validators.capacity import expired_prices

from .conftest import CONFIGS, ROOT, Synthesis

SNAPSHOT = "snapshot_id: snap-0123456789abcdef0"
TWO = "instance_types: [g6.xlarge, g6.2xlarge]"
SCRATCH = "deployment_type: SCRATCH_2, import_datasets: false"
EFA = "instance_types: [g6.48xlarge], nodes: 2"
UBUNTU_IMAGE = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-24.04/latest/ami-id"
UBUNTU = f"node: {{ami: {UBUNTU_IMAGE}, root_device: /dev/sda1}}"
VOLUME = f"storage: {{dataset_volume: {{{SNAPSHOT}, gib: 500"


@pytest.mark.parametrize(
    ("capacity", "rest", "path", "text"),
    [
        ("instance_types: [g6.xlarge]", "", "capacity.instance_types", "each zone has only one spot pool"),
        (TWO, "", "node.ami", "is not pinned"),
        (TWO, "region: sa-east-1", "region", "refresh --regions sa-east-1"),
        (TWO, "network: {cidr: 8.8.0.0/16}", "network.cidr", "is not a private range"),
        (TWO, f"{VOLUME}, warm: fast_snapshot_restore}}}}", "storage.dataset_volume.warm", "costs 54 USD per day"),
        (TWO, f"{VOLUME}, throughput: 750}}}}", "storage.dataset_volume.throughput", "of g6.xlarge (119 MiB/s)"),
        (TWO + ", nodes: 2", "storage: {checkpoint_volume: {zone: a}}", "storage.checkpoint_volume", "one of the 2"),
        (TWO, "storage: {shared_volume: {zone: a}}", "storage.shared_volume.snapshot_id", "stays empty"),
        (TWO, f"storage: {{lustre: {{zone: a, {SCRATCH}}}}}", "storage.lustre.import_datasets", "loses"),
        (TWO, f"{UBUNTU}\nstorage: {{lustre: {{zone: a}}}}", "node.ami", "might not include the Lustre client"),
        (EFA, "", "capacity.placement", "without a cluster placement group"),
        (EFA, "node: {fabric: tcp}", "", ""),
        ("instance_types: [g6.48xlarge]", "node: {fabric: efa}", "node.fabric", "has no effect with one node"),
        (TWO + ", gang_timeout_seconds: 300", "", "capacity.gang_timeout_seconds", "a slow boot ends the attempt"),
        (TWO, "budget: {monthly_usd: 50}", "observability.emails", "no one receives"),
        (TWO, "budget: {monthly_usd: 50}", "budget.monthly_usd", "covers 1 node for only 138 hours"),
        (
            TWO, "observability: {alarms: {heartbeat_missing_minutes: 5}}",
            "observability.alarms.heartbeat_missing_minutes", "shorter than the longest boot",
        ),
    ],
)  # fmt: skip
def test_warning_has_path_and_rule(tmp_path: Path, capacity: str, rest: str, path: str, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"name: x\ncapacity: {{{capacity}}}\ntraining: {{dataset: d}}\n{rest}\n")
    found = [one for one in warnings(load(file)) if one.path.startswith(path) and text in str(one)]
    if text:
        assert found
    else:
        assert not [one for one in warnings(load(file)) if one.path == "capacity.placement"]


@pytest.mark.parametrize(
    ("training", "text"),
    [
        ("config: {micro_batch_size: 32, model: {preset: gpt2}}", "requires about 28.3 GiB of GPU memory"),
        ("processes_per_node: 1", "leaves 7 of 8 billed GPUs idle"),
    ],
)
def test_warning_about_the_training_section(tmp_path: Path, training: str, text: str) -> None:
    file = tmp_path / "x.yaml"
    types = "[g5.48xlarge, g6.48xlarge]"
    file.write_text(f"name: x\ncapacity: {{instance_types: {types}}}\ntraining: {{dataset: d, {training}}}\n")
    assert any(text in str(one) for one in warnings(load(file)))


def test_warns_of_expired_prices(tmp_path: Path) -> None:
    config = load(ROOT / "config" / "demo.yaml")
    oldest = min(source.date for source in catalogue().regions[config.region].sources.values())
    assert not list(expired_prices(config, date.fromordinal(oldest.toordinal() + 400)))
    (warning,) = expired_prices(config, date.fromordinal(oldest.toordinal() + 401))
    assert warning.severity == "warning"
    assert "401 days ago" in str(warning)


def test_check_prints_warnings_and_errors_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "config" / "single-gpu.yaml"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {one["severity"] for one in printed["problems"]} == {"warning"}
    assert set(printed["problems"][0]) == {"path", "value", "rule", "remedy", "severity"}
    wrong = tmp_path / "x.yaml"
    wrong.write_text("name: x\ncapacity: {instance_types: [g6.xlarge], nodes: 0}\ntraining: {dataset: d}\n")
    assert main(["check", str(wrong), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["path"], problem["value"], problem["severity"]) == ("capacity.nodes", 0, "error")


def test_synthesis_adds_warnings_to_the_metadata(synthesis: Synthesis) -> None:
    metadata = "".join(one.read_text() for one in synthesis.of("demo").directory.glob("*.json"))
    assert "trainstack:node.ami" in metadata
    assert "is not pinned" in metadata


def test_committed_schema_matches_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    committed = (ROOT / "docs" / "deployment.schema.json").read_text()
    assert capsys.readouterr().out == committed, "stale: python -m stacks schema > docs/deployment.schema.json"


@pytest.mark.parametrize("name", CONFIGS)
def test_each_example_refers_to_the_schema(name: str) -> None:
    first = (ROOT / "config" / f"{name}.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../docs/deployment.schema.json"


def test_check_names_the_checkpoint_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "config" / "minimal.yaml")]) == 0
    assert "checkpoints: every 15 minutes or every 500 of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("endpoint", "sections", "paths"),
    [
        ("", "", []),
        ("https://ec2.us-east-1.amazonaws.com", "", []),
        (
            "http://127.0.0.1:4566",
            "",
            ["node.python.interpreter", "node.python.wheelhouse", "capacity.instance_types", "network.cidr"],
        ),
        (
            "http://localhost:4566",
            "node: {python: {interpreter: sh, wheelhouse: 'off'}}",
            ["capacity.instance_types", "network.cidr"],
        ),
        (
            "http://127.0.0.1:4566",
            "network: {cidr: 127.64.0.0/16}\nnode: {python: {interpreter: /bin/sh, wheelhouse: 'off'}}",
            ["capacity.instance_types"],
        ),
    ],
)
def test_a_rehearsal_names_what_its_file_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, sections: str, paths: list[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nvidia-smi" else real(name))
    file = tmp_path / "x.yaml"
    file.write_text(f"name: x\ncapacity: {{{TWO}}}\ntraining: {{dataset: d}}\n{sections}\n")
    assert [one.path for one in warnings(load(file)) if "rehearsal" in one.remedy] == paths


def test_the_demo_is_a_rehearsal_without_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    assert [one for one in warnings(load(ROOT / "config" / "demo.yaml")) if "rehearsal" in one.remedy] == []
