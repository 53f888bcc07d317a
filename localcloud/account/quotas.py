"""Service Quotas. The account file and tests can set quotas. Quotas are not enforced.

`POST /_localcloud/service-quotas/quota {quota_code, value}` sets a quota's applied value.
Codes (2026-11): docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html, and the links to Service Quotas
in docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html, vpc-limits-endpoints.html in
docs.aws.amazon.com/vpc/latest/privatelink/, and docs.aws.amazon.com/ebs/latest/userguide/ebs-resource-quotas.html.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler, Service

_ON_DEMAND, _SPOT = "Running On-Demand {} instances", "All {} Spot Instance Requests"
QUOTAS: Mapping[str, str] = {
    "L-1216C47A": _ON_DEMAND.format("Standard (A, C, D, H, I, M, R, T, Z)"),
    "L-DB2E81BA": _ON_DEMAND.format("G and VT"),
    "L-417A185B": _ON_DEMAND.format("P"),
    "L-2C3B7624": _ON_DEMAND.format("Trn"),
    "L-34B43A08": _SPOT.format("Standard (A, C, D, H, I, M, R, T, Z)"),
    "L-3819A6DF": _SPOT.format("G and VT"),
    "L-7212CCBC": _SPOT.format("P4, P3 and P2"),
    "L-C4BD4855": _SPOT.format("P5"),
    "L-6B0D517C": _SPOT.format("Trn"),
    "L-0263D0A3": "EC2-VPC Elastic IPs",
    "L-F678F1CE": "VPCs per Region",
    "L-A4707A72": "Internet gateways per Region",
    "L-FE5A380F": "NAT gateways per Availability Zone",
    "L-1B52E74A": "Gateway VPC endpoints per Region",
    "L-29B6F2EB": "Interface VPC endpoints per VPC",
    "L-7A658B76": "Storage for General Purpose SSD (gp3) volumes, in TiB",
    "L-09BD8365": "Storage for Provisioned IOPS SSD (io2) volumes, in TiB",
    "L-8D977E7E": "IOPS for Provisioned IOPS SSD (io2) volumes",
    "L-631ECBD3": "Fast snapshot restore",
}
"""Quota names, keyed by quota code."""
SERVICES: Mapping[str, frozenset[str]] = {
    "vpc": frozenset(("L-F678F1CE", "L-A4707A72", "L-FE5A380F", "L-1B52E74A", "L-29B6F2EB")),
    "ebs": frozenset(("L-7A658B76", "L-09BD8365", "L-8D977E7E", "L-631ECBD3")),
}
"""Quota codes, keyed by service. All other quotas belong to `ec2`."""
APPLIED_VALUE = 4096.0
"""Applied value of every quota unless the account file or a test sets a different value."""


def _service_of(code: str) -> str:
    return next((service for service, codes in SERVICES.items() if code in codes), "ec2")


class ServiceQuotas(Service):
    """Service Quotas (api.Service)."""

    name = "service-quotas"

    def __init__(self, applied: Mapping[str, float] | None = None) -> None:
        self._lock = threading.Lock()
        self._applied = dict.fromkeys(QUOTAS, APPLIED_VALUE) | dict(applied or {})

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "GetServiceQuota": self.get,
            "ListServiceQuotas": self.list,
        }

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Set a quota."""
        if (method, path.strip("/")) != ("POST", "quota"):
            return 404, b""
        try:
            order = json.loads(body)
            code, value = order["quota_code"], float(order["value"])
        except (ValueError, KeyError, TypeError) as error:
            return 400, json.dumps({"error": f"expected quota_code and value: {error!r}"}).encode()
        if code not in QUOTAS or value < 0:
            return 400, json.dumps(
                {"error": f"{code}: {value}: unknown EC2 instance quota code, or negative value"}
            ).encode()
        with self._lock:
            self._applied[code] = value
        return 200, b"{}"

    def get(self, call: Call) -> Mapping[str, Any]:
        """Handle GetServiceQuota."""
        return {"Quota": self._shown(call, self._code(call))}

    def list(self, call: Call) -> Mapping[str, Any]:
        """Handle ListServiceQuotas."""
        service = str(call.parameters["ServiceCode"])
        return {"Quotas": [self._shown(call, code) for code in QUOTAS if _service_of(code) == service]}

    def _code(self, call: Call) -> str:
        service, code = call.parameters["ServiceCode"], str(call.parameters["QuotaCode"])
        if code not in QUOTAS or _service_of(code) != service:
            raise ApiError("NoSuchResourceException", "The request failed because the specified quota does not exist.")
        return code

    def _shown(self, call: Call, code: str) -> dict[str, Any]:
        with self._lock:
            value = self._applied[code]
        return {
            "ServiceCode": _service_of(code), "ServiceName": f"Amazon {_service_of(code).upper()}",
            "QuotaArn": f"arn:aws:servicequotas:{call.region}:{call.account}:{_service_of(code)}/{code}",
            "QuotaCode": code,
            "QuotaName": QUOTAS[code], "Value": value, "Unit": "None", "Adjustable": True, "GlobalQuota": False,
        }  # fmt: skip
