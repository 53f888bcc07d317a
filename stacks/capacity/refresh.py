"""Rebuilds the catalogue from AWS: facts, offerings, and prices for four purchase options.

Sources (2026-11): EC2 DescribeInstanceTypes, DescribeInstanceTypeOfferings, DescribeSpotPriceHistory
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/), Price List GetProducts
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html), Savings Plans
DescribeSavingsPlansOfferingRates
(https://docs.aws.amazon.com/savingsplans/latest/APIReference/API_DescribeSavingsPlansOfferingRates.html).

No API returns `network_gbps` or the facts about families and GPU models, so a refresh does not change them. Add the
facts about a new family to `hardware/hardware.json` by hand.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from hardware import HARDWARE_PATH, Family, InstanceType, Source
from stacks.capacity.catalogue import PRICES_PATH, Catalogue, Dated, Purchase, RegionPrices, read_catalogue
from stacks.capacity.spot_history import (
    ADVISOR_URL,
    HISTORY_DAYS,
    AdvisorError,
    Interruptions,
    interruptions,
    price_ranges,
    read_advisor,
)

PRICE_LIST_REGION = "us-east-1"
"""The region whose Price List and Savings Plans endpoints serve all regions."""
TYPES_PER_CALL = 100
ClientOf = Callable[[str, str], Any]


class RefreshError(RuntimeError):
    """AWS did not respond, or its response did not include a requested type."""


@dataclass(frozen=True)
class Files:
    """The catalogue's files: facts and prices."""

    hardware: Path = HARDWARE_PATH
    prices: Path = PRICES_PATH

    def read(self) -> Catalogue:
        """Return the catalogue."""
        return read_catalogue(self.hardware, self.prices)


def refresh(
    files: Files,
    *,
    regions: Sequence[str],
    added_types: Sequence[str] = (),
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    client_of: ClientOf | None = None,
    today: date | None = None,
    advisor_url: str = ADVISOR_URL,
) -> list[str]:
    """Query AWS for the catalogued types in the given regions, rewrite the catalogue, and return one line per change.

    Args:
        files: The catalogue's files.
        regions: Regions to query. The figures for other regions stay unchanged.
        added_types: Types to add to the catalogue.
        dry_run: True to leave the files unchanged.
        progress: Function that receives a line of text before each group of calls.
        client_of: Function that creates the client for a service and region. The default uses the environment's
            credentials.
        today: Date of the figures. The default is the current date in UTC.
        advisor_url: URL of the Spot Instance Advisor's document. If it cannot be read, its figures stay unchanged.

    Raises:
        RefreshError: A call failed. The files are unchanged.
    """
    before = files.read()
    names = list(dict.fromkeys([*before.types, *added_types]))
    day = today or datetime.now(UTC).date()
    clients = client_of or (lambda service, region: boto3.client(service, region_name=region))
    types, prices = dict(before.types), dict(before.regions)
    try:
        for region in regions:
            progress(f"{region}: types, offerings, spot prices")
            ec2 = clients("ec2", region)
            offered = _offered(ec2, names)
            types |= {one.name: _with_kept_facts(one, before) for one in _facts(ec2, offered)}
            progress(f"{region}: prices for {len(offered)} types, and {HISTORY_DAYS} days of spot prices")
            prices[region] = replace(
                _prices(clients, ec2, region, offered, day),
                spot_prices=Dated(
                    Source(day, f"EC2 DescribeSpotPriceHistory, {HISTORY_DAYS} days, all zones"),
                    price_ranges(ec2, offered, datetime.now(UTC)),
                ),
                interruptions=_interruptions(before.regions.get(region), region, offered, day, advisor_url, progress),
            )
    except (BotoCoreError, ClientError) as error:
        raise RefreshError(f"AWS call failed: {error}; nothing was written") from error
    if missing := [name for name in added_types if name not in types]:
        raise RefreshError(f"{', '.join(missing)}: not offered in {', '.join(regions)}; nothing was written")
    facts = Source(day, "EC2 DescribeInstanceTypes and DescribeInstanceTypeOfferings")
    types = {name: types[name] for name in names if name in types}
    # The bundles contain the facts file. Its date changes only with the facts, so refreshing prices does not replace
    # nodes.
    unchanged = types == before.types
    known = before.hardware if unchanged else replace(before.hardware, facts=facts, types=types)
    after = replace(before, hardware=known, regions=prices)
    changes = differences(before, after)
    if not dry_run:
        write_catalogue(files, after)
    return changes


