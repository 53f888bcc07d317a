"""What is worth knowing and stops nothing: warnings of `check`, and of synthesis."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from stacks.__main__ import main
from stacks.config import load
from stacks.instance_types import catalogue
from stacks.validators import warnings
from stacks.validators.capacity import expired_prices

from .conftest import CONFIGS, ROOT, Synthesis

SNAPSHOT = "snapshot_id: snap-0123456789abcdef0"
TWO = "instance_types: [g6.xlarge, g6.2xlarge]"
SCRATCH = "deployment_type: SCRATCH_2, import_datasets: false"
EFA = "instance_types: [g6.48xlarge], nodes: 2"
VOLUME = f"storage: {{dataset_volume: {{{SNAPSHOT}, gib: 500"


@pytest.mark.parametrize(
    ("capacity", "rest", "path", "words"),
    [
        ("instance_types: [g6.xlarge]", "", "capacity.instance_types", "one spot pool a zone"),
        (TWO, "", "node.ami", "is not pinned"),
        (TWO, "region: sa-east-1", "region", "refresh --regions sa-east-1"),
        (TWO, "network: {cidr: 8.8.0.0/16}", "network.cidr", "is not a private range"),
        (TWO, f"{VOLUME}, warm: fast_snapshot_restore}}}}", "storage.dataset_volume.warm", "costs 54 USD a day"),
        (TWO, f"{VOLUME}, throughput: 750}}}}", "storage.dataset_volume.throughput", "as a baseline (119 MiB/s)"),
        (TWO + ", nodes: 2", "storage: {checkpoint_volume: {zone: a}}", "storage.checkpoint_volume", "one machine"),
        (TWO, "storage: {shared_volume: {zone: a}}", "storage.shared_volume.snapshot_id", "nothing to read"),
        (TWO, f"storage: {{lustre: {{zone: a, {SCRATCH}}}}}", "storage.lustre.import_datasets", "loses"),
        (EFA, "", "capacity.placement", "without a cluster placement group"),
        (EFA, "node: {fabric: tcp}", "", ""),
        ("instance_types: [g6.48xlarge]", "node: {fabric: efa}", "node.fabric", "no other to reach"),
        (TWO + ", gang_timeout_seconds: 300", "", "capacity.gang_timeout_seconds", "a slow boot ends the attempt"),
        (TWO, "budget: {monthly_usd: 50}", "observability.emails", "nobody hears"),
        (TWO, "budget: {monthly_usd: 50}", "budget.monthly_usd", "is spent after 138 hours of 1 nodes"),
        (
            TWO, "observability: {alarms: {heartbeat_missing_minutes: 5}}",
            "observability.alarms.heartbeat_missing_minutes", "shorter than a boot",
        ),
    ],
)  # fmt: skip
def test_a_warning_says_where_and_why(tmp_path: Path, capacity: str, rest: str, path: str, words: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"name: x\ncapacity: {{{capacity}}}\ntraining: {{dataset: d}}\n{rest}\n")
    told = [one for one in warnings(load(file)) if one.path.startswith(path) and words in str(one)]
    if words:
        assert told
    else:
        assert not [one for one in warnings(load(file)) if one.path == "capacity.placement"]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ("config: {micro_batch_sequences: 32, model: {preset: gpt2}}", "takes about 28.3 GiB of a GPU"),
        ("processes_per_node: 1", "leaves 7 of 8 GPUs idle"),
    ],
)
def test_warnings_of_what_is_trained(tmp_path: Path, training: str, words: str) -> None:
    file = tmp_path / "x.yaml"
    types = "[g5.48xlarge, g6.48xlarge]"
    file.write_text(f"name: x\ncapacity: {{instance_types: {types}}}\ntraining: {{dataset: d, {training}}}\n")
    assert any(words in str(one) for one in warnings(load(file)))


def test_prices_expire(tmp_path: Path) -> None:
    config = load(ROOT / "config" / "demo.yaml")
    oldest = min(source.date for source in catalogue().regions[config.region].sources.values())
    assert not list(expired_prices(config, date.fromordinal(oldest.toordinal() + 400)))
    (told,) = expired_prices(config, date.fromordinal(oldest.toordinal() + 401))
    assert told.severity == "warning"
    assert "401 days ago" in str(told)


def test_check_tells_warnings_and_errors_to_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "config" / "single-gpu.yaml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["severity"] for one in told["problems"]} == {"warning"}
    assert set(told["problems"][0]) == {"path", "value", "rule", "remedy", "severity"}
    wrong = tmp_path / "x.yaml"
    wrong.write_text("name: x\ncapacity: {instance_types: [g6.xlarge], nodes: 0}\ntraining: {dataset: d}\n")
    assert main(["check", str(wrong), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["path"], problem["value"], problem["severity"]) == ("capacity.nodes", 0, "error")


def test_synthesis_tells_them_too(synthesis: Synthesis) -> None:
    told = "".join(one.read_text() for one in synthesis.of("demo").directory.glob("*.json"))
    assert "trainstack:node.ami" in told
    assert "is not pinned" in told


def test_the_schema_that_editors_read_is_that_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    committed = (ROOT / "docs" / "deployment.schema.json").read_text()
    assert capsys.readouterr().out == committed, "stale: python -m stacks schema > docs/deployment.schema.json"


@pytest.mark.parametrize("name", CONFIGS)
def test_examples_name_their_schema(name: str) -> None:
    first = (ROOT / "config" / f"{name}.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../docs/deployment.schema.json"
