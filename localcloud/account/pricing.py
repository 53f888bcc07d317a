"""Price List Query API for EC2 instances, with the embedded cloud's prices.

Products are Linux instances on shared hardware, either On-Demand or reserved without upfront payment, in the format of
AWS's offer files. Source: docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-pelong.html (2026-11).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler, Service
from localcloud.compute.describe import page
from localcloud.compute.launch.instance_types import InstanceTypes

MAX_RESULTS = 100
PUBLICATION_DATE = "2026-11-01T00:00:00Z"
_SERVICE = "AmazonEC2"
_HOURLY = "6YS6EN2CT7"
_OFFERS = {"JRTCKXETXF": None, "4NA7Y494T4": ("1yr", 0.63), "BPH4J8HBKS": ("3yr", 0.43)}
"""Offer term codes. For reserved instances, also the lease and the fraction of the On-Demand price."""


class Pricing(Service):
    """Price List (api.Service)."""

    name = "pricing"

    def __init__(self, types: InstanceTypes, region: str) -> None:
        self._types = types
        self._region = region

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {"GetProducts": self.products}

    def products(self, call: Call) -> Mapping[str, Any]:
        """Handle GetProducts. The regionCode filter defaults to the cloud's region."""
        asked = call.parameters
        if asked["ServiceCode"] != _SERVICE:
            raise ApiError(
                "InvalidParameterException", f"ServiceCode {asked['ServiceCode']} is not emulated; use {_SERVICE}"
            )
        filters = asked.get("Filters", [])
        if other := [one["Type"] for one in filters if one["Type"] != "TERM_MATCH"]:
            raise ApiError("InvalidParameterException", f"Filter type {other[0]} is not emulated; use TERM_MATCH")
        wanted = {one["Field"]: one["Value"] for one in filters}
        region = wanted.get("regionCode", self._region)
        found = [one for one in self._attributes(region, wanted) if wanted.items() <= one.items()]
        answer = page(found, asked, "PriceList", MAX_RESULTS)
        answer["PriceList"] = [json.dumps(self._product(one)) for one in answer["PriceList"]]
        return answer | {"FormatVersion": "aws_v1"}

    def _attributes(self, region: str, wanted: Mapping[str, str]) -> Iterator[dict[str, str]]:
        names = [wanted["instanceType"]] if "instanceType" in wanted else self._types.names()
        for name in names:
            try:
                facts = self._types.facts(name)
            except ApiError:
                continue  # no products exist for unknown types
            gpus = sum(one["Count"] for one in facts.get("GpuInfo", {}).get("Gpus", []))
            attributes = {
                "servicecode": _SERVICE, "servicename": "Amazon Elastic Compute Cloud", "locationType": "AWS Region",
                "regionCode": region, "instanceType": name, "operatingSystem": "Linux", "tenancy": "Shared",
                "capacitystatus": "Used", "preInstalledSw": "NA", "licenseModel": "No License required",
                "marketoption": "OnDemand", "operation": "RunInstances", "usagetype": f"BoxUsage:{name}",
                "vcpu": str(facts["VCpuInfo"]["DefaultVCpus"]),
                "memory": f"{facts['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
                "currentGeneration": "Yes" if facts.get("CurrentGeneration") else "No",
                "networkPerformance": str(facts["NetworkInfo"].get("NetworkPerformance", "NA")),
            }  # fmt: skip
            yield attributes | ({"gpu": str(gpus)} if gpus else {})

    def _product(self, attributes: Mapping[str, str]) -> dict[str, Any]:
        key = f"{attributes['regionCode']}/{attributes['instanceType']}"
        sku = hashlib.sha256(key.encode()).hexdigest()[:16].upper()
        hourly = self._types.on_demand_usd_per_hour(attributes["instanceType"])
        terms: dict[str, dict[str, Any]] = {"OnDemand": {}, "Reserved": {}}
        for code, lease in _OFFERS.items():
            price = hourly if lease is None else hourly * lease[1]
            kind = "OnDemand" if lease is None else "Reserved"
            about = {} if lease is None else {
                "LeaseContractLength": lease[0], "OfferingClass": "standard", "PurchaseOption": "No Upfront"
            }  # fmt: skip
            terms[kind][f"{sku}.{code}"] = _term(sku, code, price, attributes["instanceType"], about)
        return {
            "product": {"productFamily": "Compute Instance", "attributes": dict(attributes), "sku": sku},
            "serviceCode": _SERVICE, "terms": terms, "version": "20261101000000", "publicationDate": PUBLICATION_DATE,
        }  # fmt: skip


def _term(sku: str, code: str, price: float, instance_type: str, about: Mapping[str, str]) -> dict[str, Any]:
    rate = f"{sku}.{code}.{_HOURLY}"
    dimension = {
        "unit": "Hrs", "beginRange": "0", "endRange": "Inf", "rateCode": rate, "appliesTo": [],
        "description": f"${price:.10f} per Linux {instance_type} Instance Hour",
        "pricePerUnit": {"USD": f"{price:.10f}"},
    }  # fmt: skip
    return {
        "sku": sku, "offerTermCode": code, "effectiveDate": PUBLICATION_DATE, "termAttributes": dict(about),
        "priceDimensions": {rate: dimension},
    }  # fmt: skip
