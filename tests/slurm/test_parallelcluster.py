"""`trainstack slurm parallelcluster`, checked by ParallelCluster's own schema and validators."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware import instance_type
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from trainstack.commands import main

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "parallelcluster-venv" / "bin" / "python"
CHECK = Path(__file__).with_name("parallelcluster_check.py")
SUBNET = "subnet-0123456789abcdef0"
Cluster = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cluster:
    """Return a function that prints the configuration of an example with edits."""

    def of(*options: str, code: int = 0, **edits: Any) -> str:
        document = yaml.safe_load((ROOT / "config" / "slurm" / "two-nodes.yaml").read_text())
        for section, values in edits.items():
            document[section] = {**document[section], **values} if isinstance(values, dict) else values
        file = tmp_path / "x.yaml"
        file.write_text(yaml.safe_dump(document))
        with pytest.raises(SystemExit) as ended:
            main(["slurm", "parallelcluster", str(file), *(options or ("--subnet", SUBNET))])
        assert (ended.value.code or 0) == code
        output = capsys.readouterr()
        return output.err if code else output.out

    return of


def queue_of(text: str) -> dict[str, Any]:
    (queue,) = yaml.safe_load(text)["Scheduling"]["SlurmQueues"]
    found: dict[str, Any] = queue
    return found


def test_queue_matches_the_jobs(cluster: Cluster) -> None:
    text = cluster(capacity={"market": "on_demand", "nodes": 5})
    queue = queue_of(text)
    (nodes,) = queue["ComputeResources"]
    assert (queue["Name"], queue["CapacityType"], nodes["MinCount"], nodes["MaxCount"]) == ("gpu", "ONDEMAND", 0, 5)
    assert nodes["Instances"] == [{"InstanceType": "p5.48xlarge"}] and nodes["Efa"] == {"Enabled": True}
    assert queue["Networking"] == {"SubnetIds": [SUBNET], "PlacementGroup": {"Enabled": True}}
    assert "runs/run-1/job.sh" in text and "&id" not in text
    plain = queue_of(cluster(capacity={"instance_types": ["g6.xlarge"]}, slurm={"exclusive": False}))
    assert "Efa" not in plain["ComputeResources"][0] and "PlacementGroup" not in plain["Networking"]
    assert plain["JobExclusiveAllocation"] is False and plain["HealthChecks"] == {"Gpu": {"Enabled": True}}
    unchecked = queue_of(cluster(slurm={"health_check": False}))
    assert "HealthChecks" not in unchecked


def test_nodes_have_no_tag_of_a_deployment(cluster: Cluster) -> None:
    """`zombies --end` would terminate them: the deployment has no stack."""
    assert DEPLOYMENT_TAG not in cluster()


def test_shared_storage(cluster: Cluster) -> None:
    (created,) = yaml.safe_load(cluster())["SharedStorage"]
    assert created["MountDir"] == "/fsx" and created["FsxLustreSettings"]["DeletionPolicy"] == "Retain"
    (existing,) = yaml.safe_load(cluster("--subnet", SUBNET, "--file-system", "fs-0123456789abcdef0"))["SharedStorage"]
    assert existing["FsxLustreSettings"] == {"FileSystemId": "fs-0123456789abcdef0"}


@pytest.mark.parametrize(("region", "partition"), [("us-east-1", "aws"), ("us-gov-west-1", "aws-us-gov")])
def test_arn_has_the_partition_of_the_region(cluster: Cluster, region: str, partition: str) -> None:
    document = yaml.safe_load(cluster(region=region))
    (policy,) = document["HeadNode"]["Iam"]["AdditionalIamPolicies"]
    assert document["Region"] == region and policy["Policy"].startswith(f"arn:{partition}:iam::aws:policy/")


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"capacity": {"market": "reserved"}}, "capacity.market: 'reserved': is not supported by this command"),
        ({"slurm": {"partition": "GPU"}}, "slurm.partition: 'GPU': must be the name of a queue"),
        ({"slurm": {"directory": "/fsx"}}, "slurm.directory: '/fsx': must be a folder on the shared file system"),
        ({"capacity": {"instance_types": []}, "slurm": {"gres": "gpu:8"}}, "capacity.instance_types: []: is empty"),
    ],
)
def test_unsupported_plans_are_errors(cluster: Cluster, edits: dict[str, Any], message: str) -> None:
    assert message in cluster(code=2, **edits)


@pytest.mark.parametrize(
    "options", [("--subnet", "vpc-1"), ("--subnet", SUBNET, "--file-system", "/fsx"), ("--subnet", "subnet-zz")]
)
def test_invalid_ids_are_errors(cluster: Cluster, options: tuple[str, ...]) -> None:
    assert "must be an id" in cluster(*options, code=2)


def described(name: str, usage: list[str]) -> dict[str, Any]:
    """Return an item of DescribeInstanceTypes with the facts of the hardware table."""
    known = instance_type(name)
    vcpus, gpus, efa = (known.vcpus, known.gpus, known.efa_interfaces) if known is not None else (2, 0, 0)
    cards = max(1, efa)
    return {
        "InstanceType": name,
        "VCpuInfo": {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2, "DefaultThreadsPerCore": 2},
        "MemoryInfo": {"SizeInMiB": 8192 if known is None else int(known.memory_gib * 1024)},
        "GpuInfo": {"Gpus": [{"Name": "GPU", "Manufacturer": "NVIDIA", "Count": gpus}] if gpus else []},
        "NetworkInfo": {
            "MaximumNetworkCards": cards,
            "EfaSupported": bool(efa),
            "NetworkCards": [{"NetworkCardIndex": index} for index in range(cards)],
        },
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "SupportedUsageClasses": usage,
    }


def validate(text: str, types: dict[str, Any]) -> dict[str, Any]:
    request = json.dumps({"configuration": text, "instance_types": types})
    done = subprocess.run([str(PYTHON), str(CHECK)], input=request, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


NEED = ("p5.48xlarge", "g6.xlarge", "m7i.large")
SOME = {"EfaPlacementGroupValidator", "CapacityTypeValidator", "FsxStorageCapacityValidator", "MaxCountValidator"}
"""Some of the validators that must have run."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "edits",
    [{}, {"capacity": {"instance_types": ["g6.xlarge"], "market": "on_demand"}}, {"slurm": {"exclusive": False}}],
)
def test_validators_accept_the_configuration(cluster: Cluster, edits: dict[str, Any]) -> None:
    found = validate(cluster(**edits), {name: described(name, ["spot", "on-demand"]) for name in NEED})
    assert set(found["ran"]) >= SOME, found
    assert [each for each in found["failures"] if each[0] != "INFO"] == []


@pytest.mark.slow
def test_validators_find_mistakes(cluster: Cluster) -> None:
    types = {name: described(name, ["on-demand"]) for name in NEED}
    found = validate(cluster(capacity={"instance_types": ["g6.xlarge"]}), types)
    assert "CapacityTypeValidator" in [name for _, name, _ in found["failures"]], "not offered as Spot Instances"
    document = yaml.safe_load(cluster())
    document["SharedStorage"][0]["FsxLustreSettings"]["StorageCapacity"] = 1300
    found = validate(yaml.safe_dump(document), types)
    assert any(name == "FsxStorageCapacityValidator" for _, name, _ in found["failures"])
    document["Scheduling"]["SlurmQueues"][0]["Nodes"] = 2
    assert validate(yaml.safe_dump(document), types)["failures"][0][1] == "Schema"
