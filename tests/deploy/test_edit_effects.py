"""Checks that the effect of editing each key on the templates matches the key's documentation."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stacks.changes.effects.nodes import REJECTED, node_verdict
from stacks.changes.templates.template_set import TemplateSet, read_cloud_assembly
from stacks.changes.updates.resources import resource_changes
from stacks.config import DeploymentConfig
from stacks.config.reference import fields
from tests.deploy.edits import IN_PLACE
from tests.stacks.conftest import ROOT, Assembly, Synthesis

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900), pytest.mark.xdist_group("cdk")]

SUBNETS = [{"id": "subnet-0123456789abcdef0", "zone": "a"}, {"id": "subnet-0123456789abcdef1", "zone": "b"}]
EXISTING = {"id": "vpc-0123456789abcdef0", "cidr": "10.0.0.0/16", "subnets": SUBNETS}
SNAPSHOT, OTHER_SNAPSHOT = "snap-0123456789abcdef0", "snap-0123456789abcdef1"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/gpus"
RUN = {"dataset": "text", "config": {"steps": 1000, "checkpoint": {"interval_steps": 100}}}
BASE: dict[str, Any] = {
    "name": "base",
    "network": {"zones": ["a", "b"]},
    "capacity": {"instance_types": ["g6.12xlarge"], "nodes": 2},
    "training": RUN,
}


def base(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the base configuration with additional keys in its sections."""
    return {**BASE, **{name: {**BASE.get(name, {}), **keys} for name, keys in sections.items()}}


STORAGE = base(
    storage={
        "dataset_volume": {"snapshot_id": SNAPSHOT, "gib": 500},
        "checkpoint_volume": {"zone": "a"},
        "shared_volume": {"zone": "a", "snapshot_id": SNAPSHOT},
        "lustre": {"zone": "a", "capacity_gib": 2400},
    }
)
RATED = base(
    storage={
        "dataset_volume": {"snapshot_id": SNAPSHOT, "gib": 500, "warm": "provisioned_rate", "warm_mib_per_second": 200}
    }
)
PREPARED = base(
    training={"prepare": {"source": "raw/text", "function": "training.data.prepare:tokenize", "timeout_minutes": 60}}
)
LIMITED = base(limits={"deadline_hours": 300.0, "training_hours": 50.0, "usd": 5000.0})
AUTO_WORK = {"gpus": 4, "gpu_memory_gib": 20.0, "max_usd_per_hour": 9.0, "types": 1}
AUTO: dict[str, Any] = {**BASE, "capacity": {"auto": AUTO_WORK, "nodes": 2}}
RESERVED = base(
    capacity={"market": "reserved", "reservation": {"id": "cr-0123456789abcdef0", "zone": "a"}},
)
GROUPED = base(capacity={"market": "reserved", "reservation": {"resource_group_arn": GROUP}})
CREATED = base(
    capacity={
        "market": "reserved",
        "reservation": {"create": {"instance_type": "g6.12xlarge", "zone": "a", "count": 2}},
    }
)
FLEET = base(capacity={"backend": "ec2_fleet", "maintenance": {"rebalance": "launch_before_terminate"}})
PARTITIONED = base(capacity={"placement": "partition", "partitions": 2})
LAYERED = base(
    training={
        "config": {
            **RUN["config"],
            "model": {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "sequence_length": 128},
        }
    }
)
INSIDE = {**BASE, "network": {"existing": EXISTING}}
ROUTED = {
    **BASE,
    "network": {"existing": {**EXISTING, "create_endpoints": True, "route_table_ids": ["rtb-0123456789abcdef1"]}},
}
BUDGETED = base(budget={"monthly_usd": 500.0})
CONNECTION = "arn:aws:codeconnections:us-east-1:123456789012:connection/00000000-0000-0000-0000-00000000000"
PROVIDER = "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com"
DELIVERED = base(
    delivery={
        "pipeline": {"connection_arn": CONNECTION + "0", "repository": "owner/name", "stages": ["config/minimal.yaml"]},
        "github": {"repository": "owner/name", "repository_id": 1, "owner_id": 2},
    }
)

