"""Runs a node's trainers in a job step: one task per node with the launcher, or one task per process with srun.

Slurm sends a preemption's SIGTERM to all processes of the step. The signal stays blocked in this process and in the
launcher, which would otherwise kill its ranks after 30 s. The trainers unblock the signal, save and stop. The first
task of each node watches for spot notices and for requests in the generation's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from bootstrap.errors import MetadataError
from bootstrap.imds import InstanceMetadata, InterruptionNotice
from bootstrap.slurm.health import faults
from bootstrap.slurm.records import JobDocument, write_json
from bootstrap.supervise.trainers import guardian
from bootstrap.supervise.trainers.launch import EXITS, add_machine_variables, launcher_options
from bootstrap.system import System

logger = logging.getLogger(__name__)

STOP_SIGNALS = {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP}
POLL_SECONDS = 0.5
NOTICE_POLL_SECONDS = 5.0
"""AWS recommends this interval. Source (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
UNHEALTHY, FAILED = 90, 1
PEER_SECONDS = 5.0
"""Time after a rank's failure for the node's other ranks to exit, and for writers to complete a save."""
STOPPED = 75
"""Exit code of a rank that stopped after a save (training/process/outcome.py)."""
SHARED = ("outcomes", "metrics.jsonl")
"""Files of the run directory that are in the generation's folder. The others are local, because a new file on a network
file system may become visible only after many seconds."""


class Place:
    """This task's place in the step.

    Attributes:
        grace_seconds: Time between SIGTERM and SIGKILL at a preemption.
        node_rank: Rank of the node in the gang.
        local_rank: Rank of the process on its node; 0 for the launcher's task.
    """

    def __init__(self, document: JobDocument, environment: Mapping[str, str]) -> None:
        tasks = document.processes_per_node if document.launch == "srun" else 1
        task = int(environment["SLURM_PROCID"])
        self.node_rank, self.local_rank = divmod(task, tasks)
        self.nodes = int(environment["SLURM_STEP_NUM_NODES"])
        self.node = environment["SLURMD_NODENAME"]
        self.rank = task
        self.generation = int(environment["TRAINSTACK_GENERATION"])
        self.records = Path(environment["TRAINSTACK_RECORDS"])
        self.master_address = environment["TRAINSTACK_MASTER_ADDRESS"]
        self.master_port = int(environment["TRAINSTACK_MASTER_PORT"])
        self.grace_seconds = float(environment["TRAINSTACK_GRACE_SECONDS"])


def run_node(document: JobDocument, environment: Mapping[str, str]) -> int:
    """Run the trainers until they exit. Return 0 if they finished or stopped, else a code that ends the step."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    place = Place(document, environment)
    if place.local_rank == 0 and document.health_check:
        found = faults(document.gpus)
        if found:
            write_json(
                place.records / f"unhealthy-{place.node}.json",
                faults=[f"{each.message}; {each.remedy}" for each in found],
            )
            logger.error("%s: %s", place.node, "; ".join(each.message for each in found))
            return UNHEALTHY
    directory = _run_directory(place, environment)
    variables = _variables(document, place, directory, environment)
    command = _command(document, place, directory)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, *command], stdin=subprocess.PIPE, env=variables
    )
    watch = _Watch(document, place, directory)
    if place.local_rank == 0 and document.watch_spot_notices:
        threading.Thread(target=watch.watch_notices, name="spot notices", daemon=True).start()
    failed_at = None
    while process.poll() is None:
        received = signal.sigtimedwait(STOP_SIGNALS, POLL_SECONDS)
        watch.look(received.si_signo if received is not None else None)
        if failed_at is None and _has_failed_rank(directory):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() > failed_at + PEER_SECONDS and process.stdin is not None:
            process.stdin.close()  # makes the guardian kill the other ranks, which wait for the failed one
            process.wait()
    if _ended_well(document, place):
        if document.launch != "srun":  # other tasks of the node may still use it
            shutil.rmtree(directory, ignore_errors=True)
        return 0
    # Write this before the exit, because srun then sends SIGTERM to the other tasks, which is not a preemption.
    write_json(place.records / f"failed-{place.node}.json", local_rank=place.local_rank)
    return FAILED


class _Watch:
    """Turns signals, notices and requests into a stop file for the trainers on this node."""

    def __init__(self, document: JobDocument, place: Place, directory: Path) -> None:
        self._document, self._place, self._directory = document, place, directory
        self._notice: InterruptionNotice | None = None
        self._stopping = False

    def look(self, number: int | None) -> None:
        """Stop the trainers if a signal has arrived, if AWS is reclaiming the node, or if the job requests it."""
        if self._stopping:
            return
        request = self._place.records / "stop"
        if number is not None:
            name = signal.Signals(number).name
            deadline = self._asked(request)
            if deadline is None and number == signal.SIGTERM:
                deadline = time.time() + self._place.grace_seconds
            self._stop("preempted" if number == signal.SIGTERM else "signalled", f"received {name}", deadline)
        elif self._notice is not None:
            action, reclaim = self._notice.action, self._notice.reclaim_unix_seconds
            write_json(
                self._place.records / f"leaving-{self._place.node}.json", action=action, reclaim_unix_seconds=reclaim
            )
            self._stop("spot_notice", f"AWS will {action} {self._place.node}", reclaim, train_on=True)
        elif request.exists():
            self._stop("requested", "the job ends", self._asked(request))

    def _asked(self, request: Path) -> float | None:
        """Return the deadline in a request of the job script, or None."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return float(json.loads(request.read_text(encoding="utf-8"))["deadline_unix_seconds"])
        return None

    def _stop(self, reason: str, text: str, deadline: float | None, *, train_on: bool = False) -> None:
        self._stopping = True
        document: dict[str, object] = {"reason": text}
        if deadline is not None:
            document |= {"deadline_unix_seconds": deadline, "train_on": train_on}
        temporary = self._directory / f".stop.{os.getpid()}"
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(self._directory / "stop")
        logger.info("%s: stopping: %s", self._place.node, text)
        try:
            write_json(self._place.records / f"stopping-{self._place.node}.json", reason=reason, message=text)
        except OSError as error:  # the trainers stop anyway
            logger.warning("%s", error)

    def watch_notices(self) -> None:
        """Poll the instance metadata service until there is a notice. Return if the service never responds."""
        metadata, failures = InstanceMetadata(System()), 0
        answered = False
        while self._notice is None:
            try:
                self._notice = metadata.interruption_notice()
                answered = True
            except MetadataError as error:
                failures += 1
                if not answered and failures == 3:
                    logger.info("no spot notices are expected on %s: %s", self._place.node, error)
                    return
            time.sleep(NOTICE_POLL_SECONDS if self._notice is None else 0)


def _run_directory(place: Place, environment: Mapping[str, str]) -> Path:
    """Create the run directory on this node, with links to the files that the job script and users read.

    Its name contains a digest of the claim, so that a folder left behind by another cluster or run is never used.
    """
    claim = hashlib.sha256(str(place.records).encode() + (place.records / "claim.json").read_bytes()).hexdigest()
    name = f"trainstack-{environment['SLURM_JOB_ID']}-{place.node}-{place.generation}-{claim[:12]}"
    directory = Path(tempfile.gettempdir(), name)
    directory.mkdir(mode=0o700, exist_ok=True)
    for each in SHARED:
        with contextlib.suppress(FileExistsError):
            (directory / each).symlink_to(place.records / each)
    return directory


def _has_failed_rank(directory: Path) -> bool:
    """Return whether the launcher has reported a rank that neither finished nor stopped."""
    for path in (directory / EXITS).glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(path.read_text(encoding="utf-8"))["exit_code"] not in (0, STOPPED):
                return True
    return False


def _variables(document: JobDocument, place: Place, directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the trainers' environment."""
    variables = dict(environment)
    processes = document.processes_per_node
    add_machine_variables(
        variables,
        region=document.region,
        processes_per_node=processes,
        address=_own_address(place.master_address),
        fabric=document.fabric,
        directory=directory,
        machine=document.instance_type,
    )
    if document.launch == "srun":
        variables |= {
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.local_rank),
            "WORLD_SIZE": str(place.nodes * processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "GROUP_RANK": str(place.node_rank),
            "MASTER_ADDR": place.master_address,
            "MASTER_PORT": str(place.master_port),
            # As with the launcher, rank 0 hosts the gang's store, and every rank is its client.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TRAINSTACK_STORE_HOST": "rank 0",
        }
    return variables


def _own_address(master: str) -> str:
    """Return this node's address on the route to the gang's first node, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(master), 1))
        return str(probe.getsockname()[0])


def _command(document: JobDocument, place: Place, directory: Path) -> list[str]:
    trainer = [
        *("-m", "training", "train"),
        *("--config", str(Path(document.folder, "run.json"))),
        *("--dataset", document.dataset),
        *("--checkpoints", document.checkpoints),
        *("--run-directory", str(directory)),
        *("--generation", str(place.generation)),
    ]
    if document.launch == "srun":
        return [sys.executable, *trainer]
    options = launcher_options(
        nodes=place.nodes,
        node_rank=place.node_rank,
        processes_per_node=document.processes_per_node,
        master_address=place.master_address,
        master_port=place.master_port,
        directory=directory,
    )
    return [sys.executable, "-m", "training.process.launcher", *options, *trainer]


def _ended_well(document: JobDocument, place: Place) -> bool:
    """Return whether this task's processes wrote outcomes other than a failure. The exit code does not show this."""
    first = place.node_rank * document.processes_per_node
    ranks = [place.rank] if document.launch == "srun" else range(first, first + document.processes_per_node)
    for rank in ranks:
        try:
            text = (place.records / "outcomes" / f"rank-{rank:05d}.json").read_text(encoding="utf-8")
            if json.loads(text)["outcome"] not in ("finished", "stopped", "superseded"):
                return False
        except (OSError, ValueError, KeyError, TypeError):
            return False
    return True
