"""Selection of instance types for the requirements of a workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.__main__ import main
from stacks.capacity.catalogue import catalogue
from stacks.capacity.gpu_memory import RESERVED_GIB, from_parameters, from_shape
from stacks.capacity.selection import Candidate, candidates, needs_of
from stacks.errors import ConfigError
from stacks.loading import load, read
from training.config import PRESETS


def deployment(path: Path, auto: dict[str, Any], **capacity: Any) -> Path:
    document = {"name": "x", "capacity": {"auto": auto, **capacity}, "training": {"dataset": "d"}}
    if region := document["capacity"].pop("region", None):
        document["region"] = region
    file = path / "x.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def candidates_for(path: Path, auto: dict[str, Any], **capacity: Any) -> list[Candidate]:
    config = read(deployment(path, auto, **capacity))
    assert config.capacity.auto is not None
    return candidates(needs_of(config, config.capacity.auto), config.region)


def chosen(found: list[Candidate]) -> list[str]:
    return [one.instance_type.name for one in found if one.chosen]


def test_each_type_of_the_region_has_a_reason(tmp_path: Path) -> None:
    found = candidates_for(tmp_path, {"gpus": 1, "gpu_memory_gib": 20})
    assert {one.instance_type.name for one in found} == set(catalogue().regions["us-east-1"].types)
    assert all(one.reason for one in found)
    assert [one.rank for one in found if one.chosen] == [0, 1, 2, 3]
    assert not any(one.chosen for one in found[4:])


def test_cheapest_types_of_one_gpu_model_come_first(tmp_path: Path) -> None:
    found = candidates_for(tmp_path, {"gpus": 1, "gpu_memory_gib": 20})
    assert chosen(found)[0] == "g6.xlarge"
    assert {one.instance_type.gpu for one in found if one.chosen} == {"L4"}
    spot = [one.usd_per_hour["spot"] for one in found if one.chosen]
    assert spot == sorted(spot, key=lambda price: price or 0)


@pytest.mark.parametrize(
    ("auto", "name", "reason"),
    [
        ({"gpus": 1, "gpu_memory_gib": 20}, "g4dn.xlarge", "16.0 GiB per GPU, 20.0 needed"),
        ({"gpus": 1, "gpu_memory_gib": 20}, "g5.xlarge", "fits, but has A10G; the cheapest type, g6.xlarge, has L4"),
        ({"gpus": 1, "gpu_memory_gib": 20}, "g5.12xlarge", "4 GPUs, 1 needed"),
        ({"gpus": 1, "gpu_memory_gib": 20, "types": 1}, "g6.2xlarge", "limits the list to 1"),
        ({"gpus": 1, "gpu_memory_gib": 20, "vcpus": 8}, "g6.xlarge", "4 vCPUs, 8 needed"),
        ({"gpus": 1, "gpu_memory_gib": 20, "memory_gib": 64}, "g6.2xlarge", "32 GiB of memory, 64 needed"),
        ({"gpus": 1, "gpu_memory_gib": 20, "dataset_gib": 500}, "g6.2xlarge", "500 needed for the dataset"),
        ({"gpus": 1, "gpu_memory_gib": 20, "max_usd_per_hour": 0.4}, "g6.2xlarge", "above the maximum of 0.4"),
        ({"gpus": 8, "gpu_memory_gib": 100, "region": "us-west-2"}, "p5en.48xlarge", "unknown spot price"),
        # The default image has no driver for G7e: https://docs.aws.amazon.com/dlami/latest/devguide/ (2026-10).
        ({"gpus": 1, "gpu_memory_gib": 90}, "g7e.2xlarge", "the image in node.ami does not support g7e"),
    ],
)
def test_reason_of_a_rejection(tmp_path: Path, auto: dict[str, Any], name: str, reason: str) -> None:
    region = auto.pop("region", None)
    found = candidates_for(tmp_path, auto, region=region)
    (candidate,) = (one for one in found if one.instance_type.name == name)
    assert not candidate.chosen
    assert reason in candidate.reason


def test_workload_without_gpus_uses_types_without_gpus(tmp_path: Path) -> None:
    found = chosen(candidates_for(tmp_path, {"gpus": 0, "vcpus": 16}))
    assert found
    assert all(catalogue().types[name].gpus == 0 for name in found)


def test_load_chooses_the_same_types_each_time(tmp_path: Path) -> None:
    file = deployment(tmp_path, {"gpus": 1, "parameters_million": 124, "micro_batch_tokens": 8192}, nodes=2)
    first = load(file)
    assert first.capacity.instance_types == ["g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.8xlarge"]
    assert load(file) == first


def test_reports_the_closest_types_if_none_fits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"capacity\.auto: '8 GPUs with 500\.0 GiB'.*p6-b300") as caught:
        load(deployment(tmp_path, {"gpus": 8, "gpu_memory_gib": 500}))
    assert "candidates FILE" in str(caught.value)
    with pytest.raises(ConfigError, match="refresh --regions sa-east-1"):
        load(deployment(tmp_path, {"gpus": 1}, region="sa-east-1"))


def test_memory_of_a_model_is_the_sum_of_its_parts() -> None:
    gpt2 = from_shape(PRESETS["gpt2"], tokens=8 * 1024)
    # 124.4 million parameters of 4 + 4 + 8 bytes; 12 layers of 34 x 768 bytes, and 10 bytes per logit, for each token.
    assert gpt2.weights_gib == pytest.approx(124.4e6 * 4 / 2**30, rel=0.01)
    assert gpt2.optimizer_gib == pytest.approx(2 * gpt2.weights_gib)
    assert gpt2.gradients_gib == gpt2.weights_gib
    assert gpt2.activations_gib == pytest.approx(8192 * (12 * 34 * 768 + 10 * 50304) / 2**30)
    parts = gpt2.weights_gib + gpt2.gradients_gib + gpt2.optimizer_gib + gpt2.activations_gib
    assert gpt2.total_gib == pytest.approx(parts + RESERVED_GIB)


def test_estimate_from_size_is_close_to_that_from_shape() -> None:
    for name, parameters in (("gpt2", 124.4e6), ("gpt2-medium", 354.8e6), ("gpt2-xl", 1557.6e6)):
        known, guessed = from_shape(PRESETS[name], 8192), from_parameters(parameters, 8192)
        assert guessed.total_gib == pytest.approx(known.total_gib, rel=0.25), name


def test_command_prints_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = deployment(tmp_path, {"gpus": 1, "gpu_memory_gib": 20, "hours": 100}, nodes=3)
    assert main(["candidates", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    first = printed["candidates"][0]
    assert (first["type"], first["rank"]) == ("g6.xlarge", 0)
    assert set(first["usd_per_hour"]) == {"spot", "on_demand", "savings_plan", "reserved"}
    assert first["total_usd"]["spot"] == pytest.approx(first["usd_per_hour"]["spot"] * 300)
    assert printed["prices"]["on_demand"]["date"]
    assert main(["candidates", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"{first['usd_per_hour']['spot'] * 300:,.2f}" in shown
    assert "1. g6.xlarge" in shown


def test_command_without_auto_and_without_a_fitting_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text("name: x\ncapacity: {instance_types: [g6.xlarge]}\ntraining: {dataset: d}\n")
    assert main(["candidates", str(file)]) == 2
    assert "capacity.auto" in capsys.readouterr().err
    assert main(["candidates", str(deployment(tmp_path, {"gpus": 3}))]) == 2
    assert "no type fits" in capsys.readouterr().err
