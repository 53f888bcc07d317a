"""The run controller's Lambda handler.

The handler observes the run and the fleet, calls `policy`, applies the returned actions, and stores the state. It does
not make decisions itself. It is invoked by changes to the run document, spot interruption warnings, fleet events, the
outcome of a run, the upload of a dataset, and a one-minute schedule. The event's type matters only for interruption
warnings, which name the instance, and for retry requests.

The stored state is written before the actions are applied, on the condition that no other invocation has written it
since it was read. If an action was not applied, the next invocation decides again.

Nodes can write the objects that the handler reads. If an object is invalid, the log record names it under `set_aside`,
and the step continues without it. `records` defines the rules.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError

from . import policy, records
from .environment import Environment
from .events import interrupted_instances, is_retry_requested
from .fleet_clients import Fleet, connect
from .ledger.keeper import Keeper, LedgerTaken
from .market.prices import Prices, SpotPrices
from .market.scores import PlacementScores, Scores, is_due
from .parameters import read_run, read_stop
from .spending import Spending

LAUNCH_FAILURE_SECONDS = 3600.0
"""Maximum age of failed launches that explain why a run has too few nodes."""
ATTEMPTS = 3
"""Maximum steps per invocation if other invocations write the state, and maximum updates of the ledger per step."""
DATASET_INDEX = "dataset.json"
MAX_PAGES = 10
"""Maximum pages (of 1,000 keys) in a heartbeat listing. Beyond them, the fleet's instances are looked up by name."""
MISSING_OBJECT = ("NoSuchKey", "404")
_REPORT_CHARACTERS = 2000  # the report is logged and kept in the stored state
_USER_DATA_LOG = "shim.log"
_BOUNDED = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})


T = TypeVar("T")


class Ledger(Protocol):
    """Records the instances' costs."""

    def look(self, events: Iterable[Mapping[str, Any]], run: str, now_unix_seconds: float) -> Spending:
        """Update the ledger, and return the run's costs so far."""


class StateTaken(Exception):
    """Another invocation has written the state since this one read it."""


@dataclass(frozen=True)
class StoredState:
    """The state that an invocation has read, with the object's ETag, or None if the object does not exist."""

    state: policy.ControllerState
    etag: str | None


