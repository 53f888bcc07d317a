"""Evaluates alarms once per minute, and notifies their topics when they change state.

Tests can move the alarms' clock forward to test alarms with long periods.
Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/acw-notification-sns.html (2026-11).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from moto.cloudwatch.models import Alarm

from localcloud.api import ApiError, Call, Clients, Handler, Service
from localcloud.control_loop import ControlLoop
from localcloud.events.targets import TargetRefused, send_to_topic
from localcloud.journal import RecordLog
from localcloud.monitoring.alarms import ALARM, INSUFFICIENT_DATA, OK, UnsupportedAlarm, evaluation_of
from localcloud.monitoring.metric_data import backend

_logger = logging.getLogger(__name__)
EVALUATION_SECONDS = 60
SERVICE = "cloudwatch.amazonaws.com"


class AlarmService(Service):
    """Updates the states and performs the actions of the alarms that moto stores."""

    name = "cloudwatch"

    def __init__(self, clients: Clients, records: RecordLog, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._records = records
        self._clock = clock
        self._ahead_seconds = 0.0
        self._loop = ControlLoop("alarms", self._alarms, self._evaluate, self._seconds_to_next)
        self._loop.start()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {"PutMetricAlarm": self._put}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Handle `POST clock {ahead_seconds}`, which moves the alarms' clock forward and evaluates all alarms."""
        if (method, path) != ("POST", "clock"):
            return 404, b""
        ahead_seconds = json.loads(body or b"{}").get("ahead_seconds")
        if not isinstance(ahead_seconds, (int, float)) or ahead_seconds < self._ahead_seconds:
            rule = (
                f"ahead_seconds must be a number of at least {self._ahead_seconds:g}, because the clock cannot go back"
            )
            return 400, json.dumps({"error": rule}).encode()
        self._ahead_seconds = float(ahead_seconds)
        for alarm in self._alarms():
            self._evaluate(alarm)
        return 200, json.dumps({alarm.name: alarm.state_value for alarm in self._alarms()}).encode()

    def close(self) -> None:
        """Stop the evaluation."""
        self._loop.close()

    def _put(self, call: Call) -> Mapping[str, Any]:
        store = backend(self._clients.account, call.region)
        name = str(call.parameters["AlarmName"])
        before = store.alarms.get(name)
        self._clients.direct("cloudwatch", region=call.region).put_metric_alarm(**call.parameters)
        alarm = store.alarms[name]
        try:
            evaluation_of(alarm)
        except UnsupportedAlarm as error:
            if before is None:
                del store.alarms[name]
            else:
                store.alarms[name] = before
            raise ApiError("ValidationError", str(error)) from error
        if before is None:  # moto creates alarms in state OK
            alarm.state_value = INSUFFICIENT_DATA
        else:
            alarm.state_value, alarm.state_reason = before.state_value, before.state_reason
        return {}

    def _alarms(self) -> list[Alarm]:
        return list(backend(self._clients.account, self._clients.region).alarms.values())

    def _now(self) -> float:
        return self._clock() + self._ahead_seconds

    def _seconds_to_next(self) -> float:
        return EVALUATION_SECONDS - self._now() % EVALUATION_SECONDS

    def _evaluate(self, alarm: Alarm) -> None:
        """Evaluate the periods before the current minute."""
        end = self._now() // EVALUATION_SECONDS * EVALUATION_SECONDS
        store = backend(self._clients.account, self._clients.region)
        found = evaluation_of(alarm).state(list(store.metric_data), end)
        if found is None or found == alarm.state_value:
            return
        old = alarm.state_value
        when = datetime.fromtimestamp(end, UTC)
        alarm.update_state(f"Evaluated {alarm.evaluation_periods} periods before {when:%H:%M} UTC", "{}", found)
        self._records.append("alarm_state", alarm=alarm.name, old=old, new=found)
        if alarm.actions_enabled:
            self._notify(alarm, old, when)

    def _notify(self, alarm: Alarm, old: str, when: datetime) -> None:
        message = {
            "AlarmName": alarm.name,
            "AlarmDescription": alarm.description,
            "AWSAccountId": self._clients.account,
            "NewStateValue": alarm.state_value,
            "NewStateReason": alarm.state_reason,
            "StateChangeTime": when.strftime("%Y-%m-%dT%H:%M:%S.000+0000"),
            "Region": self._clients.region,
            "AlarmArn": alarm.alarm_arn,
            "OldStateValue": old,
        }
        actions = {
            ALARM: alarm.alarm_actions, OK: alarm.ok_actions, INSUFFICIENT_DATA: alarm.insufficient_data_actions,
        }  # fmt: skip
        for action in actions[alarm.state_value]:
            try:
                if not action.startswith("arn:aws:sns:"):
                    raise TargetRefused(f"{action}: only notifications of SNS topics are emulated")
                send_to_topic(self._clients, action, json.dumps(message), SERVICE, alarm.alarm_arn)
            except (TargetRefused, ClientError, BotoCoreError) as error:
                self._records.append("alarm_action_refused", alarm=alarm.name, action=action, reason=str(error))
                _logger.error("%s: %s", alarm.name, error)
