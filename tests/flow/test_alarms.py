"""Every alarm of the product, from log lines to notifications that it began and ended."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bootstrap.events.log import EventLog
from bootstrap.events.schema import BootFailed, Event, GpuUse, InterruptionNotice, Trainer
from localcloud.cloud import LocalCloud
from localcloud.tokens import TOKEN_HEADER
from stacks.functions.run_controller.causes import TOO_FEW_NODES
from tests.stacks.conftest import Assembly, Synthesis, synthesis

__all__ = ["synthesis"]

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600), pytest.mark.xdist_group("flow_alarms")]
CONFIG = "single-gpu"
NODE_LOG, CONTROLLER_LOG = f"/trainstack/{CONFIG}", f"/trainstack/{CONFIG}/run-controller"
MINUTE, DAY = 60, 86400
DEADLINE_SECONDS = 120.0


@dataclass
class Clock:
    """A replacement for the bootstrap.system.System of an event log, which provides the time of events."""

    now: float

    def unix_seconds(self) -> float:
        return self.now


class Account:
    """A cloud whose alarm topics send their notifications to a queue."""

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.cloud, self.folder = cloud, folder
        self.began = time.time() // MINUTE * MINUTE
        self.clock = Clock(self.began)
        self.queue = self.client("sqs").create_queue(QueueName="notifications")["QueueUrl"]
        self.ahead_seconds = 0.0
        self.seen: list[tuple[str, str, str]] = []
        # Parameter of the CDK's bootstrap stack, which each template reads.
        self.client("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String")

    def client(self, service: str) -> Any:
        return self.cloud.clients.client(service)

    def deploy(self, name: str, template: dict[str, Any], **parameters: str) -> None:
        """Create a stack, and subscribe the queue to its topics."""
        cloudformation = self.client("cloudformation")
        values = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
        cloudformation.create_stack(
            StackName=name, TemplateBody=json.dumps(template), Parameters=values, Capabilities=["CAPABILITY_NAMED_IAM"]
        )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (status := cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]).endswith(
            "PROGRESS"
        ):
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
        events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
        failures = [each.get("ResourceStatusReason") for each in events if each["ResourceStatus"].endswith("FAILED")]
        assert status == "CREATE_COMPLETE", failures
        arn = self.client("sqs").get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])["Attributes"]
        for topic in self.ids(name, "AWS::SNS::Topic").values():
            self.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["QueueArn"])

    def ids(self, stack: str, kind: str) -> dict[str, str]:
        """Return the physical IDs of a stack's resources by logical ID."""
        found = self.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
        return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found if each["ResourceType"] == kind}

    def log(self, group: str, minutes: float, line: dict[str, Any]) -> None:
        """Put a log line with a time relative to the beginning of the test."""
        logs, stream = self.client("logs"), "lines"
        if not logs.describe_log_streams(logGroupName=group)["logStreams"]:
            logs.create_log_stream(logGroupName=group, logStreamName=stream)
        entry = {"timestamp": int((self.began + minutes * MINUTE) * 1000), "message": json.dumps(line)}
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=[entry])

    def emit(self, minutes: float, event: Event) -> None:
        """Log an event of a node, as its event log formats it."""
        self.clock.now = self.began + minutes * MINUTE
        path = self.folder / "events.jsonl"
        path.unlink(missing_ok=True)
        EventLog(self.clock, path).emit(event)  # type: ignore[arg-type]
        self.log(NODE_LOG, minutes, json.loads(path.read_text()))

    def nodes(self, first_minute: int, last_minute: int, count: int) -> None:
        """Log the controller's line of each minute."""
        for minute in range(first_minute, last_minute):
            self.log(CONTROLLER_LOG, minute + 0.5, {"event": "run_controller", "nodes": count, "phase": "training"})

    def evaluate(self, minutes: float) -> dict[str, str]:
        """Evaluate the alarms at a time relative to the beginning; return the states and keep the notifications."""
        self.ahead_seconds = max(self.ahead_seconds, self.began + minutes * MINUTE - time.time() + 1)
        body = json.dumps({"ahead_seconds": self.ahead_seconds}).encode()
        headers = {TOKEN_HEADER: self.cloud.control_token}
        request = urllib.request.Request(f"{self.cloud.endpoint_url}/_localcloud/cloudwatch/clock", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            states: dict[str, str] = json.loads(answer.read())
        while messages := self.client("sqs").receive_message(QueueUrl=self.queue).get("Messages"):
            for each in messages:
                note = json.loads(json.loads(each["Body"])["Message"])
                self.seen.append((note["AlarmName"], note["OldStateValue"], note["NewStateValue"]))
                self.client("sqs").delete_message(QueueUrl=self.queue, ReceiptHandle=each["ReceiptHandle"])
        return states

    def changes(self, alarm: str) -> list[str]:
        """Return the states that the notifications of an alarm report, in order."""
        return [new for name, _, new in self.seen if name == alarm]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    cloud = LocalCloud(tmp_path / "cloud")
    cloud.start()
    yield Account(cloud, tmp_path)
    cloud.close()


def test_alarms_of_a_run_begin_and_end(account: Account, synthesis: Synthesis) -> None:
    changes = {"observability.daily_zombie_search": False}  # the next test
    assembly = synthesis.variant("without-search", changes, base=CONFIG)
    for group in (NODE_LOG, CONTROLLER_LOG):
        account.client("logs").create_log_group(logGroupName=group)
    stack = "observability"
    account.deploy(stack, json.loads(assembly.text("ObservabilityStack")))
    names = account.ids(stack, "AWS::CloudWatch::Alarm")
    by_id = {logical.removeprefix("Alarms")[:-8]: name for logical, name in names.items()}
    step = {"record": "step", "step": 1, "loss": 2.5, "tokens_per_second": 900.0}
    busy, idle = (GpuUse(1, percent, percent, 1.0, 2.0) for percent in (90.0, 1.0))

    # A run that trains, for longer than the periods of all its alarms.
    account.nodes(-60, 1, 2)
    for minute in range(-60, 1):
        account.emit(minute + 0.5, Trainer(step))
        account.emit(minute + 0.6, busy)
    assert set(account.evaluate(1).values()) == {"OK"}

    # The same nodes make no progress for an hour, with many interruptions and failed boots.
    account.nodes(1, 61, 2)
    for minute in range(1, 61):
        account.emit(minute + 0.6, idle)
        account.log(CONTROLLER_LOG, minute + 0.5, {"event": "run_controller", "nodes": 2, "ledger": "failed"})
    for minute in range(1, 61, 5):
        for cause in TOO_FEW_NODES:
            account.log(CONTROLLER_LOG, minute + 0.5, {"event": "run_controller", "nodes": 2, "cause": str(cause)})
    for second in range(20):
        account.emit(60 + second / 60, InterruptionNotice("terminate", account.began))
        account.emit(60 + second / 60, BootFailed("staging", "no space", None, None, "", "use a larger disk"))
    alarming = account.evaluate(61)
    assert {name for name, state in alarming.items() if state == "ALARM"} == set(names.values()) - {
        by_id["RunControllerSilent"],
        by_id["CheckpointAge"],
    }

    # The controller stops: its alarm reports the missing data.
    assert account.evaluate(61 + 20)[by_id["RunControllerSilent"]] == "INSUFFICIENT_DATA"

    # Everything works again, at first without a durable checkpoint. Log events may be at most two hours ahead.
    for first, last, intervals in ((81, 100, 4.0), (100, 119, 0.5)):
        account.nodes(first, last, 2)
        age = {"checkpoint_age_intervals": intervals, "checkpoint_age_seconds": intervals * 900}
        for minute in range(first, last):
            account.emit(minute + 0.5, Trainer({**step, **age}))
            account.emit(minute + 0.6, busy)
        assert account.evaluate(last)[by_id["CheckpointAge"]] == ("ALARM" if intervals > 3 else "OK")
    assert set(account.evaluate(61 + 61).values()) == {"OK"}
    for name in names.values():
        began = "INSUFFICIENT_DATA" if name == by_id["RunControllerSilent"] else "ALARM"
        changes = account.changes(name)
        assert began in changes and changes[-1] == "OK", (name, changes)
    assert len(names) == 7 + len(TOO_FEW_NODES)


def test_alarms_of_the_daily_search_begin_and_end(account: Account, synthesis: Synthesis) -> None:
    """The function runs with its own role and permissions."""
    assembly = synthesis.of(CONFIG)
    bucket, parameter = "control-bucket", f"/trainstack/{CONFIG}/run"
    template = json.loads(assembly.text("ObservabilityStack"))
    template["Resources"] = {name: each for name, each in template["Resources"].items() if _is_of_search(name, each)}
    (function,) = (each for each in template["Resources"].values() if each["Type"] == "AWS::Lambda::Function")
    _upload_asset(account, assembly, function, "ObservabilityStack")
    for each in template["Resources"].values():  # both belong to StorageStack
        each.get("Properties", {}).pop("KmsKeyId", None)
        each.get("Properties", {}).pop("KmsMasterKeyId", None)
        each.get("Properties", {}).pop("PermissionsBoundary", None)
    text = re.sub(r'\{"Fn::ImportValue": "[^"]*Arn[^"]*"\}', f'"arn:aws:s3:::{bucket}"', json.dumps(template))
    template = json.loads(re.sub(r'\{"Fn::ImportValue": "[^"]*"\}', f'"{bucket}"', text))
    template.pop("Outputs", None)
    account.deploy("observability", template)
    (name,) = account.ids("observability", "AWS::Lambda::Function").values()
    names = account.ids("observability", "AWS::CloudWatch::Alarm")
    failed = _ending(names, "SearchFailed")
    (found,) = set(names.values()) - {failed}

    def search() -> str:
        answer = account.client("lambda").invoke(FunctionName=name)
        return answer["Payload"].read().decode() if "FunctionError" in answer else ""

    account.client("s3").create_bucket(Bucket=bucket)
    account.client("ssm").put_parameter(Name=parameter, Type="String", Value='{"run": "first"}')
    assert search() == ""
    states = account.evaluate(_minutes(account))
    assert (states[found], states[failed]) == ("OK", "OK")
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "trainstack:deployment", "Value": "gone"}]}]
    account.client("ec2").create_volume(Size=1, AvailabilityZone="us-east-1a", TagSpecifications=tags)
    assert search() == ""
    assert _reaches(account, found, "ALARM")
    volumes = account.client("ec2").describe_volumes(Filters=[{"Name": "status", "Values": ["available"]}])["Volumes"]
    assert len(volumes) == 1, "nothing is deleted"
    account.client("iam").delete_role_policy(**_only_policy(account, "observability"))
    assert "AccessDenied" in search() or "not authorized" in search()
    assert _reaches(account, failed, "ALARM")
    for alarm in (found, failed):
        assert "ALARM" in account.changes(alarm), alarm


