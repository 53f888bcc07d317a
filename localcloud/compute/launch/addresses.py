"""Allocates private addresses that are unique in their subnet and not reserved.

Only addresses in 127.0.0.0/8 are reachable, and only on Linux. Other addresses exist only as records.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Set

from localcloud.compute.errors import AddressesExhausted

RESERVED_FIRST = 4
"""AWS reserves the first four addresses and the last address in each subnet.
Source: docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html, 2026-11."""

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


class AddressBook:
    """Allocates addresses in ascending order. Reuses freed addresses only after reaching the end of the subnet."""

    def __init__(self, taken_elsewhere: Callable[[str], Set[str]]) -> None:
        self._taken_elsewhere = taken_elsewhere
        self._lock = threading.Lock()
        self._held: dict[str, set[str]] = {}
        self._last: dict[str, int] = {}

    def take(self, subnet_id: str, cidr: str, wanted: str | None = None) -> str:
        """Reserve an address in the subnet, or `wanted` if given.

        Raises:
            AddressesExhausted: No address is free, or `wanted` is in use, reserved or outside the subnet.
        """
        network = ipaddress.ip_network(cidr)
        usable = range(RESERVED_FIRST, network.num_addresses - 1)
        with self._lock:
            held = self._held.setdefault(subnet_id, set())
            taken = held | self._taken_elsewhere(subnet_id)
            if wanted is not None:
                address = ipaddress.ip_address(wanted)
                if address not in network or int(address) - int(network[0]) not in usable or wanted in taken:
                    raise AddressesExhausted(f"Address {wanted} is in use or not usable in {subnet_id} ({cidr}).")
                held.add(wanted)
                return wanted
            start = self._last.get(subnet_id, usable.start - 1) + 1
            for offset in (*range(start, usable.stop), *range(usable.start, min(start, usable.stop))):
                text = str(network[offset])
                if text not in taken:
                    self._last[subnet_id] = offset
                    held.add(text)
                    return text
        raise AddressesExhausted(f"There are not enough free addresses in subnet '{subnet_id}' ({cidr}).")

    def release(self, subnet_id: str, address: str) -> None:
        """Free an address."""
        with self._lock:
            self._held.get(subnet_id, set()).discard(address)


def is_loopback(address: str) -> bool:
    """Return True if the address is a loopback address, on which this machine can listen."""
    return ipaddress.ip_address(address) in LOOPBACK
