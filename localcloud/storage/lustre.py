"""Pure functions that validate the deployment type, capacity, throughput and version in FSx for Lustre requests.

Source: docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html and
API_CreateFileSystemLustreConfiguration.html (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPLOYMENTS = ("SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2")
VERSIONS = ("2.10", "2.12", "2.15")
DEFAULT_VERSIONS: Mapping[str, str] = {
    "SCRATCH_1": "2.10", "SCRATCH_2": "2.10", "PERSISTENT_1": "2.10", "PERSISTENT_2": "2.12",
}  # fmt: skip
THROUGHPUTS: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
}
MAX_ASSOCIATIONS = 8
GROWTH_INTERVAL_SECONDS = 6 * 3600.0
"""Source: docs.aws.amazon.com/fsx/latest/LustreGuide/managing-storage-capacity.html, 2026-11."""


def problems(request: Mapping[str, Any]) -> list[str]:
    """Return all problems in a CreateFileSystem request for Lustre."""
    lustre = request.get("LustreConfiguration") or {}
    deployment = lustre.get("DeploymentType", "SCRATCH_1")
    kind = request.get("StorageType", "SSD")
    if deployment not in DEPLOYMENTS:
        return [f"DeploymentType {deployment} is not one of {', '.join(DEPLOYMENTS)}"]
    if kind not in ("SSD", "HDD"):
        return [f"StorageType {kind} is not emulated; use SSD or HDD"]
    found = capacity_problems(request.get("StorageCapacity"), deployment, kind, lustre)
    version = request.get("FileSystemTypeVersion") or DEFAULT_VERSIONS[deployment]
    if version not in VERSIONS:
        found.append(f"FileSystemTypeVersion {version} is not one of {', '.join(VERSIONS)}")
    if version == "2.10" and deployment == "PERSISTENT_2":
        found.append("FileSystemTypeVersion 2.10 is not supported by PERSISTENT_2")
    if len(request.get("SubnetIds", [])) != 1:
        found.append("SubnetIds: a Lustre file system must have exactly one subnet")
    found += throughput_problems(lustre.get("PerUnitStorageThroughput"), deployment, kind)
    if kind == "HDD" and deployment != "PERSISTENT_1":
        found.append("StorageType HDD requires PERSISTENT_1")
    if lustre.get("DataCompressionType", "NONE") not in ("NONE", "LZ4"):
        found.append(f"DataCompressionType {lustre['DataCompressionType']} must be NONE or LZ4")
    if deployment != "PERSISTENT_2":
        found += [f"{one} requires PERSISTENT_2" for one in ("EfaEnabled", "MetadataConfiguration") if lustre.get(one)]
    elif lustre.get("EfaEnabled") and not lustre.get("MetadataConfiguration"):
        found.append("EfaEnabled requires a MetadataConfiguration")
    return found


def capacity_problems(capacity: int | None, deployment: str, kind: str, lustre: Mapping[str, Any]) -> list[str]:
    """Return the problems with a storage capacity in GiB."""
    if capacity is None:
        return ["StorageCapacity is required"]
    if kind == "HDD":
        step = 1800 if lustre.get("PerUnitStorageThroughput") == 40 else 6000
        fits, rule = capacity > 0 and capacity % step == 0, f"a multiple of {step}"
    elif deployment == "SCRATCH_1":
        fits, rule = capacity in (1200, 2400) or (capacity > 0 and capacity % 3600 == 0), "1200, 2400, or n x 3600"
    else:
        fits, rule = capacity == 1200 or (capacity > 0 and capacity % 2400 == 0), "1200 or a multiple of 2400"
    return [] if fits else [f"StorageCapacity {capacity} GiB is not valid for {deployment} {kind}: it must be {rule}"]


def growth_problems(capacity: int, existing: int, deployment: str) -> list[str]:
    """Return the problems with changing the storage capacity, in GiB.

    The minimum increase of 10% applies only to other types of file systems.
    Source: docs.aws.amazon.com/fsx/latest/APIReference/API_UpdateFileSystem.html, 2026-11.
    """
    if deployment == "SCRATCH_1":
        return ["StorageCapacity of a SCRATCH_1 file system cannot be changed"]
    return [] if capacity > existing else [f"StorageCapacity {capacity} must be greater than {existing}"]


def metadata_problems(existing: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None) -> list[str]:
    """Return the problems with changing the metadata configuration. Provisioned IOPS cannot be decreased.

    Source: docs.aws.amazon.com/fsx/latest/APIReference/API_UpdateFileSystemLustreMetadataConfiguration.html, 2026-11.
    """
    old, new = (one.get("Iops") if one else None for one in (existing, wanted))
    if old is None or new is None or new >= old:
        return []
    return [f"MetadataConfiguration Iops {new} must be at least {old}"]


def throughput_problems(throughput: int | None, deployment: str, kind: str) -> list[str]:
    """Return the problems with a throughput per unit of storage, in MB/s per TiB."""
    allowed = THROUGHPUTS.get((deployment, kind))
    if allowed is None:
        return [] if throughput is None else [f"PerUnitStorageThroughput is not supported by {deployment} {kind}"]
    if throughput not in allowed:
        listed = ", ".join(map(str, allowed))
        return [f"PerUnitStorageThroughput {throughput} is not one of {listed} for {deployment} {kind}"]
    return []


def association_problems(deployment: str, version: str, existing: int) -> list[str]:
    """Return the reasons why a file system cannot have another data repository association.

    Source: docs.aws.amazon.com/fsx/latest/LustreGuide/create-dra-linked-data-repo.html, 2026-11.
    """
    found = []
    if version == "2.10" or deployment == "SCRATCH_1":
        found.append(
            f"Data repository associations are not supported on Lustre {version} file systems of type {deployment}"
        )
    if existing >= MAX_ASSOCIATIONS:
        found.append(f"A file system can have at most {MAX_ASSOCIATIONS} data repository associations")
    return found