def _interruptions(
    before: RegionPrices | None,
    region: str,
    offered: Sequence[str],
    day: date,
    url: str,
    progress: Callable[[str], None],
) -> Dated[Interruptions]:
    """Return the interruption frequencies, or the earlier ones if the Spot Instance Advisor's file is not available."""
    try:
        return Dated(Source(day, f"Spot Instance Advisor, {url}"), interruptions(read_advisor(url), region, offered))
    except AdvisorError as error:
        progress(f"{region}: the interruption frequencies stay unchanged: {error}")
        return Dated(None, {}) if before is None else before.interruptions


def _with_kept_facts(found: InstanceType, before: Catalogue) -> InstanceType:
    """Return a type's facts, supplemented with the facts that no API returns."""
    known = before.types.get(found.name)
    family = before.hardware.families.get(found.family.name, found.family)
    return replace(found, family=family, network_gbps=None if known is None else known.network_gbps)


def _pages(client: Any, operation: str, key: str, **asked: Any) -> Iterable[Any]:
    for page in client.get_paginator(operation).paginate(**asked):
        yield from page[key]


def _offered(ec2: Any, names: Sequence[str]) -> list[str]:
    filters = [{"Name": "instance-type", "Values": list(names)}]
    found = _pages(
        ec2, "describe_instance_type_offerings", "InstanceTypeOfferings", LocationType="region", Filters=filters
    )
    offered = {one["InstanceType"] for one in found}
    return [name for name in names if name in offered]


def _facts(ec2: Any, names: Sequence[str]) -> Iterable[InstanceType]:
    for start in range(0, len(names), TYPES_PER_CALL):
        answer = ec2.describe_instance_types(InstanceTypes=list(names[start : start + TYPES_PER_CALL]))
        yield from map(instance_type, answer["InstanceTypes"])


def instance_type(item: Mapping[str, Any]) -> InstanceType:
    """Return the facts about a type from one item in a DescribeInstanceTypes response."""
    gpu, disks, network = item.get("GpuInfo"), item.get("InstanceStorageInfo", {}), item["NetworkInfo"]
    return InstanceType(
        name=item["InstanceType"],
        family=Family(item["InstanceType"].split(".", 1)[0]),
        vcpus=item["VCpuInfo"]["DefaultVCpus"],
        memory_gib=item["MemoryInfo"]["SizeInMiB"] // 1024,
        gpus=sum(one["Count"] for one in gpu["Gpus"]) if gpu else 0,
        gpu=gpu["Gpus"][0]["Name"] if gpu else None,
        gpu_memory_gib=round(gpu["TotalGpuMemoryInMiB"] / 1024, 1) if gpu else 0,
        nvme_gb=disks.get("TotalSizeInGB", 0),
        nvme_disks=sum(one["Count"] for one in disks.get("Disks", [])),
        network_cards=network["MaximumNetworkCards"],
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        ebs_mbps=item["EbsInfo"].get("EbsOptimizedInfo", {}).get("BaselineBandwidthInMbps", 0),
        ebs_optimized=item["EbsInfo"]["EbsOptimizedSupport"],
        nitro=item.get("Hypervisor") == "nitro" or item["BareMetal"],
        cluster_placement="cluster" in item["PlacementGroupInfo"]["SupportedStrategies"],
    )


def _prices(clients: ClientOf, ec2: Any, region: str, names: Sequence[str], day: date) -> RegionPrices:
    columns: dict[Purchase, tuple[str, Mapping[str, float]]] = {
        "spot": ("EC2 DescribeSpotPriceHistory, median across zones", _spot(ec2, names)),
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
        sources={way: Source(day, columns[way][0]) for way in order},
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
        StartTime=datetime.now(UTC),  # the current price in each zone
    )
    by_type: dict[str, list[float]] = {}
    for one in found:
        by_type.setdefault(one["InstanceType"], []).append(float(one["SpotPrice"]))
    return {name: round(statistics.median(prices), 4) for name, prices in by_type.items()}


