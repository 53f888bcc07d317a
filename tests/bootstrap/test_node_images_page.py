"""docs/node-images.md: every row has a test, and the limits match the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bootstrap import aws, context
from bootstrap.boot_steps import fabric, instance_checks, local_disks, python_env, shared_storage, volumes
from bootstrap.disks import tools
from bootstrap.fetch import archives
from bootstrap.gpus import links

ROOT = Path(__file__).parent.parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in (ROOT / "docs" / "node-images.md").read_text(encoding="utf-8").splitlines()
    if "::test_" in line
]
LIMITS = {
    "a value is missing in": context.METADATA_SECONDS,
    "the GPU driver is not loaded": instance_checks.DRIVER_WAIT_SECONDS,
    "torch does not detect": python_env.GPU_SECONDS,
    "the fabric manager does not": links.START_SECONDS,
    "the clock is wrong": instance_checks.CLOCK_WAIT_SECONDS,
    "EFA adapters are missing": fabric.ADAPTER_SECONDS,
    "an instance store disk is": local_disks.SETTLING_SECONDS,
    "`dnf` fails": tools.LOCK_SECONDS,
    "EC2 does not list": volumes.EC2_SECONDS,
    "EC2 refuses to attach": volumes.EC2_SECONDS,
    "the disk of an attached": volumes.APPEAR_SECONDS,
    "the name of the Lustre": shared_storage.MOUNT_SECONDS,
    "a download of a bundle": archives.RESPONSE_SECONDS,
}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_row_has_a_test(row: list[str]) -> None:
    path, _, name = row[-1].strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_limits_are_those_of_the_code() -> None:
    stated = {row[0]: row[2] for row in ROWS if re.fullmatch(r"\d+ s", row[2])}
    assert len(stated) == len(LIMITS)
    for start, seconds in LIMITS.items():
        (limit,) = (limit for condition, limit in stated.items() if condition.startswith(start))
        assert limit == f"{seconds:g} s"
    assert f"| {aws.ATTEMPTS['high']} attempts |" in (ROOT / "docs" / "node-images.md").read_text(encoding="utf-8")


def test_the_page_names_every_service_of_images() -> None:
    assert {row[0].split("`")[1] for row in ROWS if ".service` (" in row[0]} == set(local_disks.IMAGE_SERVICES)
