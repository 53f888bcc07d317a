"""Summarizes the fleet in the templates: its nodes, instance types, market and launch templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacks.changes.templates.references import Exports, references
from stacks.changes.templates.template_set import TemplateSet, resources_of_type
from stacks.changes.templates.values import (
    NODE_DOCUMENT,
    RUN_DOCUMENT,
    mapping,
    mappings,
    number,
    parse_documents,
    text_of,
)
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS, Backend

_NAMES: Mapping[str, Backend] = {each.resource_type: name for name, each in BACK_ENDS.items()}


@dataclass(frozen=True)
class FleetSummary:
    """A deployment's fleet.

    `market_type` is the launch template's market type, such as "capacity-block". `templates` maps each instance type,
    in order of preference, to the logical id of its launch template.
    """

    backend: Backend
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
        """The instance types, in order of preference."""
        return tuple(self.templates)

    @property
    def spot_nodes(self) -> int:
        """The number of spot nodes."""
        return self.nodes - self.on_demand_nodes

    @property
    def market(self) -> str:
        """The market of the nodes, as text."""
        if self.market_type is not None:
            return self.market_type.replace("-", " ")
        rest = "reserved" if self.is_reserved else "on demand"
        if not self.spot_nodes:
            return rest
        return "spot" if not self.on_demand_nodes else f"{self.on_demand_nodes} {rest}, {self.spot_nodes} spot"


def by_slot(templates: TemplateSet) -> list[TemplateSet]:
    """Return the templates of each slot: the stack with its fleet, and the stacks without a fleet."""
    fleets = {stack_id for stack_id, _, _ in resources_of_type(templates, *_NAMES)}
    shared = {stack_id: stack for stack_id, stack in templates.items() if stack_id not in fleets}
    return [{**shared, stack_id: stack} for stack_id, stack in templates.items() if stack_id in fleets]


def fleet_summary(templates: TemplateSet) -> FleetSummary | None:
    """Return a summary of the deployment's fleet, or None if the templates do not contain one.

    A fleet that uses one zone at a time has one group for each zone, and only one of the groups has nodes. The groups
    differ only in their names and subnets.
    """
    return next(iter(fleet_summaries(templates)), None)


def fleet_summaries(templates: TemplateSet) -> list[FleetSummary]:
    """Return a summary of the deployment's fleet for each of its groups."""
    return [_summary(templates, *found) for found in resources_of_type(templates, *_NAMES)]


def _summary(templates: TemplateSet, stack_id: str, logical_id: str, fleet: Mapping[str, Any]) -> FleetSummary:
    run, node, settings = run_document(templates), node_document(templates), _controller_settings(templates)
    # A slot without a run document has as many nodes as its controller permits.
    nodes = int(number(run.get("nodes"), otherwise=number(settings.get("NODES"), otherwise=0)))
    return FleetSummary(
        backend=_NAMES[fleet["Type"]],
        stack=stack_id,
        logical_id=logical_id,
        region=str(node.get("region", "")),
        nodes=nodes,
        min_nodes=int(number(run.get("min_nodes"), otherwise=nodes)),
        on_demand_nodes=min(nodes, int(number(settings.get("ON_DEMAND_BASE"), otherwise=nodes))),
        gang_timeout_seconds=int(number(mapping(node.get("supervise")).get("gang_timeout_seconds"), otherwise=0)),
        is_reserved=_is_reserved(templates, fleet),
        market_type=_market_type(templates),
        templates=dict(_templates(templates, stack_id, fleet)),
    )


def run_document(templates: TemplateSet) -> Mapping[str, Any]:
    """Return the run document with references written as ${Name}, or an empty mapping if there is none."""
    for _, _, parameter in resources_of_type(templates, "AWS::SSM::Parameter"):
        value = parse_documents(parameter["Type"], parameter.get("Properties", {})).get("Value")
        if isinstance(value, Mapping) and RUN_DOCUMENT in value:
            document: Mapping[str, Any] = value[RUN_DOCUMENT]
            return document
    return {}


def node_document(templates: TemplateSet) -> Mapping[str, Any]:
    """Return the user data's node document with references written as ${Name}, or an empty mapping if there is none."""
    for _, _, template in resources_of_type(templates, "AWS::EC2::LaunchTemplate"):
        data = parse_documents(template["Type"], {"LaunchTemplateData": launch_template_data(template)})
        data = data["LaunchTemplateData"].get("UserData")
        if isinstance(data, Mapping) and NODE_DOCUMENT in data:
            document: Mapping[str, Any] = data[NODE_DOCUMENT]
            return document
    return {}


def launch_template_data(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data of a launch template, or an empty mapping if it cannot be read."""
    return mapping(mapping(template.get("Properties")).get("LaunchTemplateData"))


def _controller_settings(templates: TemplateSet) -> Mapping[str, Any]:
    for _, _, function in resources_of_type(templates, "AWS::Lambda::Function"):
        variables = mapping(mapping(function.get("Properties", {}).get("Environment")).get("Variables"))
        if "ON_DEMAND_BASE" in variables:
            return variables
    return {}


def _is_reserved(templates: TemplateSet, fleet: Mapping[str, Any]) -> bool:
    """Return True if the fleet or its launch templates specify a capacity reservation."""
    definitions = [fleet, *(one for _, _, one in resources_of_type(templates, "AWS::EC2::LaunchTemplate"))]
    text = json.dumps([one.get("Properties") for one in definitions])
    return any(
        name in text for name in ("CapacityReservationTarget", "CapacityReservationIds", "ReservedCapacityOptions")
    )


def _market_type(templates: TemplateSet) -> str | None:
    for _, _, template in resources_of_type(templates, "AWS::EC2::LaunchTemplate"):
        options = mapping(launch_template_data(template).get("InstanceMarketOptions"))
        if "MarketType" in options:
            return str(options["MarketType"])
    return None


def _templates(templates: TemplateSet, stack_id: str, fleet: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each instance type with the logical id of its launch template, in order of preference."""
    exports, properties = Exports(templates), fleet.get("Properties", {})

    def template_of(value: Any) -> str:
        return next((one.logical_id for _, one in references(value, stack_id, exports) if not one.attribute), "")

    mixed = mapping(mapping(properties.get("MixedInstancesPolicy")).get("LaunchTemplate"))
    if mixed:
        common = template_of(mixed.get("LaunchTemplateSpecification"))
        for override in mappings(mixed.get("Overrides")):
            own = override.get("LaunchTemplateSpecification")
            yield text_of(override.get("InstanceType")), common if own is None else template_of(own)
        return
    if "LaunchTemplate" in properties:
        logical_id = template_of(properties["LaunchTemplate"])
        data = launch_template_data(templates[stack_id].resources.get(logical_id, {}))
        yield text_of(data.get("InstanceType", "")), logical_id
        return
    request = mapping(properties.get("SpotFleetRequestConfigData", properties))
    pools = [
        (
            number(override.get("Priority"), otherwise=0),
            text_of(override.get("InstanceType")),
            template_of(config.get("LaunchTemplateSpecification")),
        )
        for config in mappings(request.get("LaunchTemplateConfigs"))
        for override in mappings(config.get("Overrides"))
    ]
    yield from ((name, logical_id) for _, name, logical_id in sorted(pools, key=lambda pool: pool[0]))
