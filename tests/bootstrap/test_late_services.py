"""Components that become ready only after user data has started: driver, clock, adapters, metadata, volumes, mounts,
S3."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bootstrap.aws import Aws
from bootstrap.boot_steps.fabric import Fabric
from bootstrap.boot_steps.machine_settings import MachineSettings
from bootstrap.boot_steps.python_env import PythonEnv
from bootstrap.boot_steps.shared_storage import SharedStorage
from bootstrap.context import Context, identify
from bootstrap.documents import Bundle
from bootstrap.errors import CommandError, MetadataError, StepError
from bootstrap.fetch.archives import fetch_archive
from bootstrap.imds import InstanceMetadata
from bootstrap.system import System
from tests.bootstrap import test_volumes
from tests.bootstrap.account import REGION, Account
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.metadata_server import MetadataServer
from tests.bootstrap.nvidia_smi import report
from tests.bootstrap.test_fabric import fi_info
from tests.bootstrap.test_fabric import scene as fabric_scene
from tests.bootstrap.test_gpu_links import switched
from tests.bootstrap.test_instance_checks import check, scene
from tests.bootstrap.test_steps import machine, real


def waits(context: Context) -> list[str]:
    """Return the messages of the waits that were reported."""
    events = map(json.loads, context.layout.events.read_text().splitlines()) if context.layout.events.exists() else []
    return [event["message"] for event in events if event["event"] == "boot_waiting"]


def late(system: FakeSystem, seconds: float, failure: CommandError, output: str) -> Callable[[Sequence[str]], str]:
    """Return a program that fails until the clock has advanced by `seconds`."""

    def program(command: Sequence[str]) -> str:
        if system.slept < seconds:
            raise failure
        return output

    return program


# The outputs and exit codes of nvidia-smi: https://docs.nvidia.com/deploy/nvidia-smi/index.html (2026-11).
NOT_LOADED = CommandError(
    ["nvidia-smi"],
    9,
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.",
    "exited with code 9",
)


def test_a_driver_that_loads_late_is_waited_for(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    system.programs["nvidia-smi"] = late(system, 25, NOT_LOADED, report(2))
    assert check(context) == []
    assert 25 <= system.slept < 30
    assert waits(context) == ["the GPU driver is not loaded yet: exited with code 9"]


def test_gpus_are_initialized_once(tmp_path: Path) -> None:
    """Without persistence mode, each query initializes the GPUs, which takes seconds per GPU."""
    system, context = scene(tmp_path)
    assert check(context) == []
    assert [command[1] for command in system.commands if command[0] == "nvidia-smi"][0] == "--persistence-mode=1"
    system, context = scene(tmp_path)
    system.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1338"
    context.metadata = InstanceMetadata(system)
    check(context)
    assert not any("persistence" in word for command in system.commands for word in command)


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_the_import_check_waits_until_torch_detects_the_gpus(tmp_path: Path, cuda: str | None) -> None:
    """The step does not wait for `instance_checks`. Without CUDA in torch, waiting does not help."""
    system, context = machine(tmp_path, gpus=8)
    system.programs["python3"] = lambda command: json.dumps(
        {"missing": {}, "versions": {}, "gpus": 8 if system.slept >= 25 else 0, "cuda": cuda}
    )
    if cuda is None:
        with pytest.raises(StepError, match="built without CUDA"):
            PythonEnv().verify(context)
        assert system.slept == 0
    else:
        PythonEnv().verify(context)
        assert 25 <= system.slept < 30 and waits(context) == ["torch found 0 GPUs, expected 8"]


def test_a_driver_that_never_loads_ends_the_boot(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    system.programs["nvidia-smi"] = NOT_LOADED
    assert "found no GPU, expected 2: nvidia-smi exited with code 9" in check(context)[-1][1]
    assert 150 <= system.slept < 160


@pytest.mark.parametrize("exit_code", [None, 15])
def test_a_missing_driver_and_a_lost_gpu_are_reported_at_once(tmp_path: Path, exit_code: int | None) -> None:
    system, context = scene(tmp_path)
    system.programs["nvidia-smi"] = CommandError(["nvidia-smi"], exit_code, "", "failed")
    assert "found no GPU, expected 2" in check(context)[-1][1]
    assert system.slept == 0


def test_persistence_mode_is_turned_off_for_a_reset(tmp_path: Path) -> None:
    """The refusal: https://github.com/NVIDIA/NVSentinel/issues/1690 (2026-11)."""
    system, context = scene(tmp_path)
    state = {"persistent": True, "healthy": False}

    def driver(command: Sequence[str]) -> str:
        if command[1].startswith("--persistence-mode="):
            state["persistent"] = command[1].endswith("=1")
        if command[1] == "--gpu-reset":
            if state["persistent"]:
                raise CommandError(command, 255, "In use by another client", "exited with code 255")
            state["healthy"] = True
        return report(2, [] if state["healthy"] else [{"<pending_retirement>N/A": "<pending_retirement>Yes"}])

    system.programs["nvidia-smi"] = driver
    assert check(context) == []
    MachineSettings().act(context)
    assert state == {"persistent": True, "healthy": True}


