"""A Slurm cluster on one machine: a controller, and nodes in separate namespaces.

Each node has its own network, host name, processes and mounts. Killing a node kills its processes at once, as a power
failure does. Its GPUs are character devices. The cluster needs root and the packages in `PROGRAMS`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
}
"""Programs that the cluster needs, and the Debian package of each."""
BRIDGE, CONTROLLER = "ts-slurm", "10.77.0.1"
NODES = {"n1": "10.77.0.11", "n2": "10.77.0.12"}
METADATA_PORT = 1338
"""Port of the instance metadata service that a test may start on a node's loopback address."""
HIERARCHIES = ("cpuset", "memory", "devices", "freezer", "cpu", "cpuacct")

CONFIGURATION = """
ClusterName=test
SlurmctldHost=ctl({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=10
InactiveLimit=0
MinJobAge=300
JobRequeue=1
MaxArraySize=1001
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=off
"""


class ClusterError(Exception):
    """A part of the cluster did not start or did not respond."""


def missing_programs() -> dict[str, str]:
    """Return the programs that this machine does not have, with their packages."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return {program: package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None}


def wait_until(check: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Return the first true result of a function.

    Raises:
        ClusterError: No result was true within the time limit, which only guards against a hang.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.2)  # polling: Slurm has no notification


class Cluster:
    """The daemons of a cluster. Use it as a context manager."""

    def __init__(self, folder: Path, cores: int = 2) -> None:
        self.folder = folder
        self._cores = cores
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._controller: subprocess.Popen[bytes] | None = None
        self._munge: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:  # also after Ctrl-C, no daemon or namespace may remain
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._nodes):
            self.kill_node(name)
        for process in (self._controller, self._munge):
            if process is not None:
                process.kill()
                process.wait()
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for Slurm's commands and for jobs."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return inherited | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }

    def run(self, *command: str, variables: Mapping[str, str] | None = None, fails: bool = False) -> str:
        """Run a command against the cluster, and return its output.

        Raises:
            ClusterError: The command failed, and `fails` is false.
        """
        environment = self.environment | dict(variables or {})
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode and not fails:
            raise ClusterError(f"{' '.join(command)}: code {done.returncode}: {done.stdout}{done.stderr}")
        return (done.stdout + done.stderr).strip()

    def job(self, number: str) -> dict[str, str]:
        """Return a job's attributes from the controller."""
        text = self.run("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def _start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)
        for command in (
            ["ip", "link", "add", BRIDGE, "type", "bridge"],
            ["ip", "address", "add", f"{CONTROLLER}/24", "dev", BRIDGE],
            ["ip", "link", "set", BRIDGE, "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)
        for number in range(2):
            device = self.folder / f"nvidia{number}"
            os.mknod(device, 0o20666, os.makedev(1, 3))
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address} CPUs={self._cores} RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
            for name, address in NODES.items()
        )
        text = CONFIGURATION.format(controller=CONTROLLER, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(f"Name=gpu Count=2 File={self.folder}/nvidia[0-1]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in NODES.items())
        (self.folder / "hosts").write_text(f"{hosts}{CONTROLLER} ctl\n")
        self._start_munge()
        self.start_controller()
        for name in NODES:
            self.start_node(name)
        wait_until(lambda: self.idle_nodes() == set(NODES), "the nodes are idle")

    def idle_nodes(self) -> set[str]:
        """Return the names of the idle nodes."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format", "%N %T", fails=True).splitlines()
        return {line.split()[0] for line in lines if line.split()[1:] == ["idle"]}

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        options = [
            f"--socket={self.folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={self.folder}/munge.pid",
            f"--log-file={self.folder}/munge.log",
            f"--seed-file={self.folder}/munge.seed",
        ]
        with (self.folder / "munge.out").open("wb") as log:
            self._munge = subprocess.Popen(
                ["munged", "--foreground", "--force", *options], env=self.environment, stdout=log, stderr=log
            )
        wait_until((self.folder / "munge.socket").exists, "munged listens")

    def start_controller(self) -> None:
        """Start the controller."""
        with (self.folder / "slurmctld.out").open("ab") as log:
            self._controller = subprocess.Popen(
                ["unshare", "--uts", "sh", "-c", f"hostname ctl; exec slurmctld -D -f {self.folder}/slurm.conf"],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: "UP" in self.run("scontrol", "ping", fails=True), "the controller responds")

    def stop_controller(self) -> None:
        """Kill the controller."""
        assert self._controller is not None
        self._controller.send_signal(signal.SIGKILL)
        self._controller.wait()

    def start_node(self, name: str) -> None:
        """Start a node's daemon in new namespaces."""
        # One of these controllers may be missing from the kernel: the daemon also starts without it.
        mounts = "".join(
            f"mkdir -p /sys/fs/cgroup/{each}; mount -t cgroup -o {each} cgroup /sys/fs/cgroup/{each} || true; "
            for each in HIERARCHIES
        )
        script = (
            f"set -e; hostname {name}; mount --make-rprivate /; mount --bind {self.folder}/hosts /etc/hosts; "
            f"mount -t tmpfs tmpfs /sys/fs/cgroup; {mounts}"
            "until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done; ip link set lo up; "
            f"ip address add {NODES[name]}/24 dev eth0; ip link set eth0 up; "
            f"slurmd -D -f {self.folder}/slurm.conf -N {name} & wait $!"
        )
        with (self.folder / f"node-{name}.out").open("ab") as log:
            process = subprocess.Popen(
                [
                    *("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *("sh", "-c", script),
                ],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._nodes[name] = process
        link = f"ts-{name}"
        subprocess.run(["ip", "link", "delete", link], capture_output=True)
        inner = wait_until(lambda: self._init(name), f"{name}: the namespaces exist")
        subprocess.run(
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(inner)], check=True
        )
        subprocess.run(["ip", "link", "set", link, "master", BRIDGE, "up"], check=True)

    def _init(self, name: str) -> int | None:
        """Return the id of the first process in a node's namespaces."""
        parent = self._nodes[name].pid
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if not text or Path(f"/proc/{text[0]}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            return None
        return int(text[0])

    def on_node(self, name: str, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a process in a node's namespaces, which dies with the node."""
        inner = self._init(name)
        with log.open("ab") as output:
            return subprocess.Popen(
                ["nsenter", "-t", str(inner), "--net", "--uts", "--mount", "--pid", *command],
                env=self.environment,
                stdout=output,
                stderr=output,
            )

    def kill_node(self, name: str) -> None:
        """Kill all processes of a node."""
        process = self._nodes.pop(name)
        inner = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for each in inner:
            os.kill(int(each), signal.SIGKILL)
        process.wait()
        subprocess.run(["ip", "link", "delete", f"ts-{name}"], capture_output=True)


if __name__ == "__main__":  # a cluster for trying commands by hand
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with Cluster(Path(sys.argv[1])) as cluster:
        print(f"export SLURM_CONF={cluster.folder}/slurm.conf", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
