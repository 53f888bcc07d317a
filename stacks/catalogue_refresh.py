"""Rebuilds the catalogue from what AWS answers: facts, offerings, and prices of four ways to pay.

Sources (2026-11): EC2 DescribeInstanceTypes, DescribeInstanceTypeOfferings, DescribeSpotPriceHistory
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/), Price List GetProducts
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html), Savings Plans
DescribeSavingsPlansOfferingRates
(https://docs.aws.amazon.com/savingsplans/latest/APIReference/API_DescribeSavingsPlansOfferingRates.html).
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from stacks.instance_types import Catalogue, InstanceType, PriceSource, Purchase, RegionPrices, read_catalogue

PRICE_LIST_REGION = "us-east-1"
"""The Price List and Savings Plans answer for all regions from here."""
TYPES_A_CALL = 100
ClientOf = Callable[[str, str], Any]


class RefreshError(RuntimeError):
    """AWS did not answer, or not with what a catalogue needs."""


def refresh(
    path: Path,
    *,
    regions: Sequence[str],
    added_types: Sequence[str] = (),
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    client_of: ClientOf | None = None,
    today: date | None = None,
) -> list[str]:
    """Ask AWS for the catalogued types of some regions, and rewrite the catalogue; return what changes, in lines.

    Args:
        path: The catalogue's file.
        regions: Regions to ask; what is known of others stays.
        added_types: Types to take up besides those that are catalogued.
        dry_run: Whether the file stays as it is.
        progress: Told what is asked.
        client_of: Makes the client of a service and region; the default uses the credentials of the environment.
        today: Date of the figures; the default is that of the clock, UTC.

    Raises:
        RefreshError: A call failed; the file stays as it was.
    """
    before = read_catalogue(path)
    names = list(dict.fromkeys([*before.types, *added_types]))
    day = today or datetime.now(timezone.utc).date()
    clients = client_of or (lambda service, region: boto3.client(service, region_name=region))
    types, prices = dict(before.types), dict(before.regions)
    try:
        for region in regions:
            progress(f"{region}: types, offerings, spot prices")
            ec2 = clients("ec2", region)
            offered = _offered(ec2, names)
            types |= {one.name: one for one in _facts(ec2, offered)}
            progress(f"{region}: prices of {len(offered)} types")
            prices[region] = _prices(clients, ec2, region, offered, day)
    except (BotoCoreError, ClientError) as error:
        raise RefreshError(f"AWS did not answer as a refresh needs: {error}; nothing is written") from error
    if missing := [name for name in added_types if name not in types]:
        raise RefreshError(f"{', '.join(missing)}: not offered in {', '.join(regions)}; nothing is written")
    after = Catalogue(
        currency=before.currency,
        facts=PriceSource(day, "EC2 DescribeInstanceTypes and DescribeInstanceTypeOfferings"),
        region_names=before.region_names,
        types={name: types[name] for name in names if name in types},
        regions=prices,
    )
    changes = differences(before, after)
    if not dry_run:
        write_catalogue(path, after)
    return changes


def _pages(client: Any, operation: str, key: str, **asked: Any) -> Iterable[Any]:
    for page in client.get_paginator(operation).paginate(**asked):
        yield from page[key]


def _offered(ec2: Any, names: Sequence[str]) -> list[str]:
    filters = [{"Name": "instance-type", "Values": list(names)}]
    found = _pages(
        ec2, "describe_instance_type_offerings", "InstanceTypeOfferings", LocationType="region", Filters=filters
    )
    there = {one["InstanceType"] for one in found}
    return [name for name in names if name in there]


def _facts(ec2: Any, names: Sequence[str]) -> Iterable[InstanceType]:
    for start in range(0, len(names), TYPES_A_CALL):
        answer = ec2.describe_instance_types(InstanceTypes=list(names[start : start + TYPES_A_CALL]))
        yield from map(instance_type, answer["InstanceTypes"])


def instance_type(told: Mapping[str, Any]) -> InstanceType:
    """Return the catalogue's facts of one item of a DescribeInstanceTypes answer."""
    gpu, disks, network = told.get("GpuInfo"), told.get("InstanceStorageInfo", {}), told["NetworkInfo"]
    return InstanceType(
        name=told["InstanceType"],
        vcpus=told["VCpuInfo"]["DefaultVCpus"],
        memory_gib=told["MemoryInfo"]["SizeInMiB"] // 1024,
        gpus=sum(one["Count"] for one in gpu["Gpus"]) if gpu else 0,
        gpu=gpu["Gpus"][0]["Name"] if gpu else None,
        gpu_memory_gib=round(gpu["TotalGpuMemoryInMiB"] / 1024, 1) if gpu else 0,
        nvme_gb=disks.get("TotalSizeInGB", 0),
        nvme_disks=sum(one["Count"] for one in disks.get("Disks", [])),
        network_cards=network["MaximumNetworkCards"],
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        ebs_mbps=told["EbsInfo"].get("EbsOptimizedInfo", {}).get("BaselineBandwidthInMbps", 0),
        ebs_optimized=told["EbsInfo"]["EbsOptimizedSupport"],
        nitro=told.get("Hypervisor") == "nitro" or told["BareMetal"],
        cluster_placement="cluster" in told["PlacementGroupInfo"]["SupportedStrategies"],
    )


