"""What the templates say of the fleet: machines, types, market, and which launch template starts which type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacks.changes.assembly import FLEET_TYPES, Assembly, resources_of_type
from stacks.changes.references import Exports, references
from stacks.changes.texts import NODE_DOCUMENT, RUN_DOCUMENT, opened

BACK_ENDS = dict(zip(FLEET_TYPES, ("auto_scaling_group", "ec2_fleet", "spot_fleet"), strict=True))


@dataclass(frozen=True)
class FleetFacts:
    """A fleet as its templates describe it.

    `market_type` is that of the launch template, such as "capacity-block". `templates` names for each instance type the
    logical id of its launch template; types are in order of preference.
    """

    backend: str
    stack: str
    logical_id: str
    region: str
    nodes: int
    min_nodes: int
    on_demand_nodes: int
    gang_timeout_seconds: int
    is_reserved: bool
    market_type: str | None
    templates: Mapping[str, str]

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The types, in order of preference."""
        return tuple(self.templates)

    @property
    def spot_nodes(self) -> int:
        """Machines that are bought on the spot market."""
        return self.nodes - self.on_demand_nodes

    @property
    def market(self) -> str:
        """How the machines are bought, in words."""
        if self.market_type is not None:
            return self.market_type.replace("-", " ")
        rest = "reserved" if self.is_reserved else "on demand"
        if not self.spot_nodes:
            return rest
        return "spot" if not self.on_demand_nodes else f"{self.on_demand_nodes} {rest}, {self.spot_nodes} spot"


def fleet_facts(assembly: Assembly) -> FleetFacts | None:
    """Return the facts of the deployment's fleet; None when there is none."""
    found = next(resources_of_type(assembly, *FLEET_TYPES), None)
    if found is None:
        return None
    stack_id, logical_id, fleet = found
    run, node, settings = run_document(assembly), node_document(assembly), _controller_settings(assembly)
    nodes = int(run.get("nodes", 0))
    return FleetFacts(
        backend=BACK_ENDS[fleet["Type"]],
        stack=stack_id,
        logical_id=logical_id,
        region=str(node.get("region", "")),
        nodes=nodes,
        min_nodes=int(run.get("min_nodes", nodes)),
        on_demand_nodes=min(nodes, int(settings.get("ON_DEMAND_BASE", nodes))),
        gang_timeout_seconds=int(node.get("supervise", {}).get("gang_timeout_seconds", 0)),
        is_reserved=_is_reserved(assembly, fleet),
        market_type=_market_type(assembly),
        templates=dict(_templates(assembly, stack_id, fleet)),
    )


def run_document(assembly: Assembly) -> Mapping[str, Any]:
    """Return what is trained, with references as ${Name}; empty when the stacks hold none."""
    for _, _, parameter in resources_of_type(assembly, "AWS::SSM::Parameter"):
        value = opened(parameter["Type"], parameter["Properties"]).get("Value")
        if isinstance(value, Mapping) and RUN_DOCUMENT in value:
            document: Mapping[str, Any] = value[RUN_DOCUMENT]
            return document
    return {}


def node_document(assembly: Assembly) -> Mapping[str, Any]:
    """Return what nodes are told in their user data, with references as ${Name}; empty when the stacks hold none."""
    for _, _, template in resources_of_type(assembly, "AWS::EC2::LaunchTemplate"):
        data = opened(template["Type"], template["Properties"])["LaunchTemplateData"].get("UserData")
        if isinstance(data, Mapping) and NODE_DOCUMENT in data:
            document: Mapping[str, Any] = data[NODE_DOCUMENT]
            return document
    return {}


def _controller_settings(assembly: Assembly) -> Mapping[str, Any]:
    for _, _, function in resources_of_type(assembly, "AWS::Lambda::Function"):
        variables: Mapping[str, Any] = function["Properties"].get("Environment", {}).get("Variables", {})
        if "ON_DEMAND_BASE" in variables:
            return variables
    return {}


def _is_reserved(assembly: Assembly, fleet: Mapping[str, Any]) -> bool:
    """Tell whether machines run in reserved capacity, which the fleet or its launch templates name."""
    places = [fleet, *(one for _, _, one in resources_of_type(assembly, "AWS::EC2::LaunchTemplate"))]
    text = json.dumps([one["Properties"] for one in places])
    return any(
        name in text for name in ("CapacityReservationTarget", "CapacityReservationIds", "ReservedCapacityOptions")
    )


def _market_type(assembly: Assembly) -> str | None:
    for _, _, template in resources_of_type(assembly, "AWS::EC2::LaunchTemplate"):
        options = template["Properties"]["LaunchTemplateData"].get("InstanceMarketOptions", {})
        if "MarketType" in options:
            return str(options["MarketType"])
    return None


def _templates(assembly: Assembly, stack_id: str, fleet: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each instance type with the logical id of its launch template, by preference."""
    exports, properties = Exports(assembly), fleet["Properties"]

    def template_of(value: Any) -> str:
        return next((one.logical_id for _, one in references(value, stack_id, exports) if not one.attribute), "")

    mixed = properties.get("MixedInstancesPolicy", {}).get("LaunchTemplate")
    if mixed is not None:
        common = template_of(mixed["LaunchTemplateSpecification"])
        for override in mixed.get("Overrides", []):
            own = override.get("LaunchTemplateSpecification")
            yield override["InstanceType"], common if own is None else template_of(own)
        return
    if "LaunchTemplate" in properties:
        logical_id = template_of(properties["LaunchTemplate"])
        data = assembly[stack_id].resources.get(logical_id, {}).get("Properties", {}).get("LaunchTemplateData", {})
        yield str(data.get("InstanceType", "")), logical_id
        return
    configs = properties.get("LaunchTemplateConfigs")
    if configs is None:
        configs = properties.get("SpotFleetRequestConfigData", {}).get("LaunchTemplateConfigs", [])
    pools = [
        (override.get("Priority", 0), override["InstanceType"], template_of(config["LaunchTemplateSpecification"]))
        for config in configs
        for override in config.get("Overrides", [])
    ]
    yield from ((name, logical_id) for _, name, logical_id in sorted(pools, key=lambda pool: pool[0]))