def test_a_clock_that_chronyd_corrects_during_the_boot_is_waited_for(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=0)

    def chronyc(command: Sequence[str]) -> str:
        offset = "400.000000000" if system.slept < 10 else "0.000001000"
        return f"System time     : {offset} seconds slow of NTP time\n"

    system.programs["chronyc"] = chronyc
    assert check(context) == []
    assert 10 <= system.slept < 20


def test_a_fabric_manager_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    system, context, driver = switched(tmp_path)
    driver.runs = False

    def systemctl(command: Sequence[str]) -> str:
        if command[1] == "start" and system.slept < 10:
            raise CommandError(command, 1, "Job for nvidia-fabricmanager.service failed", "exited with code 1")
        return driver.systemctl(command)

    system.programs["systemctl"] = systemctl
    assert check(context) == []
    assert 10 <= system.slept < 20


def test_upgrades_of_packages_are_turned_off_on_ubuntu(tmp_path: Path) -> None:
    system, context = machine(tmp_path, gpus=0, fabric="tcp")
    MachineSettings().act(context)
    assert system.commands == []
    system.programs |= {"apt-get": "", "systemctl": ""}
    MachineSettings().act(context)
    assert system.commands == [
        ["systemctl", "mask", "--runtime", "--now", "apt-daily.timer", "apt-daily.service",
         "apt-daily-upgrade.timer", "apt-daily-upgrade.service"]
    ]  # fmt: skip


def test_efa_adapters_that_appear_late_are_waited_for(tmp_path: Path) -> None:
    system, context = fabric_scene(tmp_path)
    none = CommandError(["fi_info"], 61, "fi_getinfo: -61 (No data available)", "exited with code 61")

    def program(command: Sequence[str]) -> str:
        if system.slept < 4:
            raise none
        return fi_info(min(32, int(system.slept)))

    system.programs["fi_info"] = program
    Fabric().verify(context)
    assert 32 <= system.slept < 36
    assert len(waits(context)) == 1


def test_a_missing_libfabric_is_reported_at_once(tmp_path: Path) -> None:
    system, context = fabric_scene(tmp_path)
    del system.programs["fi_info"]
    with pytest.raises(StepError, match="libfabric finds no EFA adapter"):
        Fabric().verify(context)
    assert system.slept == 0


def test_a_metadata_value_that_is_missing_at_first_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new instance's metadata may return 404 at first: https://github.com/awslabs/amazon-eks-ami/pull/1970."""
    server = MetadataServer("i-1")
    zone = server.paths.pop("placement/availability-zone")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint)
    _, context = machine(tmp_path)
    system = System()
    context.metadata = InstanceMetadata(system)
    sleeps = 0

    def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        context.system.now += seconds  # type: ignore[attr-defined]
        if sleeps == 3:
            server.paths["placement/availability-zone"] = zone

    monkeypatch.setattr(context.system, "sleep", sleep)
    identify(context)
    assert context.identity is not None and context.identity.availability_zone == zone
    assert sleeps == 3
    del server.paths["placement/availability-zone"]
    with pytest.raises(MetadataError, match="placement/availability-zone: missing.*after waiting 20 seconds"):
        identify(context)
    server.close()


NOT_RUNNING = "Instance 'i-0d740b81c23f11a4c' is not 'running'."
"""Source (2026-11): https://github.com/ansible-collections/amazon.aws/pull/497."""


def test_a_volume_is_attached_when_the_instance_is_running(tmp_path: Path) -> None:
    system, service, context = test_volumes.scene(tmp_path, test_volumes.KEPT)
    attach = service.attach_volume

    def pending(**request: Any) -> None:
        if system.slept < 10:
            raise ClientError({"Error": {"Code": "IncorrectState", "Message": NOT_RUNNING}}, "AttachVolume")
        attach(**request)

    service.attach_volume = pending  # type: ignore[method-assign]
    test_volumes.run(context)
    assert system.ran("mount")[-1][-1] == "/mnt/checkpoints"
    assert NOT_RUNNING in waits(context)[0]