def _prices(clients: ClientOf, ec2: Any, region: str, names: Sequence[str], day: date) -> RegionPrices:
    columns: dict[Purchase, tuple[str, Mapping[str, float]]] = {
        "spot": ("EC2 DescribeSpotPriceHistory, median of the zones", _spot(ec2, names)),
    }
    price_list = clients("pricing", PRICE_LIST_REGION)
    listed = {name: _listed(price_list, region, name) for name in names}
    columns["on_demand"] = "Price List", {name: on for name, (on, _) in listed.items() if on is not None}
    columns["reserved"] = (
        "Price List, Standard, 1 year, no upfront",
        {name: reserved for name, (_, reserved) in listed.items() if reserved is not None},
    )
    rates = _savings_plan(clients("savingsplans", PRICE_LIST_REGION), region, names)
    columns["savings_plan"] = "Savings Plans offering rates: EC2 Instance, 1 year, no upfront", rates
    order: tuple[Purchase, ...] = ("on_demand", "spot", "savings_plan", "reserved")
    return RegionPrices(
        sources={way: PriceSource(day, columns[way][0]) for way in order},
        types={name: {way: columns[way][1][name] for way in order if name in columns[way][1]} for name in names},
    )


def _spot(ec2: Any, names: Sequence[str]) -> dict[str, float]:
    if not names:
        return {}
    found = _pages(
        ec2,
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=list(names),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(timezone.utc),  # the present price of each zone
    )
    by_type: dict[str, list[float]] = {}
    for one in found:
        by_type.setdefault(one["InstanceType"], []).append(float(one["SpotPrice"]))
    return {name: round(statistics.median(prices), 4) for name, prices in by_type.items()}