# Key: (base configuration, edited value). The other keys are in IN_PLACE or belong to the trainer.
EDITS: dict[str, tuple[dict[str, Any], Any]] = {
    "name": (BASE, "other"),
    "region": (BASE, "us-west-2"),
    "account": (BASE, "123456789012"),
    "tags": (BASE, {"team": "a"}),
    "network.cidr": (BASE, "10.65.0.0/16"),
    "network.zones": (BASE, ["b", "c"]),
    "network.existing.id": (INSIDE, "vpc-0123456789abcdef1"),
    "network.existing.subnets.id": (
        INSIDE,
        [{**SUBNETS[0], "id": "subnet-0123456789abcdef2"}, SUBNETS[1]],
    ),
    "network.existing.subnets.zone": (
        {**INSIDE, "capacity": {**BASE["capacity"], "placement": "cluster"}},
        [SUBNETS[1], SUBNETS[0]],
    ),
    "storage.deletion": (BASE, "destroy"),
    "storage.dataset_volume.snapshot_id": (STORAGE, OTHER_SNAPSHOT),
    "storage.dataset_volume.gib": (STORAGE, 600),
    "storage.dataset_volume.iops": (STORAGE, 4000),
    "storage.dataset_volume.throughput": (STORAGE, 300),
    "storage.dataset_volume.warm": (STORAGE, "off"),
    "storage.dataset_volume.warm_mib_per_second": (RATED, 300),
    "storage.dataset_volume.warm_limit_mib_per_second": (STORAGE, 100),
    "storage.dataset_volume.mount": (STORAGE, "/mnt/other"),
    "storage.checkpoint_volume.zone": (base(storage={"checkpoint_volume": {"zone": "a"}}), "b"),
    "storage.checkpoint_volume.mount": (STORAGE, "/mnt/other"),
    "storage.checkpoint_volume.other_zones": (base(storage={"checkpoint_volume": {"zone": "a"}}), "restore"),
    "storage.shared_volume.zone": (base(storage={"shared_volume": {"zone": "a"}}), "b"),
    "storage.shared_volume.snapshot_id": (STORAGE, OTHER_SNAPSHOT),
    "storage.shared_volume.mount": (STORAGE, "/mnt/other"),
    "storage.lustre.zone": (base(storage={"lustre": {"zone": "a"}}), "b"),
    "storage.lustre.deployment_type": (STORAGE, "SCRATCH_2"),
    "storage.lustre.import_datasets": (STORAGE, False),
    "storage.lustre.stripe_count": (STORAGE, 4),
    "storage.lustre.mount": (STORAGE, "/mnt/other"),
    "storage.lustre.mount_options": (STORAGE, "noatime,flock"),
    "capacity.backend": (BASE, "ec2_fleet"),
    "capacity.instance_types": (BASE, ["g6.12xlarge", "g6.24xlarge"]),
    "capacity.nodes": (BASE, 3),
    "capacity.min_nodes": (BASE, 1),
    "capacity.market": (BASE, "on_demand"),
    "capacity.on_demand_base": (BASE, 1),
    "capacity.allocation_strategy": (BASE, "capacity-optimized"),
    "capacity.max_price_usd": (BASE, 4.0),
    "capacity.zone_policy": (base(node={"fabric": "tcp"}), "one_at_a_time"),
    "capacity.choose": (base(node={"fabric": "tcp"}, capacity={"zone_policy": "one_at_a_time"}), "cost"),
    "capacity.placement": (BASE, "cluster"),
    "capacity.partitions": (PARTITIONED, 3),
    "capacity.gang_timeout_seconds": (BASE, 600),
    "capacity.auto.gpus": (AUTO, 8),
    "capacity.auto.gpu_memory_gib": (AUTO, 40.0),
    "capacity.auto.hours": (AUTO, 100.0),
    "capacity.auto.types": (AUTO, 2),
    "capacity.reservation.id": (RESERVED, "cr-0123456789abcdef1"),
    "capacity.reservation.zone": (RESERVED, "b"),
    "capacity.reservation.resource_group_arn": (GROUPED, GROUP + "-2"),
    "capacity.reservation.create.zone": (CREATED, "b"),
    "capacity.maintenance.replace_unhealthy": (FLEET, False),
    "capacity.maintenance.rebalance": (BASE, "launch_before_terminate"),
    "capacity.maintenance.rebalance_termination_delay_seconds": (FLEET, 300),
    "node.ami": (BASE, "ami-0123456789abcdef0"),
    "node.root_device": (base(node={"ami": "ami-0123456789abcdef0"}), "/dev/sda1"),
    "node.fabric": (base(node={"fabric": "tcp"}), "efa"),
    "node.boot_timeout_seconds": (BASE, 600),
    "node.root_volume.gib": (BASE, 200),
    "node.root_volume.iops": (BASE, 4000),
    "node.root_volume.throughput": (BASE, 250),
    "node.python.interpreter": (BASE, "python3"),
    "node.python.packages": (BASE, ["torch"]),
    "node.python.versions": (BASE, ["3.13"]),
    "node.supervise.poll_seconds": (BASE, 1.0),
    "node.supervise.heartbeat_seconds": (BASE, 1.0),
    "node.supervise.heartbeat_timeout_seconds": (BASE, 20.0),
    "training.run": (BASE, "run-2"),
    "training.dataset": (BASE, "other"),
    "training.prepare.function": (PREPARED, "own.preparation:make"),
    "training.prepare.source": (PREPARED, "raw/other"),
    "training.prepare.options": (PREPARED, {"vocabulary_size": 4000}),
    "training.prepare.timeout_minutes": (PREPARED, 30),
    "training.dependencies": (BASE, ["einops>=0.8"]),
    "training.processes_per_node": (BASE, 2),
    "training.config.seed": (BASE, 1),
    "training.config.steps": (BASE, 2000),
    "training.config.micro_batch_size": (BASE, 4),
    "training.config.precision": (BASE, "fp32"),
    "training.config.model.num_hidden_layers": (LAYERED, 3),
    "training.config.optimizer.learning_rate": (BASE, 0.002),
    "training.config.schedule.kind": (BASE, "constant"),
    "training.config.checkpoint.interval_steps": (BASE, 200),
    "training.config.validation.batches": (BASE, 4),
    "training.config.parallel.gradient_compression": (BASE, "bf16"),
    "training.config.execution.attention": (BASE, "flash"),
    "training.config.recovery.non_finite": (BASE, "skip"),
    "training.config.early_stopping.patience_validations": (BASE, 3),
    "training.config.observation.tensorboard": (BASE, True),
    "delivery.pipeline.connection_arn": (DELIVERED, CONNECTION + "1"),
    "delivery.pipeline.repository": (DELIVERED, "owner/other"),
    "delivery.pipeline.branch": (DELIVERED, "release"),
    "delivery.pipeline.stages": (DELIVERED, ["config/minimal.yaml", "config/single-gpu.yaml"]),
    "delivery.pipeline.approve_from": (DELIVERED, 20),
    "delivery.pipeline.drift_hour_utc": (DELIVERED, 5),
    "delivery.pipeline.emails": (DELIVERED, ["team@example.com"]),
    "delivery.github.repository": (DELIVERED, "owner/other"),
    "delivery.github.repository_id": (DELIVERED, 3),
    "delivery.github.owner_id": (DELIVERED, 4),
    "delivery.github.branch": (DELIVERED, "release"),
    "delivery.github.environments": (DELIVERED, ["dev"]),
    "delivery.github.provider_arn": (DELIVERED, PROVIDER),
}
# CDK context without which the edit has no effect.
CONTEXT = {"storage.deletion": {"allow-destroy": "true"}}
# Keys that are invalid without another key.
TOGETHER = {
    "network.existing.create_endpoints": {"network.existing.route_table_ids": ["rtb-0123456789abcdef1"]},
}
# Keys that are not edited here, with the reason or the covering test.
ELSEWHERE = {
    "engine": "tests/stacks/test_wrong_configs.py: another engine has no stacks",
    "storage.lustre.version": "has a single valid value",
    "training.code": "tests/stacks/test_bundles.py: the bundle's name depends on the folder's content",
    "node.python.wheelhouse": "tests/stacks/test_wheelhouse.py: the lock file determines the node bundle's name",
    "capacity.auto.parameters_million": "tests/stacks/test_selection.py: the selection is a pure function",
    "capacity.auto.micro_batch_tokens": "tests/stacks/test_selection.py: the selection is a pure function",
    "capacity.auto.vcpus": "tests/stacks/test_selection.py: the selection is a pure function",
    "capacity.auto.memory_gib": "tests/stacks/test_selection.py: the selection is a pure function",
    "capacity.auto.dataset_gib": "tests/stacks/test_selection.py: the selection is a pure function",
    "capacity.auto.max_usd_per_hour": "tests/stacks/test_selection.py: the selection is a pure function",
    "capacity.reservation.create.instance_type": "must be one of capacity.instance_types, so it changes with them",
}
IN_PLACE_BASES = {
    "network.existing.create_endpoints": INSIDE,
    "network.existing": ROUTED,
    "budget.": BUDGETED,
    "limits.": LIMITED,
    "storage.": STORAGE,
    "capacity.reservation.create": CREATED,
}
IN_PLACE_HERE = {
    "network.existing.route_table_ids": ["rtb-0123456789abcdef0"],
    "network.existing.create_endpoints": True,
    "capacity.reservation.create.count": 3,
    "capacity.reservation.create.end": "2030-01-01T00:00:00Z",
}


