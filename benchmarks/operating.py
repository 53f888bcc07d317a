"""Speed of the commands that observe a run: the duration and API calls of `status`, and the delay of `logs --follow`.

``python -m benchmarks.operating`` starts the embedded cloud with the records of one run, and writes
build/bench/operating.json. `status` runs as a process, as a user starts it. To measure the delay, lines take the
same path as a node's output: a trainer's log file, the supervisor's reader, the event shipper, CloudWatch Logs, and the
command. The embedded cloud delivers log events at once; AWS documents no bound for the delay until FilterLogEvents
returns them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bootstrap.documents import RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.documents.object_keys import control_prefix
from bootstrap.events.log import EventLog
from bootstrap.events.schema import TrainerOutput
from bootstrap.events.shipper import LogShipper
from bootstrap.supervise.membership.control import STATUS_NAME
from bootstrap.supervise.membership.records import Checkpoint, RunStatus, to_text
from bootstrap.supervise.supervisor import TICK_SECONDS
from bootstrap.supervise.trainers.output import OutputReader
from bootstrap.system import System
from localcloud.cloud import LocalCloud
from localcloud.iam.identity import ROOT_ACCESS_KEY_ID
from stacks.functions.run_controller.records import state_key
from trainstack.account import find, observe

OUTPUT = Path("build/bench/operating.json")
NAME, REGION, INSTANCE = "measured", "us-east-1", "i-0123456789abcdef0"
LOG_GROUP, PARAMETER = f"/trainstack/{NAME}", f"/trainstack/{NAME}/run"
MAX_CALLS, MAX_STATUS_SECONDS, MAX_LATE_SECONDS = 6, 2.0, 3.0
"""The bounds: calls of a status, the median of its duration, and the latest line of `logs --follow`."""
LINE_PAUSE_SECONDS = 0.37
"""Time between two lines, chosen so that lines arrive at all phases of the polling intervals on their path."""
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Figures:
    """The measurements. Durations are in seconds.

    Attributes:
        status_calls: Number of AWS API calls that one `status` makes.
        status_seconds: Durations of `trainstack status --json`, from its start to its exit.
        late_seconds: For each line, the time from when the trainer writes it until `logs --follow` prints it.
    """

    status_calls: int
    status_seconds: tuple[float, ...]
    late_seconds: tuple[float, ...]

    def problems(self) -> list[str]:
        """Return the bounds that were not met."""
        median, latest = statistics.median(self.status_seconds), max(self.late_seconds)
        found = [
            (self.status_calls > MAX_CALLS, f"status: {self.status_calls} calls, at most {MAX_CALLS}"),
            (median >= MAX_STATUS_SECONDS, f"status: median {median:.2f} s, must be below {MAX_STATUS_SECONDS} s"),
            (latest > MAX_LATE_SECONDS, f"logs --follow: {latest:.2f} s late, at most {MAX_LATE_SECONDS} s"),
        ]
        return [text for is_broken, text in found if is_broken]


def main() -> int:
    """Measure, print and write the figures. Return 1 if a bound was not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="runs of status")
    parser.add_argument("--lines", type=int, default=40, help="lines of output")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cloud = LocalCloud(Path(folder) / "cloud", region=REGION)
        cloud.start()
        try:
            deploy(cloud)
            figures = Figures(
                status_calls=count_calls(cloud),
                status_seconds=tuple(time_status(cloud) for _ in range(options.rounds)),
                late_seconds=lateness(cloud, Path(folder), options.lines),
            )
        finally:
            cloud.close()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**asdict(figures), "problems": figures.problems()}, indent=2) + "\n")
    median, late = statistics.median(figures.status_seconds), figures.late_seconds
    print(f"status: {figures.status_calls} calls, median {median:.2f} s of {options.rounds}")
    print(
        f"logs --follow: median {statistics.median(late):.2f} s late, latest {max(late):.2f} s of {options.lines} lines"
    )
    print("\n".join(figures.problems()) or "all bounds met", file=sys.stderr)
    return 1 if figures.problems() else 0