def test_the_alarm_of_a_pipeline_begins(account: Account, synthesis: Synthesis) -> None:
    template = json.loads(synthesis.of("pipelines/sweep").text("ObservabilityStack"))
    kept = ("AWS::SNS::Topic", "AWS::SNS::TopicPolicy")
    template["Resources"] = {
        name: each
        for name, each in template["Resources"].items()
        if each["Type"] in kept or name.startswith("PipelineFailed")
    }
    for each in template["Resources"].values():
        each.get("Properties", {}).pop("KmsMasterKeyId", None)
    template.pop("Outputs", None)
    account.deploy("observability", template)
    (alarm,) = account.ids("observability", "AWS::CloudWatch::Alarm").values()
    assert account.evaluate(_minutes(account))[alarm] == "OK"
    arn = f"arn:aws:states:{account.cloud.region}:{account.cloud.clients.account}:stateMachine:trainstack-pipeline"
    failed = {"MetricName": "ExecutionsFailed", "Dimensions": [{"Name": "StateMachineArn", "Value": arn}], "Value": 1.0}
    account.client("cloudwatch").put_metric_data(Namespace="AWS/States", MetricData=[failed])
    assert _reaches(account, alarm, "ALARM")
    assert account.changes(alarm)[-1] == "ALARM"


