"""Checks the size and performance of EBS volumes.

Sources: EbsBlockDevice in botocore's EC2 model (1.44; ranges); for the messages,
https://github.com/rocicorp/mono/pull/4410, https://github.com/runs-on/runs-on/issues/260 and 426, and
https://github.com/gardener/gardener-extension-provider-aws/pull/590.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError

IOPS, MIB_PER_SECOND, GIB = (3_000, 80_000), (125, 2_000), (1, 65_536)
"""Minimum and maximum of a gp3 volume."""
IOPS_PER_GIB, MIB_PER_SECOND_PER_IOPS = 500, 0.25
"""Source: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html (2026-11). The minimum IOPS are
available at any size."""


def check_volume(volume: Mapping[str, Any], gib: int | None) -> None:
    """Check a volume's settings, which are in the format of EbsBlockDevice.

    Args:
        gib: Size of the volume, or None if it is unknown.

    Raises:
        ApiError: InvalidParameterValue or InvalidParameterCombination.
    """
    if volume.get("VolumeType") != "gp3":
        if volume.get("Throughput"):
            raise ApiError("InvalidParameterCombination", "throughput can only be specified for volumeType gp3.")
        return
    iops, throughput = int(volume.get("Iops") or IOPS[0]), int(volume.get("Throughput") or MIB_PER_SECOND[0])
    _in_range("iops", iops, IOPS)
    _in_range("throughput", throughput, MIB_PER_SECOND)
    if gib is not None:
        _in_range("size", gib, GIB)
        if iops > max(IOPS[0], IOPS_PER_GIB * gib):
            _refuse(f"Iops to volume size ratio of {iops / gib:.6f} is too high; maximum is {IOPS_PER_GIB}")
    if throughput > MIB_PER_SECOND_PER_IOPS * iops:
        _refuse(
            f"Throughput (MiBps) to iops ratio of {throughput / iops:.6f} is too high; maximum is "
            f"{MIB_PER_SECOND_PER_IOPS:.6f} MiBps per iops"
        )


def _in_range(name: str, value: int, limits: tuple[int, int]) -> None:
    if value < limits[0]:
        _refuse(f"Volume {name} of {value} is too low; minimum is {limits[0]}.")
    if value > limits[1]:
        _refuse(f"Volume {name} of {value} is too high; maximum is {limits[1]}.")


def _refuse(words: str) -> None:
    raise ApiError("InvalidParameterValue", words)