def deploy(cloud: LocalCloud) -> None:
    """Create the stacks and the records that the commands read."""
    client, bucket = cloud.clients.client, f"{NAME}-control"
    run = RunDocument.from_json(
        {
            "schema_version": SCHEMA_VERSION,
            "deployment": NAME,
            "run": "first",
            "nodes": 2,
            "min_nodes": 2,
            "processes_per_node": 1,
            "dataset": "d",
            "training": {},
            "code": {"bucket": "b", "key": "k", "sha256": "0" * 64},
        }
    )
    client("s3").create_bucket(Bucket=bucket)
    client("ssm").put_parameter(Name=PARAMETER, Type="String", Value=json.dumps(run.to_json()))
    client("logs").create_log_group(logGroupName=LOG_GROUP)
    outputs = {
        "TrainingStack": {"LogGroup": LOG_GROUP, "RunParameter": PARAMETER},
        "StorageStack": {"CheckpointBucket": f"{NAME}-checkpoints", "ControlBucket": bucket},
    }
    for stack, values in outputs.items():
        template = {
            "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
            "Outputs": {key: {"Value": value} for key, value in values.items()},
        }
        name = f"{NAME}-{stack}"
        client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(template))
        waiter = client("cloudformation").get_waiter("stack_create_complete")
        waiter.wait(StackName=name, WaiterConfig={"Delay": 1})
    status = RunStatus(
        run=run.run,
        run_digest=run.digest(),
        generation=1,
        members=(INSTANCE,),
        step=250,
        steps_total=1000,
        loss=2.5,
        validation_loss=None,
        tokens_per_second=1e5,
        step_seconds=2.0,
        mfu=0.4,
        checkpoint=Checkpoint(200, time.time()),
        unix_seconds=time.time(),
    )
    state = {"run_digest": run.digest(), "phase": "running", "reason": "2 of 2 nodes in service"}
    for key, text in (
        (control_prefix(NAME, run.run) + STATUS_NAME, to_text(status)),
        (state_key(NAME, run.run), json.dumps(state)),
    ):
        client("s3").put_object(Bucket=bucket, Key=key, Body=text.encode())


def count_calls(cloud: LocalCloud) -> int:
    """Return the number of API calls that one `status` command makes."""
    calls: list[str] = []

    @cache
    def client(service: str) -> Any:
        made = cloud.clients.client(service)
        made.meta.events.register("before-call", lambda model, **_: calls.append(model.name))
        return made

    for service in ("cloudformation", "ssm", "s3", "ec2"):
        client(service)
    observe(client, find(client, NAME), time.time())
    return len(calls)


def time_status(cloud: LocalCloud) -> float:
    """Return the duration of one `trainstack status` in seconds."""
    started = time.monotonic()
    subprocess.run(_command("status", NAME, "--json"), env=_environment(cloud), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def lateness(cloud: LocalCloud, folder: Path, lines: int) -> tuple[float, ...]:
    """Return, for each line, the time in seconds from when it is written until it is printed.

    Raises:
        RuntimeError: The command did not print all lines in time.
    """
    log, system, ended = folder / "trainer.log", System(), threading.Event()
    shipper = LogShipper(cloud.clients.client("logs"), log_group=LOG_GROUP, stream=INSTANCE)
    events = EventLog(system, folder / "events.jsonl")
    events.add_listener(shipper)
    supervisor = threading.Thread(target=_supervise, args=(log, events, ended), daemon=True)
    process = subprocess.Popen(
        _command("logs", NAME, "--follow"), env=_environment(cloud), stdout=subprocess.PIPE, text=True
    )
    arrived: dict[int, float] = {}
    ready, complete = threading.Event(), threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            number = int(line.rsplit(" ", 1)[1])
            arrived[number] = time.monotonic()
            ready.set()
            if len(arrived) == lines + 1:
                complete.set()

    threading.Thread(target=read, daemon=True).start()
    supervisor.start()
    written: dict[int, float] = {}
    try:
        with log.open("w") as stream:
            for number in range(lines + 1):
                stream.write(f"line {number}\n")
                stream.flush()
                written[number] = time.monotonic()
                if number == 0 and not ready.wait(DEADLINE_SECONDS):  # the command has started
                    raise RuntimeError("logs --follow did not print the first line")
                time.sleep(LINE_PAUSE_SECONDS)
        if not complete.wait(DEADLINE_SECONDS):
            raise RuntimeError(f"logs --follow printed {len(arrived)} of {lines + 1} lines")
    finally:
        process.terminate()
        process.wait()
        ended.set()
        supervisor.join()
        shipper.close(DEADLINE_SECONDS)
    return tuple(arrived[number] - written[number] for number in range(1, lines + 1))


def _supervise(log: Path, events: EventLog, ended: threading.Event) -> None:
    """Read the log and emit its lines, as often as a supervisor's main loop does."""
    reader = OutputReader(log)
    while not ended.wait(TICK_SECONDS):
        output = reader.read(time.monotonic())
        if output is not None:
            events.emit(TrainerOutput(generation=1, rank=0, text=output.text, dropped_bytes=output.dropped_bytes))


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trainstack", *arguments]


def _environment(cloud: LocalCloud) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": ROOT_ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": cloud.identity.root_secret}
    return {**os.environ, **keys, "AWS_ENDPOINT_URL": cloud.endpoint_url, "AWS_REGION": REGION, "NO_COLOR": "1"}


if __name__ == "__main__":
    sys.exit(main())
