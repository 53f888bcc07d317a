from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bootstrap.errors import MetadataError, NoMetadataService
from bootstrap.imds import InstanceMetadata, parse_time
from bootstrap.system import HttpAnswer, System
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.metadata_server import MetadataServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    server = MetadataServer("i-1", "10.0.0.7")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint + "/")
    yield server
    server.close()


def test_identity_uses_one_token_for_all_requests(server: MetadataServer) -> None:
    identity = InstanceMetadata(System()).identity()
    assert (identity.instance_id, identity.instance_type, identity.private_address) == (
        "i-1",
        "c7i.2xlarge",
        "10.0.0.7",
    )
    assert (identity.market, identity.availability_zone, identity.auto_scaling_group) == ("spot", "us-east-1a", "fleet")
    assert server.tokens_given == 1


def test_on_demand_outside_a_group(server: MetadataServer) -> None:
    del server.paths["tags/instance/aws:autoscaling:groupName"]
    server.paths["instance-life-cycle"] = "on-demand"
    identity = InstanceMetadata(System()).identity()
    assert (identity.market, identity.auto_scaling_group) == ("on-demand", None)


def test_notice_recommendation_and_target_state(server: MetadataServer) -> None:
    metadata = InstanceMetadata(System())
    assert metadata.interruption_notice() is None
    assert metadata.rebalance_recommendation() is None
    assert metadata.target_lifecycle_state() is None
    server.paths["spot/instance-action"] = '{"action": "stop", "time": "2026-11-28T01:02:03Z"}'
    server.paths["events/recommendations/rebalance"] = '{"noticeTime": "2026-11-28T01:00:00Z"}'
    server.paths["autoscaling/target-lifecycle-state"] = "Terminated"
    notice = metadata.interruption_notice()
    assert notice is not None
    assert (notice.action, notice.reclaim_unix_seconds) == ("stop", 1795827723.0)
    assert metadata.rebalance_recommendation() == "2026-11-28T01:00:00Z"
    assert metadata.target_lifecycle_state() == "Terminated"


def test_the_launch_time_is_that_of_the_identity_document(server: MetadataServer) -> None:
    metadata = InstanceMetadata(System())
    assert metadata.launched_unix_seconds() is None
    document = "/dynamic/instance-identity/document"
    server.paths[document] = '{"pendingTime": "2026-11-28T01:02:03Z"}'
    assert metadata.launched_unix_seconds() == 1795827723.0
    for invalid in ("{", "[]", '{"pendingTime": 5}', '{"pendingTime": "soon"}', '{"version": "1"}', "[" * 60_000):
        server.paths[document] = invalid
        assert metadata.launched_unix_seconds() is None


def test_an_expired_token_is_renewed(server: MetadataServer) -> None:
    metadata = InstanceMetadata(System())
    assert metadata.get("instance-id") == "i-1"
    server.tokens.clear()
    assert metadata.get("instance-id") == "i-1"
    assert server.tokens_given == 2


def test_invalid_values_are_named(server: MetadataServer) -> None:
    server.paths["spot/instance-action"] = "soon"
    server.paths["local-ipv4"] = ""
    metadata = InstanceMetadata(System())
    with pytest.raises(MetadataError, match="spot/instance-action: 'soon'"):
        metadata.interruption_notice()
    with pytest.raises(MetadataError, match="local-ipv4: missing from instance metadata"):
        metadata.identity()


def test_a_missing_service_is_reported_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(NoMetadataService, match=r"127\.0\.0\.1:1/latest/api/token: no response after 3"):
        InstanceMetadata(System()).identity()
    assert time.monotonic() - started < 5


def test_server_errors_are_retried() -> None:
    system = FakeSystem()
    system.answers = [HttpAnswer(200, "token"), OSError("reset"), HttpAnswer(503, ""), HttpAnswer(200, "i-9\n")]
    assert InstanceMetadata(system).get("instance-id") == "i-9"
    assert system.requests[0] == ("PUT", "http://169.254.169.254/latest/api/token")
    assert 0 < system.slept < 2


def test_a_refusal_is_not_a_missing_value() -> None:
    system = FakeSystem()
    system.answers = [HttpAnswer(200, "token"), HttpAnswer(403, "disabled")]
    with pytest.raises(MetadataError, match="status 403: disabled"):
        InstanceMetadata(system).get("instance-id")


def test_time_is_utc() -> None:
    assert parse_time("1970-01-02T00:00:00Z") == 86400.0