def _listed(price_list: Any, region: str, name: str) -> tuple[float | None, float | None]:
    """Return the on-demand price and that of a one-year Standard reservation without upfront payment."""
    wanted = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    on_demand: list[float] = []
    reserved: list[float] = []
    for text in _pages(price_list, "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters):
        terms = json.loads(text)["terms"]
        on_demand += [_hourly(term) for term in terms.get("OnDemand", {}).values()]
        about = {"LeaseContractLength": "1yr", "OfferingClass": "standard", "PurchaseOption": "No Upfront"}
        reserved += [
            _hourly(term)
            for term in terms.get("Reserved", {}).values()
            if about.items() <= term["termAttributes"].items()
        ]
    return (min(on_demand, default=None), min(reserved, default=None))


def _hourly(term: Mapping[str, Any]) -> float:
    (price,) = (one for one in term["priceDimensions"].values() if one["unit"] == "Hrs")
    return float(price["pricePerUnit"]["USD"])


def _savings_plan(savings_plans: Any, region: str, names: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    asked: dict[str, Any] = {
        "savingsPlanPaymentOptions": ["No Upfront"],
        "savingsPlanTypes": ["EC2Instance"],
        "products": ["EC2"],
        "filters": [
            {"name": "region", "values": [region]},
            {"name": "productDescription", "values": ["Linux/UNIX"]},
            {"name": "tenancy", "values": ["shared"]},
            {"name": "instanceFamily", "values": sorted({name.split(".", 1)[0] for name in names})},
        ],
    }
    while names:
        answer = savings_plans.describe_savings_plans_offering_rates(**asked)
        for rate in answer["searchResults"]:
            about = {one["name"]: one["value"] for one in rate["properties"]}
            one_year = rate["savingsPlanOffering"]["durationSeconds"] == 365 * 24 * 3600
            if one_year and about.get("instanceType") in names and rate["unit"] == "Hrs":
                found[about["instanceType"]] = float(rate["rate"])
        if not answer.get("nextToken"):
            break
        asked["nextToken"] = answer["nextToken"]
    return found


def differences(before: Catalogue, after: Catalogue) -> list[str]:
    """Return what differs between two catalogues but the dates, a line each."""
    lines = [f"types: {name}: new" for name in after.types if name not in before.types]
    for name, facts in before.types.items():
        now = after.types[name].facts
        lines += [f"types: {name}: {key}: {old} -> {now[key]}" for key, old in facts.facts.items() if now[key] != old]
    for region, prices in after.regions.items():
        old_prices = before.regions.get(region)
        for name in dict.fromkeys([*(old_prices.types if old_prices else ()), *prices.types]):
            if name not in prices.types:
                lines.append(f"{region}: {name}: no longer offered")
                continue
            for way in prices.sources:
                old = old_prices.usd_per_hour(name, way) if old_prices else None
                new = prices.usd_per_hour(name, way)
                if old != new:
                    lines.append(f"{region}: {name}: {way}: {_figure(old)} -> {_figure(new)}")
    return lines


def _figure(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:g} USD/h"


def write_catalogue(path: Path, known: Catalogue) -> None:
    """Write a catalogue at once or not at all, a line for each type, so that a diff can be read."""
    loaded = json.loads(path.read_text(encoding="utf-8"))
    regions = ",\n".join(f"  {json.dumps(name)}: {_region(prices)}" for name, prices in known.regions.items())
    parts = [
        f' "currency": {json.dumps(known.currency)}',
        f' "facts": {_line(_dated(known.facts))}',
        f' "regions": {_line(loaded["regions"])}',
        f' "types": {{\n{_table({name: one.facts for name, one in known.types.items()}, 2)}\n }}',
        f' "prices": {{\n{regions}\n }}',
    ]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    written = Path(file.name)
    written.chmod(0o644)
    written.replace(path)


def _dated(source: PriceSource) -> dict[str, str]:
    return {"date": source.date.isoformat(), "source": source.source}


def _region(prices: RegionPrices) -> str:
    sources = _table({way: _dated(one) for way, one in prices.sources.items()}, 4)
    return f'{{\n   "sources": {{\n{sources}\n   }},\n   "types": {{\n{_table(prices.types, 4)}\n   }}\n  }}'


def _table(rows: Mapping[Any, Mapping[Any, Any]], indent: int) -> str:
    return ",\n".join(f"{' ' * indent}{json.dumps(name)}: {_line(row)}" for name, row in rows.items())


def _line(row: Mapping[Any, Any]) -> str:
    return f"{{ {json.dumps(row)[1:-1]} }}" if row else "{}"
