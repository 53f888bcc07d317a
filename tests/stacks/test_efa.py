"""EFA: the interfaces of a type, the choice of the fabric, and one launch template per layout."""

from __future__ import annotations

import pytest

from stacks.capacity.catalogue import catalogue
from stacks.capacity.efa_layouts import PLAIN, efa_layout

from .conftest import Assembly, Synthesis
from .test_training_stack import STACK, flat


def interfaces(assembly: Assembly) -> dict[str, list[tuple[int, int, str]]]:
    """Return card, device and type of each launch template's interfaces."""
    return {
        name: [
            (one["NetworkCardIndex"], one["DeviceIndex"], one["InterfaceType"])
            for one in item["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
        ]
        for name, item in assembly.of_type(STACK, "AWS::EC2::LaunchTemplate").items()
    }


@pytest.mark.parametrize("name", sorted(catalogue().types))
def test_layout_matches_the_type(name: str) -> None:
    """An ENA interface comes first, followed by one interface for each EFA card of the type."""
    facts, layout = catalogue().types[name], efa_layout(name)
    assert layout[0] == PLAIN[0]
    fast = layout[1:]
    assert len(fast) == facts.efa_interfaces
    assert {one.kind for one in fast} <= {"efa-only"}
    assert len({one.card for one in fast}) == len(fast)
    assert all(one.card < facts.network_cards for one in fast)
    assert len({(one.card, one.device) for one in layout}) == len(layout)


def test_card_for_ip_traffic_has_no_efa_interface() -> None:
    assert [(one.card, one.device) for one in efa_layout("p6-b300.48xlarge")][:3] == [(0, 0), (1, 0), (2, 0)]
    assert [(one.card, one.device) for one in efa_layout("p5.48xlarge")][:3] == [(0, 0), (0, 1), (1, 0)]


def test_several_interfaces_leave_public_addresses_unset(synthesis: Synthesis) -> None:
    assembly = synthesis.of("multi-node-spot-efa")
    (found,) = interfaces(assembly).values()
    assert found == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        (1, 0, "efa-only"),
        (2, 0, "efa-only"),
        (3, 0, "efa-only"),
    ]
    (template,) = assembly.of_type(STACK, "AWS::EC2::LaunchTemplate").values()
    data = template["Properties"]["LaunchTemplateData"]
    assert not any("AssociatePublicIpAddress" in one for one in data["NetworkInterfaces"])
    assert all(len(one["Groups"]) == 1 for one in data["NetworkInterfaces"])
    assert '"fabric":"efa"' in flat(data["UserData"])


def test_single_interface_has_no_public_address(demo: Assembly) -> None:
    (template,) = demo.of_type(STACK, "AWS::EC2::LaunchTemplate").values()
    (interface,) = template["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is False
    assert '"fabric":"tcp"' in flat(template["Properties"]["LaunchTemplateData"]["UserData"])


def test_each_layout_has_a_launch_template(synthesis: Synthesis) -> None:
    assembly = synthesis.variant(
        "layouts", {"capacity.instance_types": ["g6e.12xlarge", "g6e.24xlarge"]}, base="multi-node-spot-efa"
    )
    templates = interfaces(assembly)
    assert sorted(len(found) for found in templates.values()) == [2, 3]
    groups = assembly.of_type(STACK, "AWS::AutoScaling::AutoScalingGroup").values()
    assert len(groups) == 3  # one per zone
    for group in groups:
        mixed = group["Properties"]["MixedInstancesPolicy"]
        named = [item.get("LaunchTemplateSpecification") for item in mixed["LaunchTemplate"]["Overrides"]]
        assert named[0] is None
        assert named[1]["LaunchTemplateId"]["Ref"] in templates


def test_single_node_has_no_efa_interface(synthesis: Synthesis) -> None:
    (found,) = interfaces(synthesis.of("single-node-8-gpu")).values()
    assert found == [(0, 0, "interface")]
