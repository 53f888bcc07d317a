"""The fabric step: EFA adapters and the NCCL plugin; and the environment variables of collectives.

The outputs of fi_info and ldconfig follow those in AWS's EFA guide and in reports by p4d and p5 users.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bootstrap.boot_steps.fabric import Fabric
from bootstrap.context import Context
from bootstrap.errors import CommandError, StepError
from bootstrap.gpus import collectives
from bootstrap.gpus.collectives import (
    ALWAYS,
    NOT_SET,
    WITH_EFA,
    collective_variables,
    efa_domains,
    library_path,
    plugin_variables,
)
from bootstrap.imds import InstanceIdentity
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.test_steps import machine

DOMAIN = """provider: efa
    fabric: {fabric}
    domain: rdmap{bus}s0-rdm
    version: 201.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
"""
# libfabric before 1.18 names a fabric after the address of its adapter.
OLD = DOMAIN.format(fabric="EFA-fe80::10d8:baff:fec9:6c1", bus=16).replace("s0", "s27").replace("201.0", "111.20")
CACHE = "1042 libs found in cache `/etc/ld.so.cache'\n\tlibnccl-net.so (libc6,x86-64) => /opt/x/libnccl-net.so\n"


def fi_info(count: int) -> str:
    """Return the output of a current libfabric, which lists each adapter as efa-direct and as efa."""
    return "".join(DOMAIN.format(fabric=name, bus=79 + bus) for bus in range(count) for name in ("efa-direct", "efa"))


def scene(root: Path, instance_type: str = "p5.48xlarge", adapters: int = 32) -> tuple[FakeSystem, Context]:
    system, context = machine(root, gpus=8, fabric="efa")
    context.identity = InstanceIdentity("i-1", instance_type, "us-east-1a", "10.0.0.9", "spot", None)
    system.programs |= {"fi_info": fi_info(adapters), "ldconfig": CACHE}
    return system, context


def message_of(context: Context) -> str:
    with pytest.raises(StepError) as caught:
        Fabric().verify(context)
    assert "node.fabric: tcp" in caught.value.remedy or "interface on each card" in caught.value.remedy
    event = json.loads(context.layout.events.read_text().splitlines()[-1])
    assert event["event"] == "instance_fault" and event["action"] == "terminate"
    return caught.value.message


def test_all_adapters_and_the_plugin_are_found(tmp_path: Path) -> None:
    _, context = scene(tmp_path)
    Fabric().verify(context)
    assert not context.layout.events.exists()


def test_a_missing_adapter_fails_the_step(tmp_path: Path) -> None:
    _, context = scene(tmp_path, adapters=31)
    message = message_of(context)
    assert "found 31 EFA adapters" in message and "expected 32 on p5.48xlarge" in message


def test_missing_efa_does_not_fall_back_to_tcp(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    system.programs["fi_info"] = CommandError(["fi_info"], 61, "fi_getinfo: -61", "exited with code 61")
    system.directories["/sys/class/infiniband"] = ["rdmap0s6"]
    assert "libfabric finds no EFA adapter (1 adapters in the kernel): exited with code 61" in message_of(context)


def test_tcp_needs_no_adapters(tmp_path: Path) -> None:
    system, context = machine(tmp_path, gpus=8, fabric="tcp")
    Fabric().verify(context)
    assert system.commands == []
    assert Fabric().intent(context) == ["TCP, as the node document specifies"]


def test_the_plugin_is_searched_in_the_loader_cache_the_library_path_and_the_known_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, context = scene(tmp_path)
    system.programs["ldconfig"] = CACHE.replace("libnccl-net.so", "libnccl.so")
    assert "libnccl-net.so (aws-ofi-nccl) not found by the loader" in message_of(context)
    system.variables["LD_LIBRARY_PATH"] = "/somewhere:/else"
    system.directories["/else"] = ["libnccl-net.so"]
    Fabric().verify(context)
    system.variables.clear()
    (tmp_path / "libnccl-net.so").touch()
    monkeypatch.setattr(collectives, "PLUGIN_DIRECTORIES", (str(tmp_path),))
    Fabric().verify(context)


def test_adapters_are_counted_in_both_output_formats() -> None:
    assert efa_domains(OLD) == ["rdmap16s27"]
    assert efa_domains(fi_info(2)) == ["rdmap79s0", "rdmap80s0"]
    assert efa_domains(OLD.replace("-rdm", "-dgrm")) == []


def test_an_unknown_type_must_have_an_adapter(tmp_path: Path) -> None:
    _, context = scene(tmp_path, "p99.metal", adapters=1)
    Fabric().verify(context)
    _, context = scene(tmp_path, "p99.metal", adapters=0)
    assert "found 0 EFA adapters (none), expected 1 on p99.metal" in message_of(context)


def test_variables_with_efa_and_with_tcp(tmp_path: Path) -> None:
    with_efa = collective_variables(fabric="efa", run_directory=tmp_path, interface="ens32")
    assert with_efa["NCCL_NET"] == "AWS Libfabric" and with_efa["FI_PROVIDER"] == "efa"
    assert with_efa["NCCL_SOCKET_IFNAME"] == "=ens32" and with_efa["GLOO_SOCKET_IFNAME"] == "ens32"
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
        assert with_efa[name].startswith(str(tmp_path))
    with_tcp = collective_variables(fabric="tcp", run_directory=tmp_path, interface=None)
    assert not {"NCCL_NET", "FI_PROVIDER", "NCCL_SOCKET_IFNAME"} & set(with_tcp)
    assert not set(NOT_SET) & set(with_efa)
    assert all(each.reason and each.source.startswith("https://") for each in (*ALWAYS, *WITH_EFA))


def test_the_plugin_directory_comes_after_those_of_the_image() -> None:
    assert library_path("/mine:/other", "/opt/plugin") == os.pathsep.join(("/mine", "/other", "/opt/plugin"))
    assert library_path("/opt/plugin:/mine", "/opt/plugin") == "/opt/plugin:/mine"
    assert library_path("", "/opt/plugin") == "/opt/plugin"


def test_a_plugin_under_its_container_name_is_named_to_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "PLUGIN_DIRECTORIES", (str(tmp_path / "none"), str(tmp_path)))
    assert plugin_variables({}) == {}
    (tmp_path / "libnccl-net-ofi.so").touch()
    assert plugin_variables({}) == {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": "ofi"}
    assert plugin_variables({"NCCL_NET_PLUGIN": "mine"})["NCCL_NET_PLUGIN"] == "mine"
    (tmp_path / "libnccl-net.so").touch()
    assert plugin_variables({"LD_LIBRARY_PATH": "/mine"}) == {"LD_LIBRARY_PATH": f"/mine:{tmp_path}"}
