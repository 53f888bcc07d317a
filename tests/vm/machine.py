"""An instance of the embedded cloud as a QEMU guest, with EC2's firmware strings, disks and data source.

The guest's network has one other host, 169.254.169.254, which QEMU forwards to the loopback interface of this machine:
port 80 to the metadata service, and the cloud's port to its gateway.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import urllib.request
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from localcloud.compute.errors import ProcessTreeError
from localcloud.compute.machines.machine import Machine
from localcloud.compute.machines.metadata_server import MetadataServer
from tests.vm.image import LABEL, Image

logger = logging.getLogger(__name__)

METADATA_ADDRESS = "169.254.169.254"
MEMORY_MIB = 3072
INSTANCE_STORE_BYTES = 1 << 30
INSTANCE_STORE_DISKS = 2


class MetadataOnPort80(MetadataServer):
    """The metadata service on the port that a guest uses; only one can run at a time."""

    def server_bind(self) -> None:
        """Bind to port 80, which needs root, as building the image does."""
        self.server_address = ("127.0.0.1", 80)
        super().server_bind()


class VirtualMachine(Machine):
    """A guest. cloud-init reads its user data from the metadata service, as on EC2."""

    def __init__(
        self,
        directory: Path,
        instance_id: str,
        *,
        endpoint_url: str,
        state_directory: Path,
        power_token: str,
        image: Image,
        accelerator: str,
    ) -> None:
        super().__init__(
            directory,
            instance_id,
            endpoint_url=endpoint_url,
            state_directory=state_directory,
            power_token=power_token,
        )
        self._image = image
        self._accelerator = accelerator

    def make(self, data: bytes) -> None:
        """Create the directory and blank instance store disks."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.console_path.touch()
        for number in range(INSTANCE_STORE_DISKS):
            with self._store(number).open("wb") as stream:
                os.truncate(stream.fileno(), INSTANCE_STORE_BYTES)

    def boot(self, *, run_user_data: bool) -> None:
        """Start QEMU; cloud-init decides whether to run the user data.

        Raises:
            ProcessTreeError: QEMU cannot be started.
        """
        with self._lock:
            try:
                with (self.directory / "qemu.log").open("ab") as log:
                    process = subprocess.Popen(
                        self._command(), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                    )
            except OSError as error:
                raise ProcessTreeError(f"{self.instance_id}: {error}") from error
            self._init = process
            (self.directory / "pid").write_text(f"{process.pid}\n")
        threading.Thread(target=self._watch, args=(process,), name=f"watch-{self.instance_id}", daemon=True).start()

    def power_off(self, grace_seconds: float) -> None:
        """Send the power-button event, and kill QEMU if the guest does not power off in time."""
        with self._lock:
            process, self._init = self._init, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.write(b"system_powerdown\n")
            process.stdin.flush()
            process.wait(grace_seconds)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        self._clean_up(process)

    def _store(self, number: int) -> Path:
        return self.directory / f"instance-store-{number}.raw"

    def _command(self) -> list[str]:
        serial = self.instance_id.removeprefix("i-")
        # cloud-init recognizes EC2 by an UUID that starts with ec2.
        unique = str(uuid.UUID("ec2" + uuid.uuid5(uuid.NAMESPACE_OID, serial).hex[3:]))
        gateway = f"http://{METADATA_ADDRESS}:{urlsplit(self._endpoint_url).port}"
        kernel = f"root=LABEL={LABEL} ro console=ttyS0 net.ifnames=0 panic=-1 trainstack.probe"
        kernel += " systemd.journald.forward_to_console=1"
        kernel += f" systemd.setenv=AWS_ENDPOINT_URL={gateway} systemd.setenv=S3_ENDPOINT_URL={gateway}"
        command = [
            *("qemu-system-x86_64", "-accel", self._accelerator, "-cpu", "max", "-smp", "1", "-m", str(MEMORY_MIB)),
            *("-display", "none", "-serial", f"file:{self.console_path}", "-monitor", "stdio"),
            *("-kernel", str(self._image.kernel), "-initrd", str(self._image.initial_files), "-append", kernel),
            *("-smbios", f"type=1,manufacturer=Amazon EC2,product=c7i.2xlarge,uuid={unique},serial={unique}"),
            *("-smbios", f"type=3,manufacturer=Amazon EC2,asset={self.instance_id}"),
            *("-netdev", f"user,id=net,net=169.254.0.0/16,host={METADATA_ADDRESS}"),
            *("-device", f"virtio-net-pci,netdev=net,mac={self._ask('mac')}"),
        ]
        command += _nvme("root", self._image.disk, f"vol{serial}", snapshot=True)
        for number in range(INSTANCE_STORE_DISKS):
            command += _nvme(f"store{number}", self._store(number), f"AWS{number}{serial}"[:20])
        return command

    def _ask(self, path: str) -> str:
        """Return a value of this instance from the metadata service."""
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        order = urllib.request.Request(f"{self.metadata_url}latest/api/token", method="PUT", headers=headers)
        with urllib.request.urlopen(order, timeout=10) as answer:
            token = answer.read().decode()
        url = f"{self.metadata_url}latest/meta-data/{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"X-aws-ec2-metadata-token": token}), timeout=10
        ) as answer:
            return str(answer.read().decode())


def _nvme(name: str, file: Path, serial: str, *, snapshot: bool = False) -> list[str]:
    drive = f"if=none,id={name},file={file},format=raw,snapshot={'on' if snapshot else 'off'}"
    return ["-drive", drive, "-device", f"nvme,serial={serial},drive={name}"]