def edits() -> dict[str, tuple[dict[str, Any], Any]]:
    """Return the edits of all keys tested here."""
    found = dict(EDITS)
    for path, value in {**IN_PLACE, **IN_PLACE_HERE}.items():
        if value is not None:
            found[path] = (next((b for start, b in IN_PLACE_BASES.items() if path.startswith(start)), BASE), value)
    return found


def claims() -> dict[str, str]:
    """Return the documented effect of editing each key. The trainer's keys are part of the run document."""
    return {path: edit for path, _, edit in fields(DeploymentConfig)}


def resources(assembly: Assembly) -> dict[str, Any]:
    """Return every resource of an assembly, and the environment and name of its stacks."""
    manifest = json.loads((assembly.directory / "manifest.json").read_text())
    found: dict[str, Any] = {}
    for name, artifact in manifest["artifacts"].items():
        if artifact["type"] != "aws:cloudformation:stack":
            continue
        found[f"{name}/"] = (artifact["environment"], artifact["properties"].get("stackName"))
        for logical_id, resource in json.loads(assembly.text(name))["Resources"].items():
            found[f"{name}/{logical_id}"] = resource
    return found


# Network resources and their properties that are not changed in place; None: all except tags.
NETWORK = {"AWS::EC2::VPC": None, "AWS::EC2::Subnet": None, "AWS::EC2::SecurityGroup": {"VpcId"}}
# A replaced placement group has a new name, which results in a new launch template version.
NODES = {"AWS::EC2::LaunchTemplate", "AWS::EC2::PlacementGroup"}
FLEETS = {"AWS::AutoScaling::AutoScalingGroup", "AWS::EC2::EC2Fleet", "AWS::EC2::SpotFleet"}
DATA = {"AWS::EC2::Volume", "AWS::FSx::FileSystem", "AWS::FSx::DataRepositoryAssociation"}
GROWS = {"Size", "Iops", "Throughput", "StorageCapacity", "DataCompressionType", "PerUnitStorageThroughput", "Tags"}