def _reaches(account: Account, alarm: str, state: str) -> bool:
    """Evaluate an alarm in each of the next minutes until it has a state. Metrics appear after their log lines."""
    first = _minutes(account)
    for minute in range(30):
        if account.evaluate(first + minute)[alarm] == state:
            return True
        time.sleep(0.2)
    return False


def _is_of_search(name: str, resource: dict[str, Any]) -> bool:
    return name.startswith("Zombies") or resource["Type"] in ("AWS::SNS::Topic", "AWS::SNS::TopicPolicy")


def _only_policy(account: Account, stack: str) -> dict[str, str]:
    """Return the names of a stack's only role and its only policy."""
    (role,) = account.ids(stack, "AWS::IAM::Role").values()
    (policy,) = account.client("iam").list_role_policies(RoleName=role)["PolicyNames"]
    return {"RoleName": role, "PolicyName": policy}


def test_alarms_of_drift_detection_begin_and_end(account: Account, synthesis: Synthesis) -> None:
    assembly = synthesis.run(Path("config/delivery/production.yaml").resolve(), "delivery")
    template = _closure(json.loads(assembly.text("PipelineStack")), "AWS::CloudWatch::Alarm", "AWS::Logs::MetricFilter")
    (function,) = (each for each in template["Resources"].values() if each["Type"] == "AWS::Lambda::Function")
    targets = function["Properties"]["Environment"]["Variables"]["TARGETS"]
    _upload_asset(account, assembly, function, "PipelineStack")
    number = account.cloud.clients.account
    _create_role(
        account, f"cdk-hnb659fds-deploy-role-{number}-us-east-1"
    )  # the bootstrap's role, which a key policy names
    account.deploy("pipeline", template)
    (name,) = account.ids("pipeline", "AWS::Lambda::Function").values()
    found = account.client("lambda").get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    names = account.ids("pipeline", "AWS::CloudWatch::Alarm")
    by_id = {"drift": _ending(names, "DriftAlarm"), "look": _ending(names, "LookAlarm")}
    assert targets and set(names.values()) == set(by_id.values())

    def detect() -> str:
        answer = account.client("lambda").invoke(FunctionName=name)
        return answer["Payload"].read().decode() if "FunctionError" in answer else ""

    assert detect()  # neither the stacks nor the roles exist
    assert account.evaluate(_minutes(account))[by_id["look"]] == "ALARM"
    groups = _create_targets(account, json.loads(found["TARGETS"]))
    assert detect() == ""
    assert account.evaluate(_minutes(account))[by_id["drift"]] == "OK"
    account.client("logs").delete_log_group(logGroupName=groups[0])
    assert detect() == ""
    assert account.evaluate(_minutes(account))[by_id["drift"]] == "ALARM"
    assert set(account.evaluate(4 * DAY / MINUTE).values()) == {"OK"}
    for alarm in by_id.values():
        assert "ALARM" in account.changes(alarm), alarm


