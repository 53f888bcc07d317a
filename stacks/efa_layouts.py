"""Which network interfaces an instance type gets for EFA: one ENA interface for IP traffic, `efa-only` for the gang.

Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html: the primary interface
(card 0, device 0) is ENA; card 0 gets an `efa-only` interface at device 1 when it can do EFA; every other card gets
one at device 0. Only the primary has an IP address, so a machine of 32 cards takes one address of its subnet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stacks.instance_types import catalogue

LAYOUTS_DATE = "2026-11"
# Types whose card 0 carries IP traffic alone; their EFA cards are numbered from 1.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
CARD_0_WITHOUT_EFA = frozenset({"p6-b300.48xlarge"})
# Types whose EFA cards do not stand one beside the other: the odd ones of 16.
# Source (2026-11): https://github.com/aws/aws-parallelcluster/pull/6930
ODD_CARDS_ONLY = frozenset({"p6e-gb200.36xlarge"})


@dataclass(frozen=True)
class Interface:
    """One network interface of a launch."""

    card: int
    device: int
    kind: Literal["interface", "efa-only"]


Layout = tuple[Interface, ...]
PLAIN: Layout = (Interface(card=0, device=0, kind="interface"),)


def efa_layout(instance_type: str) -> Layout:
    """Return the interfaces with which a type of the catalogue uses all its EFA; of one without EFA the plain one."""
    count = catalogue().types[instance_type].efa_interfaces
    if instance_type in ODD_CARDS_ONLY:
        cards = range(1, 2 * count, 2)
    elif instance_type in CARD_0_WITHOUT_EFA:
        cards = range(1, count + 1)
    else:
        cards = range(count)
    return PLAIN + tuple(Interface(card=card, device=0 if card else 1, kind="efa-only") for card in cards)