@pytest.mark.parametrize(("volume", "is_cache"), [(test_volumes.KEPT, True), (test_volumes.SHARED, False)])
def test_an_instance_that_never_runs_does_without_a_checkpoint_volume_only(
    tmp_path: Path, volume: dict[str, Any], is_cache: bool
) -> None:
    system, service, context = test_volumes.scene(tmp_path, volume)
    service.refusal = "IncorrectState"
    if is_cache:
        test_volumes.run(context)
    else:
        assert "cannot attach" in test_volumes.failure(context)
    assert not system.ran("mount") and 120 <= system.slept < 130


def test_a_volume_that_ec2_does_not_list_at_first_is_waited_for(tmp_path: Path) -> None:
    """EC2 is eventually consistent: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html."""
    system, service, context = test_volumes.scene(tmp_path, test_volumes.MADE, snapshot="snap-1", attached=True)
    system.kind = "ext4"
    describe = service.describe_volumes
    service.describe_volumes = (  # type: ignore[method-assign]
        lambda **request: describe(**request) if system.slept >= 6 else {"Volumes": []}
    )
    test_volumes.run(context)
    assert system.ran("mount")[-1][-1] == "/mnt/dataset"
    service.describe_volumes = lambda **request: {"Volumes": []}  # type: ignore[method-assign]
    assert "this instance has no volume /dev/sdf (after waiting 120 seconds)" in test_volumes.failure(context)


# Outputs of mount.lustre: https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-troubleshooting.html (2026-11),
# https://github.com/GoogleCloudPlatform/lustre-csi-driver/issues/104.
UNRESOLVED = "mount.lustre: Can't parse NID 'fs-1.example@tcp:/abc'"
SILENT = "mount.lustre: mount fs-1.example@tcp:/abc at /mnt/lustre failed: Input/output error\nIs the MGS running?"
WRONG = "mount.lustre: mount fs-1.example@tcp:/abd at /mnt/lustre failed: No such file or directory"


@pytest.mark.parametrize(("output", "seconds"), [(UNRESOLVED, 20), (SILENT, 20), (WRONG, None)])
def test_a_lustre_file_system_that_does_not_respond_at_first_is_waited_for(
    tmp_path: Path, output: str, seconds: float | None
) -> None:
    system, context = test_volumes.lustre_scene(tmp_path)
    mount = system._mount

    def program(command: Sequence[str]) -> str:
        if seconds is None or system.slept < seconds:
            raise CommandError(command, 5, output, "exited with code 5")
        return mount(command)

    system.programs["mount"] = program
    if seconds is None:
        with pytest.raises(StepError, match="cannot mount"):
            SharedStorage().act(context)
        assert system.slept == 0
        return
    SharedStorage().act(context)
    SharedStorage().verify(context)
    assert 20 <= system.slept < 30


class Responses:
    """A server that returns a status and a body to each request in turn, and announces a length."""

    def __init__(self, *answers: tuple[int, bytes, int]) -> None:
        self.answers = list(answers)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body, length = outer.answers.pop(0)
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Replace botocore's pauses between attempts."""
    made: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", made.append)
    yield made


SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
"""Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html (503)."""


@pytest.mark.parametrize(("patience", "attempts"), [("high", 8), ("normal", 3), ("low", 2)])
def test_requests_of_the_boot_outlast_a_busy_bucket(
    aws_environment: str, monkeypatch: pytest.MonkeyPatch, pauses: list[float], patience: Any, attempts: int
) -> None:
    refusal = (503, SLOW_DOWN, len(SLOW_DOWN))
    server = Responses(*[refusal] * (attempts - 1), (200, b"found", 5), *[refusal] * attempts)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    client = Aws(REGION).client("s3", patience=patience)
    assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"found"
    assert len(pauses) == attempts - 1
    with pytest.raises(ClientError, match="SlowDown"):
        client.get_object(Bucket="b", Key="k")
    assert server.answers == []
    server.close()


def test_a_bundle_whose_response_ends_early_is_downloaded_again(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    code = account.put_code({"training/__main__.py": "print(1)"})
    body = account.s3.get_object(Bucket=code["bucket"], Key=code["key"])["Body"].read()
    server = Responses((200, body[:20], len(body)), (200, body, len(body)))
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    context = real(account, tmp_path)
    monkeypatch.setattr(context.system, "sleep", lambda seconds: None)
    bundle = Bundle(bucket=code["bucket"], key=code["key"], sha256=code["sha256"])
    fetch_archive(context, bundle, tmp_path / "code", named_by="the test")
    assert (tmp_path / "code" / "training" / "__main__.py").read_text() == "print(1)"
    assert len(waits(context)) == 1 and server.answers == []
    server.close()