class Controller:
    """Performs control steps: observe, decide and apply."""

    def __init__(
        self,
        environment: Environment,
        *,
        fleet: Fleet,
        ssm: Any,
        s3: Any,
        ledger: Ledger,
        prices: Prices,
        scores: Scores,
    ) -> None:
        self._environment = environment
        self._bucket = environment.control_bucket
        self._fleet = fleet
        self._ssm = ssm
        self._s3 = s3
        self._ledger = ledger
        self._prices = prices
        self._scores = scores
        self._set_aside: list[dict[str, str]] = []

    def step(self, events: Sequence[Mapping[str, Any]], now_unix_seconds: float) -> dict[str, Any]:
        """Observe, decide, store the state and apply the actions. Return a record for the log.

        Raises:
            StateTaken: Another invocation wrote the state during this step. No action was applied.
            UnreadableRunDocument: The run parameter does not contain a run document.
            UnreadableDesiredState: The parameter with the desired state is invalid.
            botocore.exceptions.ClientError: AWS rejected a call. The events are delivered again.
        """
        self._set_aside = []
        fleet = self._fleet.describe()
        if fleet is None:  # the schedule is still active while the stack is being deleted
            reason = f"fleet {self._environment.fleet.fleet_id} does not exist"
            return {"event": "run_controller", "nodes": 0, "reason": reason, "actions": []}
        run, stop = self._parameters()
        stored = self._load_state(run, fleet, now_unix_seconds)
        spending, problem = self._spending(events, run, now_unix_seconds)
        situation = self._situation(events, now_unix_seconds, run, fleet, stored.state, stop)
        needs_prices = not fleet.instances or situation.settings.follows_progress
        usd_per_hour, prices_problem = self._prices.now(now_unix_seconds) if needs_prices else ({}, None)
        situation, scores_problem = self._scored(situation)
        decision = policy.decide(dataclasses.replace(situation, spending=spending, usd_per_hour=usd_per_hour))
        state = decision.state
        if run is not None and (decision.actions or state != stored.state):
            self._save_state(run, state, stored.etag)
        needless = []
        for action in decision.actions:
            if isinstance(action, policy.LiftOutcome):
                self._lift_outcome(run)
            elif reason := self._fleet.apply(action):
                needless.append(reason)
        return {
            "event": "run_controller",
            "triggers": sorted({str(event.get("detail-type", "unknown")) for event in events}),
            "nodes": len(fleet.instances),
            "phase": state.phase,
            "cause": state.cause or None,
            "reason": state.explanation(),
            "spending": None if spending is None else dataclasses.asdict(spending),
            "ledger": "updated" if problem is None else "failed",
            "ledger_problem": problem,
            "prices_problem": prices_problem,
            "scores_problem": scores_problem,
            "deadline": None if state.outlook is None else dataclasses.asdict(state.outlook),
            "ranking": [dataclasses.asdict(each) for each in decision.ranking],
            "set_aside": self._set_aside,
            "actions": [{type(action).__name__: dataclasses.asdict(action)} for action in decision.actions],
            "needless": needless,
        }

    def _scored(self, situation: policy.Situation) -> tuple[policy.Situation, str | None]:
        """Return the situation with current placement scores, which only the start of an attempt needs."""
        run, state, now = situation.run, situation.state, situation.now_unix_seconds
        if run is None or situation.fleet.instances or not is_due(situation.settings, state, now):
            return situation, None
        scores, problem = self._scores.now(run.nodes)
        state = dataclasses.replace(state, scores=scores, scored_unix_seconds=now)
        return dataclasses.replace(situation, state=state), problem

    def _spending(
        self, events: Sequence[Mapping[str, Any]], run: policy.Run | None, now_unix_seconds: float
    ) -> tuple[Spending | None, str | None]:
        """Return the run's costs so far, or None and the problem. Ledger errors must not prevent a resize.

        A rejected call is repeated, because only this step's events contain the exact times of ends.
        """
        name, limits, problem = "" if run is None else run.name, self._environment.settings.limits, ""
        for _ in range(ATTEMPTS):
            try:
                spent = self._ledger.look(events, name, now_unix_seconds)
                return dataclasses.replace(
                    spent, limit_usd=limits.usd or 0.0, limit_run_hours=limits.run_hours or 0.0
                ), None
            except (ClientError, LedgerTaken) as error:
                problem = repr(error)
            except (BotoCoreError, records.InvalidRecord) as error:  # a timeout has used this step's time
                problem = repr(error)
                break
        return None, f"cannot update the ledger, so the limits use the last known costs: {problem}"

    def _situation(
        self,
        events: Sequence[Mapping[str, Any]],
        now_unix_seconds: float,
        run: policy.Run | None,
        fleet: policy.FleetState,
        state: policy.ControllerState,
        stop: str,
    ) -> policy.Situation:
        outcome = self._outcome(run)
        retry_requested = is_retry_requested(events)
        has_ended = run is not None and outcome is not None and outcome.run_digest == run.digest
        is_over = run is None or bool(stop) or (has_ended and not retry_requested)
        is_short = not is_over and run is not None and len(fleet.in_service()) < run.nodes
        is_leaving = state.outlook is not None and state.outlook.is_leaving
        settings = self._environment.settings
        since = now_unix_seconds - LAUNCH_FAILURE_SECONDS
        return policy.Situation(
            now_unix_seconds=now_unix_seconds,
            settings=settings,
            run=run,
            outcome=outcome,
            fleet=fleet,
            heard_from=self._heard_from(run, {item.instance_id for item in fleet.instances} | set(state.booting)),
            interrupted=interrupted_instances(events),
            state=state,
            failures=self._failures(policy.vanished(state, fleet)),
            launch_failures=self._fleet.launch_failures(since) if is_short or is_leaving else (),
            missing_dataset=self._missing_dataset(run) if is_short else "",
            retry_requested=retry_requested,
            stop=stop,
            progress=self._read(run, "status.json", records.progress_of) if settings.follows_progress else None,
        )

    def _parameters(self) -> tuple[policy.Run | None, str]:
        """Return the run (None if its parameter does not exist), and the reason why an operator stopped it (or "")."""
        run, desired = self._environment.run_parameter, self._environment.desired_parameter
        answer = self._ssm.get_parameters(Names=[run, desired])
        texts = {each["Name"]: each["Value"] for each in answer["Parameters"]}
        return (
            read_run(texts[run]) if run in texts else None,
            read_stop(texts[desired]) if desired in texts else "",
        )

    def _outcome(self, run: policy.Run | None) -> policy.Outcome | None:
        return self._read(run, "outcome.json", records.outcome_of)

    def _lift_outcome(self, run: policy.Run | None) -> None:
        if run is not None:
            key = f"{records.control_prefix(self._environment.deployment, run.name)}outcome.json"
            self._s3.delete_object(Bucket=self._bucket, Key=key)

    def _missing_dataset(self, run: policy.Run | None) -> str:
        """Return the URL of the run's dataset if the bucket should contain it but does not."""
        bucket = self._environment.dataset_bucket
        if run is None or run.dataset is None or not bucket:
            return ""
        key = f"datasets/{run.dataset}/{DATASET_INDEX}"
        try:
            self._s3.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING_OBJECT:
                raise
            return f"s3://{bucket}/{key}"
        return ""

    def _load_state(self, run: policy.Run | None, fleet: policy.FleetState, now_unix_seconds: float) -> StoredState:
        """Return the stored state. An invalid state is set aside, and the next failed boot then stops the fleet."""
        if run is None:
            return StoredState(policy.ControllerState(), None)
        key = records.state_key(self._environment.deployment, run.name)
        try:
            content, etag = self._content(key)
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING_OBJECT:
                raise
            return StoredState(policy.ControllerState(), None)
        try:
            return StoredState(records.state_of(records.json_object(content), now_unix_seconds), etag)
        except records.InvalidRecord as error:
            self._put_aside(key, str(error))
            return StoredState(policy.recovered_state(run, fleet, self._environment.settings), etag)

    def _heard_from(self, run: policy.Run | None, instances: Iterable[str]) -> frozenset[str]:
        """Return the instances that have a heartbeat. If the listing is too long, check only `instances`."""
        if run is None:
            return frozenset()
        prefix = f"{records.control_prefix(self._environment.deployment, run.name)}heartbeats/"
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        heard: set[str] = set()
        for number, page in enumerate(pages, 1):
            # The names are user ids: <role id>:<instance id>.
            names = (item["Key"].removesuffix(".json") for item in page.get("Contents", []))
            heard.update(name.rpartition(":")[2] for name in names)
            if number == MAX_PAGES and page.get("IsTruncated"):
                self._put_aside(prefix, f"more than {MAX_PAGES} pages of objects; only the fleet's heartbeats are read")
                return frozenset(name for name in instances if self._exists(f"{prefix}{self._user_id(name)}.json"))
        return frozenset(heard)

    def _user_id(self, instance_id: str) -> str:
        return f"{self._environment.node_role_id}:{instance_id}"

    def _exists(self, key: str) -> bool:
        listed = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1).get("Contents", [])
        return any(item["Key"] == key for item in listed)

    def _failures(self, instances: Iterable[str]) -> dict[str, str]:
        """Return reports from instances that disappeared while booting. Unreadable reports do not stop the step."""
        failures: dict[str, str] = {}
        for instance_id in instances:
            prefix = f"nodes/{self._user_id(instance_id)}/"
            try:
                listed = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix).get("Contents", [])
                reports = [item for item in listed if item["Key"].endswith("-failure.json")]
                if not reports:
                    if any(item["Key"] == f"{prefix}{_USER_DATA_LOG}" for item in listed):
                        failures[instance_id] = self._user_data_failure(f"{prefix}{_USER_DATA_LOG}")
                    continue
                key = max(reports, key=lambda item: item["LastModified"])["Key"]
                report = records.json_object(self._content(key)[0])
                step, message, remedy = (records.text_of(report, name) for name in ("step", "message", "remedy"))
                text = f"{step}: {message}. Remedy: {remedy}"[:_REPORT_CHARACTERS]
                failures[instance_id] = f"{text} (s3://{self._bucket}/{key})"
            except (ClientError, BotoCoreError, records.InvalidRecord) as error:
                failures[instance_id] = f"s3://{self._bucket}/{prefix}: cannot read the report ({error!r})"
        return failures

    def _user_data_failure(self, key: str) -> str:
        """Return the last lines of the log of an instance whose user data failed before the node program started."""
        lines = self._content(key)[0].decode(errors="replace").splitlines()
        text = " / ".join(line for line in lines if line.strip())[-_REPORT_CHARACTERS:]
        return f"user data: {text} (s3://{self._bucket}/{key})"

    def _read(self, run: policy.Run | None, name: str, decode: Callable[[dict[str, Any]], T]) -> T | None:
        """Return a control record, or None if it does not exist or is invalid."""
        if run is None:
            return None
        key = records.control_prefix(self._environment.deployment, run.name) + name
        try:
            return decode(records.json_object(self._content(key)[0]))
        except ClientError as error:
            if error.response["Error"]["Code"] in MISSING_OBJECT:
                return None
            raise
        except records.InvalidRecord as error:
            self._put_aside(key, str(error))
            return None

    def _content(self, key: str) -> tuple[bytes, str]:
        """Return an object's bytes (at most one more than the size limit for records) and its ETag.

        Raises:
            IncompleteReadError: The connection was closed early.
        """
        response = self._s3.get_object(Bucket=self._bucket, Key=key)
        content: bytes = response["Body"].read(records.MAX_RECORD_BYTES + 1)
        expected = min(response["ContentLength"], records.MAX_RECORD_BYTES + 1)
        if len(content) < expected:  # the object may be valid: the next invocation reads it again
            raise IncompleteReadError(actual_bytes=len(content), expected_bytes=expected)
        return content, response["ETag"]

    def _put_aside(self, key: str, reason: str) -> None:
        self._set_aside.append({"url": f"s3://{self._bucket}/{key}", "reason": reason})

    def _save_state(self, run: policy.Run, state: policy.ControllerState, etag: str | None) -> None:
        """Store the state only if the stored state still has the given ETag or, with None, still does not exist.

        Source for the errors (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        key = records.state_key(self._environment.deployment, run.name)
        body = json.dumps(dataclasses.asdict(state), sort_keys=True).encode()
        try:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict", *MISSING_OBJECT):
                raise StateTaken(key) from error
            raise


def _client(service: str) -> Any:
    return boto3.client(service, config=_BOUNDED)


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Run one control step for all events in a batch. Errors propagate so that the events are delivered again."""
    environment = Environment.of(os.environ)
    s3 = _client("s3")
    ledger = Keeper(
        environment.deployment,
        environment.fleet,
        environment.on_demand_prices,
        s3=s3,
        bucket=environment.control_bucket,
        client=_client,
    )
    fleet = connect(environment.fleet, _client)
    prices = SpotPrices(environment.settings, _client)
    scores = PlacementScores(environment.settings, _client)
    controller = Controller(
        environment, fleet=fleet, ssm=_client("ssm"), s3=s3, ledger=ledger, prices=prices, scores=scores
    )
    record = run_step(controller, [json.loads(record["body"]) for record in event["Records"]])
    # A metric filter parses this line, so it must bypass Lambda's logger, which would add a prefix to the JSON.
    print(json.dumps(record), flush=True)
    return record


def run_step(controller: Controller, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Run a control step, and repeat it with the new state if another invocation has written the state.

    Raises:
        StateTaken: Other invocations wrote the state during each attempt. The events are delivered again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return controller.step(events, time.time())
        except StateTaken:
            continue
    return controller.step(events, time.time())
