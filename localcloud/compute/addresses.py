"""Private addresses of instances: unique in their subnet, never the reserved ones.

Not here: that an address answers (addresses in 127.0.0.0/8 do on Linux, others exist on paper only).
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Set

from localcloud.compute.errors import AddressesExhausted

RESERVED_FIRST = 4
"""AWS keeps the first four addresses of a subnet and the last one.
Source: docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html, 2026-11."""

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


class AddressBook:
    """Gives addresses in rising order and returns to freed ones only after the end of the subnet."""

    def __init__(self, taken_elsewhere: Callable[[str], Set[str]]) -> None:
        self._taken_elsewhere = taken_elsewhere
        self._lock = threading.Lock()
        self._held: dict[str, set[str]] = {}
        self._last: dict[str, int] = {}

    def take(self, subnet_id: str, cidr: str, wanted: str | None = None) -> str:
        """Reserve an address of the subnet, `wanted` when given.

        Raises:
            AddressesExhausted: no address is free, or `wanted` is taken, reserved, or of another subnet.
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

    def give_back(self, subnet_id: str, address: str) -> None:
        """Free an address."""
        with self._lock:
            self._held.get(subnet_id, set()).discard(address)


def is_on_this_machine(address: str) -> bool:
    """Tell whether the address is a loopback address."""
    return ipaddress.ip_address(address) in LOOPBACK
