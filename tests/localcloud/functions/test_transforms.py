"""What targets receive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.functions.errors import InvalidTransform
from localcloud.functions.transforms import MISSING, resolve_path, target_input

RULE = "arn:aws:events:us-east-1:123456789012:rule/example"
EVENT = {
    "version": "0",
    "id": "7bf73129",
    "detail-type": "EC2 Instance State-change Notification",
    "source": "aws.ec2",
    "time": "2015-11-11T21:29:54Z",
    "resources": ["arn:aws:ec2:us-east-1:123456789012:instance/i-abcd1111"],
    "detail": {"instance-id": "i-0123456789", "state": "RUNNING", "tags": {"a b": 1}, "note": 'say "hi"'},
}


def given(target: dict[str, Any]) -> str:
    return target_input(target, EVENT, RULE, "2026-01-01T00:00:00Z")


def test_without_settings_the_event_itself_is_given() -> None:
    assert json.loads(given({})) == EVENT


def test_a_constant_replaces_the_event() -> None:
    assert given({"Input": '{"wake": true}'}) == '{"wake": true}'


def test_a_path_takes_a_part() -> None:
    assert json.loads(given({"InputPath": "$.detail"})) == EVENT["detail"]
    with pytest.raises(InvalidTransform, match=r"\$\.detail\.none"):
        given({"InputPath": "$.detail.none"})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", EVENT),
        ("$.detail-type", EVENT["detail-type"]),
        ("$.resources[0]", EVENT["resources"][0]),
        ("$.detail.tags['a b']", 1),
        ("$['detail']['state']", "RUNNING"),
        ("$.resources[4]", MISSING),
        ("$.source.deeper", MISSING),
    ],
)
def test_paths(path: str, value: Any) -> None:
    assert resolve_path(path, EVENT) == value


@pytest.mark.parametrize("path", ["detail", "$..state", "$.resources[*]", "$.a[b]"])
def test_a_path_of_another_form_is_refused(path: str) -> None:
    with pytest.raises(InvalidTransform, match="path"):
        resolve_path(path, EVENT)


def test_the_documentations_templates() -> None:
    paths = {
        "instance": "$.detail.instance-id",
        "status": "$.detail.state",
        "none": "$.detail.none",
        "tags": "$.detail.tags",
    }

    def fill(template: str) -> str:
        return given({"InputTransformer": {"InputPathsMap": paths, "InputTemplate": template}})

    assert fill('"instance <instance> is in <status>"') == '"instance i-0123456789 is in RUNNING"'
    assert json.loads(fill('{"instance": <instance>, "tags": <tags>}')) == {
        "instance": "i-0123456789",
        "tags": {"a b": 1},
    }
    assert json.loads(fill('{"a": "<none>", "b": <none>}')) == {"a": "", "b": None}
    assert json.loads(fill('{"rule": <aws.events.rule-name>, "whole": <aws.events.event.json>}')) == {
        "rule": "example",
        "whole": EVENT,
    }
    assert "detail" not in json.loads(fill('{"event": <aws.events.event>}'))["event"]
    with pytest.raises(InvalidTransform, match="<unknown> is not in InputPathsMap"):
        fill('{"a": <unknown>}')
    with pytest.raises(InvalidTransform, match="no valid JSON"):
        fill('{"a": <instance> <status>}')


def test_text_put_into_a_string_is_escaped() -> None:
    transformer = {"InputPathsMap": {"note": "$.detail.note"}, "InputTemplate": '{"text": "they <note>"}'}
    assert json.loads(given({"InputTransformer": transformer})) == {"text": 'they say "hi"'}