@dataclass(frozen=True)
class Templates:
    """The templates of a configuration: their resources, and the input of `python -m stacks diff`."""

    resources: dict[str, Any]
    templates: TemplateSet


def replaces(old: Templates, new: Templates) -> bool:
    """Return True if `stacks diff` reports replaced nodes."""
    changes = resource_changes(old.templates, new.templates)
    return node_verdict(old.templates, new.templates, changes).replaces


def verdict(old: Templates, new: Templates) -> str:
    """Return the effect of the difference between two sets of templates."""
    before, after = old.resources, new.resources
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    # The stack of a new slot changes nothing in the other stacks.
    slots = {key for key in after.keys() - before.keys() if key.startswith("TrainingStack-")}
    changed -= {key for key in slots if f"{key.partition('/')[0]}/" in slots}
    if not changed:
        return "nothing"
    if any(key.endswith("/") for key in changed):
        return "creates a second deployment"
    kinds = {key: (after.get(key) or before[key])["Type"] for key in changed}
    if all(key.startswith("PipelineStack/") for key in changed):
        return "changes the delivery"
    if any(kind in NETWORK and _is_remade(before.get(key), after.get(key)) for key, kind in kinds.items()):
        return "replaces the network"
    if any(_touches_data(before.get(key), after.get(key)) for key in changed):
        return "touches data"
    if NODES & set(kinds.values()):
        return "replaces nodes"
    if any(kind in FLEETS and _more_than_size(before.get(key), after.get(key)) for key, kind in kinds.items()):
        return "replaces nodes" if replaces(old, new) else "new nodes"
    if any(kind == "AWS::SSM::Parameter" for kind in kinds.values()):
        changes = resource_changes(old.templates, new.templates)
        is_rejected = REJECTED in node_verdict(old.templates, new.templates, changes).reason
        return "requires a new run" if is_rejected else "restarts the trainer"
    return "in place"


def _is_remade(before: Any, after: Any) -> bool:
    """Return True if an existing network resource is deleted or replaced."""
    if before is None:
        return False
    fixed = NETWORK[before["Type"]]
    strip = [
        {key: value for key, value in (each or {"Properties": {}})["Properties"].items() if _counts(key, fixed)}
        for each in (before, after)
    ]
    return bool(strip[0] != strip[1])


def _counts(key: str, fixed: set[str] | None) -> bool:
    return key != "Tags" if fixed is None else key in fixed


