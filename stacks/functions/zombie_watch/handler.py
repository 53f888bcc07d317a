"""The Lambda handler of the daily search. It prints one JSON line for the alarm's metric filter, and deletes nothing.

If some resources could not be examined, the line names them, and the invocation fails after it, which raises an alarm.
The function reports the zombies of all slots of its own deployment, and those of deployments without an
ObservabilityStack, which have no such function.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Container, Mapping
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from .search import NotExamined, Search, Zombie, heartbeats
from .stack_names import deployments

MAX_LISTED = 50
_BOUNDED = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})


class IncompleteSearch(Exception):
    """Some resources could not be examined."""


@cache
def _client(service: str) -> Any:
    return boto3.client(service, config=_BOUNDED)


def handler(_: Mapping[str, Any], context: object) -> None:
    """Search the function's region, and print the number of zombies and their names.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the list of stacks. An alarm reports the failed invocation.
        IncompleteSearch: Some resources could not be examined. The other resources' line has been printed.
    """
    own = os.environ["DEPLOYMENT"]
    parameters: dict[str, str] = json.loads(os.environ["RUN_PARAMETERS"])
    for service in ("cloudformation", "ec2", "fsx", "s3", "ssm"):  # boto3 clients must be created in a single thread
        _client(service)
    stacks = deployments(_client)

    def heard(deployment: str) -> Mapping[str, float] | None:
        return _heartbeats(deployment, parameters[deployment]) if deployment in parameters else None

    search = Search(_client, os.environ["AWS_REGION"], stacks, time.time(), heard, lambda *_: None)
    findings = search.run()
    found = [each for each in findings.zombies if is_reported(each, parameters, stacks)]
    names = [f"{each.kind} {each.id} of {each.deployment}: {each.reason}" for each in found[:MAX_LISTED]]
    gaps = [str(each) for each in findings.gaps]
    line = {"event": "zombies", "deployment": own, "found": len(found), "resources": names, "not_examined": gaps}
    print(json.dumps(line), flush=True)
    if gaps:
        raise IncompleteSearch("; ".join(gaps))


def is_reported(zombie: Zombie, fleets: Container[str], stacks: Mapping[str, frozenset[str]]) -> bool:
    """Return True if the function of the deployment with these fleets reports a zombie."""
    return zombie.deployment in fleets or "ObservabilityStack" not in stacks.get(zombie.deployment, ())


def _heartbeats(fleet: str, name: str) -> Mapping[str, float]:
    """Return the times of the heartbeats of a fleet's instances. Without a run, its instances have no heartbeats.

    Raises:
        NotExamined: The run parameter does not contain a run document, or the first slot's does not exist.
    """
    answer = _client("ssm").get_parameters(Names=[name])
    may_be_missing = fleet != os.environ["DEPLOYMENT"] or os.environ.get("RUN_MAY_BE_MISSING") == "true"
    if not answer["Parameters"] and may_be_missing:
        return {}
    if not answer["Parameters"]:
        raise NotExamined(f"{name}: the parameter does not exist; deploy again")
    try:
        run = str(json.loads(answer["Parameters"][0]["Value"])["run"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotExamined(f"{name}: does not contain a run document ({error!r}); deploy it again") from error
    return heartbeats(_client("s3"), os.environ["CONTROL_BUCKET"], f"runs/{fleet}/{run}/control/")
