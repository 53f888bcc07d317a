"""Network interfaces for instances with EFA: one ENA interface for IP traffic, and `efa-only` interfaces for the gang.

The primary interface (card 0, device 0) is ENA. Card 0 has an `efa-only` interface at device 1 if it supports EFA.
Every other card has one at device 0. Only the primary interface has an IP address, so an instance with 32 cards uses
one address from its subnet.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stacks.capacity.catalogue import catalogue


@dataclass(frozen=True)
class Interface:
    """One network interface in a launch request."""

    card: int
    device: int
    kind: Literal["interface", "efa-only"]


Layout = tuple[Interface, ...]
PLAIN: Layout = (Interface(card=0, device=0, kind="interface"),)


def efa_layout(instance_type: str) -> Layout:
    """Return the interfaces that use all of a type's EFA cards, or the plain layout for a type without EFA."""
    cards = catalogue().types[instance_type].efa_cards
    return PLAIN + tuple(Interface(card=card, device=0 if card else 1, kind="efa-only") for card in cards)
