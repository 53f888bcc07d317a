"""Resources that cost money without a run: their search in a region with prices, and their deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.documents.object_keys import control_prefix
from stacks.capacity.catalogue import Purchase, catalogue
from stacks.changes.effects.fixed_costs import HOURS_PER_MONTH, USD_PER_MONTH
from stacks.functions.zombie_watch import search as searching
from stacks.functions.zombie_watch.search import Findings, Gap, NotExamined, Search, Zombie, joined
from stacks.functions.zombie_watch.stack_names import deployments, slots_by_deployment
from trainstack.account import Clients, NotDeployed, find, run_document
from trainstack.zombies.stored import stored

SERVICES = (*searching.SERVICES, "s3", "ssm", "sts")
"""The services that a search calls."""
_TYPES = {
    "volume": "AWS::EC2::Volume",
    "file system": "AWS::FSx::FileSystem",
    "Elastic IP address": "AWS::EC2::EIP",
    "VPC endpoint": "AWS::EC2::VPCEndpoint",
    "NAT gateway": "AWS::EC2::NatGateway",
}


def search(client: Clients, region: str, now_unix_seconds: float) -> Findings:
    """Return the region's resources without a run, grouped by kind. The clients of SERVICES must already exist.

    Without the list of the region's stacks, nothing can be examined.
    """
    try:
        known = deployments(client)
    except (ClientError, BotoCoreError) as error:
        return Findings((), (Gap("all resources", str(error)),))

    def heartbeats(deployment: str) -> Mapping[str, float]:
        problems: list[str] = []
        try:
            found = find(client, deployment)
        except NotDeployed as error:
            raise NotExamined(str(error)) from error
        run = run_document(client, found, problems)
        if run is None and not problems:  # a slot without a run
            return {}
        if run is None:
            raise NotExamined("; ".join(problems))
        return searching.heartbeats(client("s3"), found.control_bucket, control_prefix(found.name, run.run))

    def prices(kind: str, resource: Mapping[str, Any]) -> float | None:
        return usd_per_month(region, kind, resource)

    running = {owner: slots for owner, slots in slots_by_deployment(known).items() if "StorageStack" in known[owner]}
    found = Search(client, region, known, now_unix_seconds, heartbeats, prices).run()
    return joined([found, stored(client, region, running, now_unix_seconds)])


def usd_per_month(region: str, kind: str, resource: Mapping[str, Any]) -> float | None:
    """Return the monthly price of a resource as EC2 or FSx describes it, or None if it is not known."""
    if kind in _TYPES:
        return USD_PER_MONTH[_TYPES[kind]][1](resource)
    if kind not in ("instance", "capacity reservation"):
        return None
    purchase: Purchase = "spot" if resource.get("InstanceLifecycle") == "spot" else "on_demand"
    hourly = catalogue().usd_per_hour(region, resource["InstanceType"], purchase)
    return None if hourly is None else hourly * resource.get("TotalInstanceCount", 1) * HOURS_PER_MONTH


def can_end(zombie: Zombie, *, data: bool) -> bool:
    """Return True if a call deletes the resource. One with data is only deleted with `data`."""
    return zombie.deletion is not None and (data or not zombie.has_data)


def end(client: Clients, chosen: Iterable[Zombie], now: Iterable[Zombie]) -> list[tuple[Zombie, str]]:
    """Delete the chosen resources, and return each one with the reason why it was not deleted, or an empty string.

    Args:
        client: Clients of SERVICES.
        chosen: The resources to delete.
        now: The result of a new search: a resource that it does not contain remains.
    """
    current = {(each.kind, each.id) for each in now}
    found = []
    for each in chosen:
        problem = ""
        if each.deletion is None:
            problem = each.remedy
        elif (each.kind, each.id) not in current:
            problem = "it is in use again, has ended, or could not be examined again"
        else:
            try:
                answer = getattr(client(each.deletion.service), each.deletion.method)(**each.deletion.arguments)
                failed = answer.get("Unsuccessful") or []  # DeleteVpcEndpoints does not raise an error
                problem = "; ".join(str(one.get("Error", one)) for one in failed)
            except (ClientError, BotoCoreError) as error:
                problem = str(error)
        found.append((each, problem))
    return found