def _minutes(account: Account) -> float:
    """Return a time after the next evaluation of the lines just logged."""
    return (time.time() - account.began) / MINUTE + 1


def _ending(names: dict[str, str], part: str) -> str:
    (found,) = (physical for logical, physical in names.items() if part in logical)
    return found


def _closure(template: dict[str, Any], *kinds: str) -> dict[str, Any]:
    """Return the part of a template that resources of these types need, and the policies of that part."""
    resources = template["Resources"]
    kept: set[str] = set()
    waiting = {name for name, each in resources.items() if each["Type"] in kinds}
    while waiting:
        kept |= waiting
        waiting = {other for name in kept for other in _names(resources[name], resources)} - kept
        waiting |= {
            name
            for name, each in resources.items()
            if name not in kept
            and each["Type"] in ("AWS::IAM::Policy", "AWS::SNS::TopicPolicy")
            and set(_names(each["Properties"], resources)) <= kept
        }
    parameters = template.get("Parameters", {})
    return {
        "Parameters": {name: value for name, value in parameters.items() if name != "BootstrapVersion"},
        "Resources": {name: resources[name] for name in kept},
    }


def _names(value: Any, resources: dict[str, Any]) -> Iterator[str]:
    """Yield the logical IDs to which a value refers."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("Ref", "Fn::GetAtt", "DependsOn"):
                named = [inner] if isinstance(inner, str) else inner if key == "DependsOn" else inner[:1]
                yield from (name for name in named if name in resources)
            else:
                yield from _names(inner, resources)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner, resources)


def _upload_asset(account: Account, assembly: Assembly, function: dict[str, Any], stack: str) -> None:
    """Upload a function's code to the bucket that its template names, as `cdk deploy` does."""
    code = function["Properties"]["Code"]
    bucket = code["S3Bucket"]["Fn::Sub"].replace("${AWS::AccountId}", account.cloud.clients.account)
    bucket = bucket.replace("${AWS::Region}", account.cloud.region).replace("${AWS::Partition}", "aws")
    account.client("s3").create_bucket(Bucket=bucket)
    files = json.loads((assembly.directory / f"{stack}.assets.json").read_text())["files"]
    source = assembly.directory / files[code["S3Key"].removesuffix(".zip")]["source"]["path"]
    account.client("s3").put_object(Bucket=bucket, Key=code["S3Key"], Body=source.read_bytes())


def _create_role(account: Account, name: str) -> None:
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": account.cloud.clients.account}}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    account.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)


def _create_targets(account: Account, targets: list[dict[str, Any]]) -> list[str]:
    """Create the stacks that drift detection reads, each with a log group, and the lookup roles; return the groups."""
    iam = account.client("iam")
    allowed = {"Effect": "Allow", "Action": ["cloudformation:*", "logs:*"], "Resource": "*"}
    groups = []
    for role in {target["role_arn"].rpartition("/")[2] for target in targets}:
        _create_role(account, role)
        document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_role_policy(RoleName=role, PolicyName="read", PolicyDocument=document)
    for stack in (name for target in targets for name in target["stacks"]):
        group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": f"/{stack}", "RetentionInDays": 7}}
        account.deploy(stack, {"Resources": {"Group": group}})
        groups.append(f"/{stack}")
    return groups
