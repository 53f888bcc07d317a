"""The commands against the embedded cloud, with the permissions of the reader policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bootstrap.documents.desired_state import RUNNING
from bootstrap.documents.object_keys import control_prefix, results_prefix
from bootstrap.supervise.membership.records import to_text
from localcloud.cloud import LocalCloud
from localcloud.iam.identity import ROOT_ACCESS_KEY_ID
from stacks.functions.run_controller.records import state_key
from tests.localcloud.core.conftest import as_role, make_role
from tests.trainstack.stacks import create_stack
from tests.trainstack.test_status import REPORT, RUN
from trainstack.account import NotDeployed, find, find_all, observe, run_document, slots
from trainstack.observe.tensorboard import Copied, Copy
from trainstack.operate import desired
from trainstack.operate.slots import occupancy, start
from trainstack.reader_policy import model_statements, operator_policy, reader_policy

ROOT = Path(__file__).parents[2]
REGION = "us-east-1"
MAX_CALLS = 6
EVENTS = "tensorboard/events.out.tfevents.1.node.2.0"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud"), region=REGION)
    running.start()
    for name in ("demo", "other"):
        deploy(running, name)
    yield running
    running.close()


def deploy(cloud: LocalCloud, name: str) -> None:
    """Create a stack with the outputs of a TrainingStack, and its records."""
    bucket, parameter = f"{name}-control", f"/trainstack/{name}/run"
    s3, client = cloud.clients.client("s3"), cloud.clients.client
    s3.create_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=f"{name}-checkpoints")
    outputs = {"FleetId": "trainstack-" + name, "LogGroup": f"/trainstack/{name}", "RunParameter": parameter}
    log = {"Log": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": outputs["LogGroup"]}}}
    create_stack(client("cloudformation"), f"{name}-TrainingStack", outputs, log)
    create_stack(
        client("cloudformation"),
        f"{name}-StorageStack",
        {"CheckpointBucket": f"{name}-checkpoints", "ControlBucket": bucket, "DatasetBucket": f"{name}-datasets"},
    )
    client("ssm").put_parameter(Name=parameter, Type="String", Value=json.dumps(RUN.to_json()))
    put(cloud, name, "status.json", to_text(REPORT))
    state = {"run_digest": RUN.digest(), "phase": "waiting", "reason": "no capacity in 2 attempts"}
    put(cloud, name, "controller.json", json.dumps(state))
    logs = client("logs")
    logs.create_log_stream(logGroupName=outputs["LogGroup"], logStreamName="i-1")
    entry = {"timestamp": int(time.time() * 1000), "message": json.dumps({"event": "node_leaving", "reason": "notice"})}
    logs.put_log_events(logGroupName=outputs["LogGroup"], logStreamName="i-1", logEvents=[entry])


def put(cloud: LocalCloud, name: str, record: str, text: str) -> None:
    key = state_key(name, RUN.run) if record == "controller.json" else control_prefix(name, RUN.run) + record
    cloud.clients.client("s3").put_object(Bucket=f"{name}-control", Key=key, Body=text.encode())


def run(cloud: LocalCloud, *arguments: str) -> subprocess.CompletedProcess[str]:
    keys = {
        "AWS_ENDPOINT_URL": cloud.endpoint_url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ROOT_ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": cloud.identity.root_secret,
        "NO_COLOR": "1",
    }
    command = [sys.executable, "-m", "trainstack", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **keys}, capture_output=True, text=True, timeout=120)


def test_status_and_why(cloud: LocalCloud) -> None:
    done = run(cloud, "status", "demo", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["run"], found["phase"], found["step"], found["nodes"]) == ("first", "waiting", 250, [])
    assert found["controller_age_seconds"] >= 0
    done = run(cloud, "why", "demo")
    assert done.stdout.startswith("waiting: No capacity in 2 attempts."), done.stderr


def test_runs_and_events(cloud: LocalCloud) -> None:
    done = run(cloud, "runs")
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["demo", "other"], done.stderr
    done = run(cloud, "events", "demo", "--since", "5m")
    assert "node_leaving       reason=notice" in done.stdout, done.stderr


def test_metrics_and_tensorboard(cloud: LocalCloud, tmp_path: Path) -> None:
    client, now = cloud.clients.client, time.time()
    records = [{"record": "step", "step": step, "loss": 4.0 - step / 10, "tokens_per_second": 1e5} for step in (10, 20)]
    events: list[dict[str, Any]] = [{"event": "trainer", "record": record} for record in records]
    events.append({"event": "gpu_use", "gpu_utilization_percent": 91.5})
    entries = [{"timestamp": int(now * 1000), "message": json.dumps({"unix_seconds": now, **each})} for each in events]
    client("logs").put_log_events(logGroupName="/trainstack/demo", logStreamName="i-1", logEvents=entries)
    done = run(cloud, "metrics", "demo", "--json")
    found = json.loads(done.stdout)
    assert [(one["step"], one["loss"]) for one in found["steps"]] == [(10, 3.0), (20, 2.0)], done.stderr
    assert [use for _, use in found["gpu_use"]] == [91.5]
    done = run(cloud, "metrics", "demo", "--plot")
    assert "loss by step: 2" in done.stdout and "throughput by step: 100,000 tokens/s" in done.stdout, done.stderr
    assert "2.0000" in run(cloud, "metrics", "demo").stdout
    done = run(cloud, "metrics", "other")
    assert done.returncode == 3 and "--since" in done.stderr

    options = ("tensorboard", "other", "--no-follow", "--directory", str(tmp_path))
    done = run(cloud, *options)
    assert done.returncode == 3 and "observation.tensorboard: true" in done.stderr
    key = f"{results_prefix('other', RUN.run)}gen-2/node-0/{EVENTS}"
    client("s3").put_object(Bucket="other-checkpoints", Key=key, Body=b"events")
    done = run(cloud, *options)
    assert done.returncode == 0 and "event files: 1, new bytes: 6" in done.stderr, done.stderr
    assert (tmp_path / "gen-2" / "node-0" / EVENTS).read_bytes() == b"events"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("status", "absent"), 3, "no stack absent-TrainingStack"),
        (("events", "demo", "--since", "soon"), 2, "must be a number with the unit"),
        (("events", "demo", "--since", "nand"), 2, "must be a number with the unit"),
        (("ssh", "demo", "7"), 3, "matches no live instance"),
        (("--local", "--state", "/nonexistent", "runs"), 1, "no cloud is running"),
    ],
)
def test_mistakes_are_explained(cloud: LocalCloud, arguments: tuple[str, ...], code: int, text: str) -> None:
    done = run(cloud, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr and "Traceback" not in done.stderr


def test_the_reader_policy_suffices_and_excludes_other_deployments(cloud: LocalCloud) -> None:
    client = cloud.clients.client
    policy = reader_policy(find(client, "demo"), REGION, cloud.clients.account)
    arn = make_role(cloud, "reader", *policy["Statement"])
    calls: list[str] = []
    reader = counting(lambda service: as_role(cloud, arn, service), calls)
    seen = observe(reader, find(reader, "demo"), time.time())
    assert seen.problems == () and seen.status == REPORT
    assert len(calls) <= MAX_CALLS, calls
    logs = reader("logs")
    assert logs.filter_log_events(logGroupName="/trainstack/demo")["events"]
    with pytest.raises(logs.exceptions.ClientError, match="not authorized"):
        find(reader, "other")
    with pytest.raises(logs.exceptions.ClientError, match="AccessDenied|not authorized"):
        logs.filter_log_events(logGroupName="/trainstack/other")


def test_the_statements_for_models_allow_checkpoints_and_datasets_only(cloud: LocalCloud) -> None:
    found, root = find(cloud.clients.client, "demo"), cloud.clients.client("s3")
    root.create_bucket(Bucket=found.dataset_bucket)
    checkpoint, dataset = "runs/demo/one/checkpoints/log/1", "datasets/text/dataset.json"
    for bucket, key in (
        (found.checkpoint_bucket, checkpoint),
        (found.checkpoint_bucket, "runs/demo/one/results/gen-1/node-0/trainer.log"),
        (found.dataset_bucket, dataset),
        (found.dataset_bucket, "raw/text/a.txt"),
    ):
        root.put_object(Bucket=bucket, Key=key, Body=b"x")
    policy = reader_policy(found, REGION, cloud.clients.account)
    denied = "AccessDenied|Forbidden|403|not authorized"
    for name, statements, allowed in (("no-models", [], False), ("models", model_statements(found), True)):
        s3 = as_role(cloud, make_role(cloud, name, *policy["Statement"], *statements), "s3")
        for bucket, key in ((found.checkpoint_bucket, checkpoint), (found.dataset_bucket, dataset)):
            with nullcontext() if allowed else pytest.raises(ClientError, match=denied):
                assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"x"
            with nullcontext() if allowed else pytest.raises(ClientError, match=denied):
                assert s3.list_objects_v2(Bucket=bucket, Prefix=key)["KeyCount"] == 1
        for bucket, key in (
            (found.checkpoint_bucket, "runs/demo/one/results/gen-1/node-0/trainer.log"),
            (found.dataset_bucket, "raw/text/a.txt"),
        ):
            with pytest.raises(ClientError, match=denied):
                s3.get_object(Bucket=bucket, Key=key)


def test_the_reader_policy_allows_the_event_files_only(cloud: LocalCloud, tmp_path: Path) -> None:
    client = cloud.clients.client
    policy = reader_policy(find(client, "demo"), REGION, cloud.clients.account)
    reader = partial(as_role, cloud, make_role(cloud, "event-reader", *policy["Statement"]))
    for name in ("demo", "other"):
        for key in (f"{results_prefix(name, 'read')}gen-1/node-0/{EVENTS}", f"runs/{name}/read/checkpoints/x"):
            client("s3").put_object(Bucket=f"{name}-checkpoints", Key=key, Body=b"events")
    copy = Copy(reader("s3"), "demo-checkpoints", results_prefix("demo", "read"), tmp_path)
    assert copy.update() == Copied(1, 6)
    assert (tmp_path / "gen-1" / "node-0" / EVENTS).read_bytes() == b"events"
    for refused in (
        replace(copy, prefix="runs/demo/read/checkpoints/").update,
        replace(copy, bucket="other-checkpoints", prefix=results_prefix("other", "read")).update,
        lambda: copy.s3.get_object(Bucket="demo-checkpoints", Key="runs/demo/read/checkpoints/x"),
    ):
        with pytest.raises(ClientError, match="AccessDenied|not authorized"):
            refused()


def test_the_operator_policy_suffices_for_one_deployment(cloud: LocalCloud) -> None:
    client = cloud.clients.client
    policy = operator_policy(find(client, "demo"), REGION, cloud.clients.account)
    operator = partial(as_role, cloud, make_role(cloud, "operator", *policy["Statement"]))
    stopped = desired.stopped(RUNNING, "arn:aws:iam::123456789012:user/ada", 1.0)
    desired.write(operator, "demo", stopped)
    seen = observe(operator, find(operator, "demo"), time.time())
    assert (seen.problems, seen.desired) == ((), stopped)
    desired.request_retry(operator, "demo")
    for refused in (
        lambda: desired.write(operator, "other", stopped),
        lambda: operator("events").put_events(Entries=[{"Source": "x", "DetailType": "y", "Detail": "{}"}]),
        lambda: operator("ssm").put_parameter(Name="/trainstack/demo/run", Value="{}", Overwrite=True),
    ):
        with pytest.raises(ClientError, match="not authorized"):
            refused()
    desired.forget(client, "demo")
    desired.forget(client, "demo")


def test_the_operator_policy_of_a_slot_allows_runs_in_this_slot_only(cloud: LocalCloud) -> None:
    client, now = cloud.clients.client, time.time()
    deploy(cloud, "pair")
    for slot in ("2", "3"):
        outputs = {"LogGroup": f"/trainstack/pair-{slot}", "RunParameter": f"/trainstack/pair-{slot}/run"}
        create_stack(client("cloudformation"), f"pair-TrainingStack-{slot}", outputs)
    policy = operator_policy(find(client, "pair-2"), REGION, cloud.clients.account)
    operator = partial(as_role, cloud, make_role(cloud, "starter", *policy["Statement"]))
    assert [each.name for each in slots(operator, "pair")] == ["pair", "pair-2", "pair-3"]
    assert run_document(operator, find(operator, "pair"), []) == RUN
    place = occupancy(operator, find(operator, "pair-2"), now)
    start(operator, place, replace(RUN, deployment="pair-2", run="b"), "ada", now)
    assert not occupancy(operator, find(operator, "pair-2"), now).is_idle
    other = occupancy(client, find(client, "pair-3"), now)
    for refused in (
        lambda: start(operator, other, RUN, "ada", now),
        lambda: operator("ssm").put_parameter(Name="/trainstack/pair-3/run", Value="{}", Type="String"),
        lambda: operator("ssm").put_parameter(Name="/trainstack/pair/run", Value="{}", Overwrite=True),
    ):
        with pytest.raises(ClientError, match="AccessDenied|not authorized"):
            refused()


def counting(clients: Callable[[str], Any], calls: list[str]) -> Callable[[str], Any]:
    """Return clients that append each call to a list."""

    @cache
    def client(service: str) -> Any:
        made = clients(service)
        made.meta.events.register("before-call", lambda model, **_: calls.append(model.name))
        return made

    for service in ("cloudformation", "ssm", "s3", "ec2", "logs"):
        client(service)
    return client


def test_damaged_records_are_reported(cloud: LocalCloud) -> None:
    client = cloud.clients.client
    deploy(cloud, "damaged")
    put(cloud, "damaged", "status.json", "[" * 100_000)
    put(cloud, "damaged", "controller.json", "\xff")
    client("ssm").put_parameter(
        Name="/trainstack/damaged/run", Overwrite=True, Type="String", Value=json.dumps(RUN.to_json())
    )
    seen = observe(counting(client, []), find(client, "damaged"), time.time())
    assert seen.status is None and seen.controller is None and len(seen.problems) == 2
    client("ssm").put_parameter(Name="/trainstack/damaged/run", Overwrite=True, Type="String", Value="{}")
    seen = observe(counting(client, []), find(client, "damaged"), time.time())
    assert seen.run is None and "is required" in seen.problems[0]
    assert "damaged" in [each.name for each in find_all(client)]
    with pytest.raises(NotDeployed):
        find(client, "absent")
