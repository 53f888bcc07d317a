"""The event schema, its page in docs/, and the log file."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path

import pytest

from bootstrap.__main__ import main
from bootstrap.events.log import EventLog
from bootstrap.events.schema import EVENTS, SCHEMA_VERSION, BootFailed, ElectionLost, Event
from bootstrap.system import System

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_matches_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events"]) == 0
    page = capsys.readouterr().out
    assert page == (ROOT / "docs" / "events.md").read_text(encoding="utf-8"), "run: python -m bootstrap events"
    for event in EVENTS:
        assert f"## `{event.event_name()}`\n" in page


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event_name())
def test_every_event_and_key_has_a_description(event: type[Event]) -> None:
    assert event.__doc__ and not event.__doc__.startswith(event.__name__ + "(")
    common = {"schema_version", "event", "unix_seconds", "instance_id"}
    for name, hint in typing.get_type_hints(event, include_extras=True).items():
        origin = typing.get_origin(hint)
        values_only = origin is typing.Literal or typing.Literal in map(typing.get_origin, typing.get_args(hint))
        assert name not in common and (origin is typing.Annotated or values_only), name


def test_names_of_events_are_unique_snake_case() -> None:
    names = [event.event_name() for event in EVENTS]
    assert len(set(names)) == len(names)
    assert ElectionLost.event_name() == "election_lost"


def test_every_key_is_written_and_the_version_with_it(tmp_path: Path) -> None:
    EventLog(System(), tmp_path / "events.jsonl").emit(BootFailed("code", "no", None, None, "", "retry"))
    record = json.loads((tmp_path / "events.jsonl").read_text())
    assert (record["schema_version"], record["event"], record["instance_id"]) == (
        SCHEMA_VERSION,
        "boot_failed",
        "unknown",
    )
    assert {each.name for each in dataclasses.fields(BootFailed)} <= set(record)
    assert record["command"] is None


def test_a_full_disk_does_not_end_the_process(tmp_path: Path) -> None:
    heard: list[typing.Any] = []
    events = EventLog(System(), tmp_path)  # a directory: cannot be opened for writing
    events.add_listener(heard.append)
    events.emit(ElectionLost(1, "lost", "none"))
    assert heard[0]["event"] == "election_lost"