def _touches_data(before: Any, after: Any) -> bool:
    policies = ("DeletionPolicy", "UpdateReplacePolicy")
    stateful = [
        each for each in (before, after) if each and each["Type"] in (*DATA, "AWS::S3::Bucket", "AWS::KMS::Key")
    ]
    if not stateful:
        return False
    if before is None or after is None:
        return True
    if any(before.get(policy) != after.get(policy) for policy in policies):
        return True
    return before["Type"] in DATA and bool(_flat(before) ^ _flat(after)) and not _only_grows(before, after)


def _flat(resource: dict[str, Any]) -> set[str]:
    return {json.dumps([key, value]) for key, value in resource["Properties"].items()}


def _only_grows(before: dict[str, Any], after: dict[str, Any]) -> bool:
    one, other = before["Properties"], after["Properties"]
    changed = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    if "LustreConfiguration" in changed:
        inner, outer = one["LustreConfiguration"], other["LustreConfiguration"]
        changed |= {key for key in inner.keys() | outer.keys() if inner.get(key) != outer.get(key)}
        changed.discard("LustreConfiguration")
    return changed <= GROWS


def _more_than_size(before: Any, after: Any) -> bool:
    """Return True if a fleet differs in more than the size limits of the run controller."""
    if before is None or after is None:
        return True
    sizes = {"MaxSize", "MinSize", "MaxInstanceLifetime", "Tags"}
    strip = [{key: value for key, value in each["Properties"].items() if key not in sizes} for each in (before, after)]
    return bool(strip[0] != strip[1])


def with_value(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(config))
    *parents, last = path.removesuffix(".subnets.id").removesuffix(".subnets.zone").split(".")
    if path.endswith((".subnets.id", ".subnets.zone")):
        parents, last = [*parents, last], "subnets"
    place = copy
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    return copy


class Made:
    """Synthesizes the templates of each configuration once."""

    def __init__(self, synthesis: Synthesis, directory: Path) -> None:
        self._synthesis = synthesis
        self._directory = directory
        self._made: dict[str, Templates] = {}

    def of(self, config: dict[str, Any], context: dict[str, str]) -> Templates:
        text = json.dumps([config, context], sort_keys=True)
        if text not in self._made:
            path = self._directory / f"{len(self._made)}.yaml"
            path.write_text(json.dumps(config))  # JSON is YAML
            made = self._synthesis.run(path, f"edit-{len(self._made)}", **context)
            self._made[text] = Templates(resources(made), read_cloud_assembly(made.directory))
        return self._made[text]


@pytest.fixture(scope="module")
def templates(synthesis: Synthesis) -> Iterator[Made]:
    # Inside the repository, because a pipeline reads its deployment file from there.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as directory:
        yield Made(synthesis, Path(directory))


def test_every_key_is_tested_here_or_elsewhere() -> None:
    # tests/trainstack/test_slurm.py edits the keys of the slurm section, which do not affect templates.
    own = {path for path in claims() if not path.startswith(("training.config.", "slurm."))}
    assert own - set(edits()) == set(ELSEWHERE)
    assert set(edits()) <= set(claims())


@pytest.mark.parametrize("path", sorted(edits()))
def test_edit_has_the_documented_effect(path: str, templates: Made) -> None:
    config, value = edits()[path]
    context = CONTEXT.get(path, {})
    edited = with_value(config, path, value)
    for other, needed in TOGETHER.get(path, {}).items():
        edited = with_value(edited, other, needed)
    before, after = templates.of(config, context), templates.of(edited, context)
    assert verdict(before, after) == claims()[path]
    if claims()[path] in ("replaces nodes", "new nodes", "restarts the trainer", "in place"):
        assert replaces(before, after) == (claims()[path] == "replaces nodes"), "different result of `stacks diff`"


@pytest.mark.parametrize("backend", ["ec2_fleet", "spot_fleet"])
@pytest.mark.parametrize("path", [path for path in sorted(edits()) if claims()[path] == "new nodes"])
def test_edit_for_new_nodes_of_a_group_replaces_nodes_of_a_fleet(path: str, backend: str, templates: Made) -> None:
    config, value = edits()[path]
    config = with_value(config, "capacity.backend", backend)
    replaced = replaces(templates.of(config, {}), templates.of(with_value(config, path, value), {}))
    # The run controller sets the size of both markets of an EC2 Fleet. A Spot Fleet's template contains both sizes.
    assert replaced != ((path, backend) == ("capacity.on_demand_base", "ec2_fleet"))
