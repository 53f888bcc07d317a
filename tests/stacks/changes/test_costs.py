"""The costs and vCPU quotas of a deployment, computed from its templates."""

from __future__ import annotations

import pytest

from stacks.capacity.catalogue import catalogue
from stacks.changes.effects.costs import Costs, costs, quotas
from stacks.changes.effects.fixed_costs import volume_usd_per_month
from stacks.changes.report import sections
from stacks.changes.review import review
from stacks.changes.templates.template_set import read_cloud_assembly
from tests.stacks.conftest import Synthesis

HOURS_PER_MONTH = 730


def of(name: str, synthesis: Synthesis) -> Costs:
    found = costs(read_cloud_assembly(synthesis.of(name).directory))
    assert found is not None
    return found


def test_hourly_cost_ranges_from_the_cheapest_to_the_most_expensive_type(synthesis: Synthesis) -> None:
    found = of("single-gpu", synthesis)
    prices = [catalogue().usd_per_hour("us-east-1", name, "spot") for name in ("g6.xlarge", "g5.2xlarge")]
    volume = volume_usd_per_month({"VolumeSize": 100, "VolumeType": "gp3"}) / HOURS_PER_MONTH
    assert found.training_per_hour is not None
    assert found.training_per_hour.low == pytest.approx((prices[0] or 0) + volume)
    assert found.training_per_hour.high >= (prices[1] or 0)
    assert found.per_run(10) == found.training_per_hour.times(10)
    assert found.per_month == found.training_per_hour.times(HOURS_PER_MONTH).plus(found.fixed_per_month)


def test_fixed_costs_are_grouped_by_resource_type(synthesis: Synthesis) -> None:
    lustre = of("lustre", synthesis)
    assert lustre.fixed["Lustre"] == pytest.approx(2400 * 0.21)
    assert of("minimal", synthesis).fixed["interface endpoints"] == pytest.approx(4 * 3 * 0.01 * HOURS_PER_MONTH)
    assert sum(lustre.fixed.values()) == pytest.approx(lustre.fixed_per_month)


def test_unknown_cost_has_a_reason(synthesis: Synthesis) -> None:
    block = of("capacity-block", synthesis)
    assert block.training_per_hour is None
    assert block.unknown == "a capacity block is paid for in advance"


@pytest.mark.parametrize(
    ("volume", "usd"),
    [
        ({"Size": 100, "VolumeType": "gp3"}, 8.0),
        ({"Size": 100, "VolumeType": "gp3", "Iops": 4000, "Throughput": 225}, 8.0 + 5.0 + 4.0),
        ({"Size": 100, "VolumeType": "io2", "Iops": 33_000}, 12.5 + 32_000 * 0.065 + 1_000 * 0.0455),
    ],
)
def test_volume_cost(volume: dict[str, object], usd: float) -> None:
    assert volume_usd_per_month(volume) == pytest.approx(usd)


def test_nodes_of_pcs_have_the_prices_of_ec2(synthesis: Synthesis) -> None:
    found = of("clusters/pcs", synthesis)
    price = catalogue().usd_per_hour("us-east-1", "p5.48xlarge", "spot")
    volume = volume_usd_per_month({"VolumeSize": 100, "VolumeType": "gp3"}) / HOURS_PER_MONTH
    assert price is not None and found.training_per_hour is not None
    assert found.training_per_hour.low == found.training_per_hour.high == pytest.approx(2 * (price + volume))
    assert found.fleet == "2 x p5.48xlarge, spot"
    assert found.unknown is not None and "PCS's fees for the controller" in found.unknown
    # Two p5.48xlarge have 384 vCPUs: https://aws.amazon.com/ec2/instance-types/p5/ (2026-11)
    quota = quotas(read_cloud_assembly(synthesis.of("clusters/pcs").directory))
    assert [(one.market, one.vcpus) for one in quota] == [("spot", 384)]


def test_the_costs_of_other_clusters_are_not_zero(synthesis: Synthesis) -> None:
    eks, hyperpod = of("clusters/eks", synthesis), of("clusters/hyperpod", synthesis)
    assert eks.fixed["EKS cluster"] == pytest.approx(73.0), "0.10 USD per hour"
    assert eks.training_per_hour is None and eks.per_month is None
    assert eks.unknown is not None and "Auto Mode" in eks.unknown
    assert hyperpod.training_per_hour is None
    assert hyperpod.fleet == "2 x ml.p5.48xlarge, 1 x ml.m5.xlarge, 1 x ml.m5.xlarge"


def test_quotas_are_by_market_and_by_the_largest_type(synthesis: Synthesis) -> None:
    found = quotas(read_cloud_assembly(synthesis.of("spot-fleet").directory))
    assert [(one.code, one.market, one.vcpus) for one in found] == [
        ("L-DB2E81BA", "on demand", 96),
        ("L-3819A6DF", "spot", 96),
    ]


def test_report_has_both_amounts_and_the_date_of_the_prices(synthesis: Synthesis) -> None:
    before = synthesis.of("minimal").directory
    after = synthesis.variant("costs", {"capacity.nodes": 2, "network.nat": True}, base="minimal").directory
    found = review(read_cloud_assembly(before), read_cloud_assembly(after), hours=(10.0, 10.0))
    lines = {one.title: [line.text for line in one.lines] for one in sections(found)}
    assert "fleet: 1 x g6.xlarge, spot -> 2 x g6.xlarge, spot" in lines["Costs"]
    assert "NAT gateway: 0.00 -> 32.85 USD per month" in lines["Costs"]
    assert any(line.startswith("planned run: 3.73 USD -> 7.46 USD") for line in lines["Costs"])
    assert any("spot from 2025-" in line for line in lines["Costs"])
    assert lines["Quotas"] == ["L-3819A6DF (spot): 4 -> 8 vCPUs; `check --aws` compares it with the quota"]
