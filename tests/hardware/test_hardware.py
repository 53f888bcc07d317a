"""The table of hardware facts: complete, and consistent with publications that it does not derive from."""

from __future__ import annotations

import pytest

from hardware import InstanceType, gpu_model, hardware, instance_type

TYPES = list(hardware().types.values())


@pytest.mark.parametrize("one", TYPES, ids=lambda one: one.name)
def test_each_type_has_a_family_and_a_gpu_model(one: InstanceType) -> None:
    assert one.family is hardware().families[one.name.split(".")[0]]
    assert one.quota_code(spot=False)
    if one.gpu is not None:
        assert hardware().gpus[one.gpu].peak_teraflops["fp16"] > hardware().gpus[one.gpu].peak_teraflops["fp32"]


@pytest.mark.parametrize(
    ("name", "nvlinks", "gigabytes_per_second_per_gpu"),
    [("p4d.24xlarge", 12, 600), ("p5.48xlarge", 18, 900), ("p5en.48xlarge", 18, 900), ("p5.4xlarge", 0, 0)],
)
def test_nvlinks_match_the_published_bandwidth(name: str, nvlinks: int, gigabytes_per_second_per_gpu: int) -> None:
    """Each link has 50 GB/s, both directions together: https://www.nvidia.com/en-us/data-center/nvlink/ (2026-11)."""
    found = instance_type(name)
    assert found is not None
    assert found.nvlinks == nvlinks
    assert found.nvlinks * 50 == gigabytes_per_second_per_gpu


def test_types_with_nvlinks_have_a_network_bandwidth() -> None:
    assert all(one.network_gbps for one in TYPES if one.nvlinks)


@pytest.mark.parametrize(
    ("device_name", "model"),
    [
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        # Source (2026-11): https://github.com/NVIDIA/open-gpu-kernel-modules lists the names of PCI devices.
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO Server 6000"),
        ("Tesla T4", "T4"),
        ("a new device", None),
    ],
)
def test_longest_matching_name_identifies_a_gpu(device_name: str, model: str | None) -> None:
    found = gpu_model(device_name)
    assert (None if found is None else found.name) == model


def test_unknown_type() -> None:
    assert instance_type("p99.metal") is None
