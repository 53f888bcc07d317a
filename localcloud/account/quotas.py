"""Service Quotas for EC2's vCPU limits: told, and set by a fault, but not enforced.

`POST /_localcloud/service-quotas/quota {quota_code, value}` sets the applied value of one quota.
Source of codes and defaults: docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html (2026-11).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError, Call, Handler, Observer
from localcloud.compute.paging import page

_ON_DEMAND, _SPOT = "Running On-Demand {} instances", "All {} Spot Instance Requests"
QUOTAS: Mapping[str, tuple[str, float]] = {
    "L-1216C47A": (_ON_DEMAND.format("Standard (A, C, D, H, I, M, R, T, Z)"), 5.0),
    "L-DB2E81BA": (_ON_DEMAND.format("G and VT"), 0.0),
    "L-417A185B": (_ON_DEMAND.format("P"), 0.0),
    "L-2C3B7624": (_ON_DEMAND.format("Trn"), 0.0),
    "L-34B43A08": (_SPOT.format("Standard (A, C, D, H, I, M, R, T, Z)"), 5.0),
    "L-3819A6DF": (_SPOT.format("G and VT"), 0.0),
    "L-7212CCBC": (_SPOT.format("P4, P3 and P2"), 0.0),
    "L-C4BD4855": (_SPOT.format("P5"), 0.0),
    "L-6B0D517C": (_SPOT.format("Trn"), 0.0),
}
"""Quota name and AWS's default value, in vCPUs, by quota code."""
APPLIED_VCPUS = 4096.0
"""What the local account has of each, unless a fault sets another value."""


class ServiceQuotas:
    """api.Service for Service Quotas."""

    name = "service-quotas"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied = dict.fromkeys(QUOTAS, APPLIED_VCPUS)

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {
            "GetServiceQuota": self.get,
            "ListServiceQuotas": self.list,
            "GetAWSDefaultServiceQuota": self.get_default,
            "ListAWSDefaultServiceQuotas": self.list_default,
        }

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Set a quota."""
        if (method, path.strip("/")) != ("POST", "quota"):
            return 404, b""
        try:
            order = json.loads(body)
            code, value = order["quota_code"], float(order["value"])
        except (ValueError, KeyError, TypeError) as error:
            return 400, json.dumps({"error": f"give quota_code and value: {error!r}"}).encode()
        if code not in QUOTAS or value < 0:
            return 400, json.dumps({"error": f"{code}: {value} is no quota of EC2 instances"}).encode()
        with self._lock:
            self._applied[code] = value
        return 200, b"{}"

    def close(self) -> None:
        """Do nothing."""

    def get(self, call: Call) -> Mapping[str, Any]:
        """Answer GetServiceQuota."""
        return {"Quota": self._shown(call, self._code(call), is_default=False)}

    def list(self, call: Call) -> Mapping[str, Any]:
        """Answer ListServiceQuotas."""
        return page([self._shown(call, one, is_default=False) for one in self._codes(call)], call.parameters, "Quotas")

    def get_default(self, call: Call) -> Mapping[str, Any]:
        """Answer GetAWSDefaultServiceQuota."""
        return {"Quota": self._shown(call, self._code(call), is_default=True)}

    def list_default(self, call: Call) -> Mapping[str, Any]:
        """Answer ListAWSDefaultServiceQuotas."""
        return page([self._shown(call, one, is_default=True) for one in self._codes(call)], call.parameters, "Quotas")

    def _code(self, call: Call) -> str:
        code: str = call.parameters["QuotaCode"]
        if code not in self._codes(call):
            raise ApiError("NoSuchResourceException", "The request failed because the specified quota does not exist.")
        return code

    @staticmethod
    def _codes(call: Call) -> tuple[str, ...]:
        if call.parameters["ServiceCode"] != "ec2":
            raise ApiError(
                "NoSuchResourceException",
                f"The local cloud tells the quotas of ec2, not of {call.parameters['ServiceCode']}.",
            )
        return tuple(QUOTAS)

    def _shown(self, call: Call, code: str, *, is_default: bool) -> dict[str, Any]:
        name, default = QUOTAS[code]
        with self._lock:
            value = default if is_default else self._applied[code]
        account = "" if is_default else call.account
        return {
            "ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{call.region}:{account}:ec2/{code}", "QuotaCode": code,
            "QuotaName": name, "Value": value, "Unit": "None", "Adjustable": True, "GlobalQuota": False,
        }  # fmt: skip