def _listed(price_list: Any, region: str, name: str) -> tuple[float | None, float | None]:
    """Return the on-demand price, and the price of a one-year Standard reservation without upfront payment."""
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
    """Return one line for each difference between two catalogues, ignoring dates."""
    lines = [f"types: {name}: new" for name in after.types if name not in before.types]
    for name, type_before in before.types.items():
        facts = type_before.facts
        for key, value in after.types[name].facts.items():
            if facts.get(key) != value:
                lines.append(f"types: {name}: {key}: {facts.get(key)} -> {value}")
    for family in dict.fromkeys(one.family.name for one in after.types.values()):
        if family not in after.hardware.families:
            lines.append(f"families: {family}: not in hardware.json: add its quotas and NVLinks")
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
        lines += _more_differences(region, old_prices, prices)
    return lines


def _more_differences(region: str, old: RegionPrices | None, new: RegionPrices) -> Iterable[str]:
    """Yield one line for each difference between the ranges of spot prices, and the interruption frequencies."""
    ranges = {} if old is None else old.spot_prices.types
    for name, prices in new.spot_prices.types.items():
        if ranges.get(name) != prices:
            yield f"{region}: {name}: spot, {HISTORY_DAYS} days: {prices.low:g} to {prices.high:g} USD/h"
    known = {} if old is None else old.interruptions.types
    for name, share in new.interruptions.types.items():
        if known.get(name) != share:
            yield f"{region}: {name}: interrupted per month: {share.low:g}% to {share.high:g}%"


def _figure(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:g} USD/h"


def write_catalogue(files: Files, known: Catalogue) -> None:
    """Write each of the catalogue's files atomically, with one line per type for readable diffs."""
    loaded = json.loads(files.hardware.read_text(encoding="utf-8"))
    facts = [
        f' "facts": {_line(_dated(known.hardware.facts))}',
        *(f' "{section}": {{\n{_table(loaded[section], 2)}\n }}' for section in ("gpus", "quotas", "families")),
        f' "types": {{\n{_table({name: one.facts for name, one in known.types.items()}, 2)}\n }}',
    ]
    regions = ",\n".join(f"  {json.dumps(name)}: {_region(prices)}" for name, prices in known.regions.items())
    prices = [
        f' "currency": {json.dumps(known.currency)}',
        f' "regions": {_line(json.loads(files.prices.read_text(encoding="utf-8"))["regions"])}',
        f' "prices": {{\n{regions}\n }}',
    ]
    for path, parts in ((files.hardware, facts), (files.prices, prices)):
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(parts) + "\n}\n")
        written = Path(file.name)
        written.chmod(0o644)
        written.replace(path)


def _dated(source: Source) -> dict[str, str]:
    return {"date": source.date.isoformat(), "source": source.source}


def _region(prices: RegionPrices) -> str:
    sources = _table({way: _dated(one) for way, one in prices.sources.items()}, 4)
    parts = [f'   "sources": {{\n{sources}\n   }}', f'   "types": {{\n{_table(prices.types, 4)}\n   }}']
    for name, section in (("spot_prices", prices.spot_prices), ("interruptions", prices.interruptions)):
        if section.source is not None:
            dated = _dated(section.source)
            rows = _table({kind: asdict(row) for kind, row in section.types.items()}, 5)
            head = f'"date": {json.dumps(dated["date"])}, "source": {json.dumps(dated["source"])}'
            parts.append(f'   "{name}": {{ {head}, "types": {{\n{rows}\n    }}\n   }}')
    return "{\n" + ",\n".join(parts) + "\n  }"


def _table(rows: Mapping[Any, Mapping[Any, Any]], indent: int) -> str:
    return ",\n".join(f"{' ' * indent}{json.dumps(name)}: {_line(row)}" for name, row in rows.items())


def _line(row: Mapping[Any, Any]) -> str:
    return f"{{ {json.dumps(row)[1:-1]} }}" if row else "{}"
