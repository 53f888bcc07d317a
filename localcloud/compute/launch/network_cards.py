"""Assigns a launch's network interfaces to the network cards of its instance type.

Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html and using-network-interfaces.html (2026-11). Each type's
network cards come from DescribeInstanceTypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api import ApiError

_EFA = ("efa", "efa-only")


def check_interfaces(interfaces: Sequence[Mapping[str, Any]], instance_type: str, facts: Mapping[str, Any]) -> None:
    """Check interfaces against an instance type's network cards and EFA support.

    Raises:
        ApiError: The first problem, as EC2 reports it.
    """
    if not interfaces:
        return
    network = facts["NetworkInfo"]
    places = [(int(one.get("NetworkCardIndex", 0)), int(one.get("DeviceIndex", 0))) for one in interfaces]
    if (0, 0) not in places:
        raise ApiError("InvalidParameterValue", "A primary network interface (card 0, device 0) must be specified")
    if repeated := [place for place, times in Counter(places).items() if times > 1]:
        raise ApiError(
            "InvalidParameterValue",
            f"Network card {repeated[0][0]} has several interfaces with device index {repeated[0][1]}",
        )
    if len(interfaces) > 1 and any(one.get("AssociatePublicIpAddress") for one in interfaces):
        raise ApiError(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
            "interfaces.",
        )
    _check_cards(places, instance_type, network)
    _check_efa(interfaces, instance_type, network)


def _check_cards(places: Sequence[tuple[int, int]], instance_type: str, network: Mapping[str, Any]) -> None:
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    for index, count in Counter(card for card, _ in places).items():
        if index not in cards:
            raise ApiError(
                "InvalidParameterValue",
                f"Network card index {index} is invalid for {instance_type}, which has {len(cards)}",
            )
        if count > cards[index]["MaximumNetworkInterfaces"]:
            raise ApiError(
                "AttachmentLimitExceeded",
                f"Interface count {count} exceeds the limit of {cards[index]['MaximumNetworkInterfaces']} on network "
                f"card {index} of {instance_type}",
            )
    if len(places) > network["MaximumNetworkInterfaces"]:
        raise ApiError(
            "AttachmentLimitExceeded",
            f"Interface count {len(places)} exceeds the limit for {instance_type}",
        )


def _check_efa(interfaces: Sequence[Mapping[str, Any]], instance_type: str, network: Mapping[str, Any]) -> None:
    for one in interfaces:
        kind = one.get("InterfaceType", "interface")
        if kind not in ("interface", *_EFA):
            raise ApiError("InvalidParameterValue", f"Invalid interface type: '{kind}'")
        if kind == "efa-only" and one.get("NetworkCardIndex", 0) == 0 and one.get("DeviceIndex", 0) == 0:
            raise ApiError("InvalidParameterValue", "The primary network interface cannot be of type efa-only")
        if kind == "efa-only" and (one.get("PrivateIpAddress") or one.get("AssociatePublicIpAddress")):
            raise ApiError("InvalidParameterCombination", "An interface of type efa-only has no IP addresses")
    wanted = sum(one.get("InterfaceType") in _EFA for one in interfaces)
    if wanted and not network.get("EfaSupported"):
        raise ApiError("InvalidParameterCombination", f"EFA interfaces are not supported on {instance_type}.")
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    if wanted > most:
        raise ApiError(
            "AttachmentLimitExceeded", f"{wanted} EFA interfaces exceed the limit of {most} on {instance_type}"
        )


def primary_address(interfaces: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the private address requested for the primary interface."""
    for interface in interfaces:
        if interface.get("DeviceIndex", 0) == 0 and interface.get("NetworkCardIndex", 0) == 0:
            return interface.get("PrivateIpAddress")
    return None


def numbered(interfaces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the interfaces with unique device indexes, because moto models a single network card."""
    return [
        {name: value for name, value in one.items() if name not in ("NetworkCardIndex", "InterfaceType")}
        | {"DeviceIndex": number}
        for number, one in enumerate(_in_order(interfaces))
    ]


def with_cards(described: Sequence[Mapping[str, Any]], interfaces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the interfaces that moto describes, with the launch's network cards, device indexes and types."""
    shown = []
    asked = dict(enumerate(_in_order(interfaces)))
    for one in described:
        attachment = dict(one["Attachment"])
        launch = asked.get(attachment["DeviceIndex"], {})
        place = {name: int(launch.get(name, 0)) for name in ("DeviceIndex", "NetworkCardIndex")} if launch else {}
        shown.append(
            dict(one) | {"Attachment": attachment | place, "InterfaceType": launch.get("InterfaceType", "interface")}
        )
    return shown


def _in_order(interfaces: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(interfaces, key=lambda one: (one.get("NetworkCardIndex", 0), one.get("DeviceIndex", 0)))
