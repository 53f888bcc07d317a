"""The engine `slurm`: job scripts, sweeps, status and causes, without a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap.slurm.commands import SlurmError
from bootstrap.slurm.records import Generations, write_json
from stacks.config.reference import fields
from stacks.config.slurm import SlurmConfig
from trainstack import dispatch
from trainstack.commands import main
from trainstack.engines.engine import LogQuery, Submission
from trainstack.engines.fleet import FleetEngine
from trainstack.session import CommandError
from trainstack.slurm.command import read_plan
from trainstack.slurm.engine import SlurmEngine
from trainstack.slurm.files import read_records
from trainstack.slurm.queue import REASONS
from trainstack.slurm.script import script_text, submission_digest

ROOT = Path(__file__).resolve().parents[2]
SUBMISSION = Submission((), 10, False, False)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(slurm: dict[str, Any] | None = None, **sections: Any) -> Path:
        document = {
            "name": "x",
            "engine": "slurm",
            "slurm": {"directory": str(tmp_path / "shared"), "gres": "gpu:2", **(slurm or {})},
            "capacity": {"nodes": 2},
            "training": {"dataset": "text", "run": "run-1", "config": {"steps": 10, "global_batch_size": 8}},
            **sections,
        }
        path = tmp_path / "x.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return file


def options(file: Path) -> dict[str, str]:
    """Return sbatch's options in a script."""
    lines = [line.split() for line in script_text(read_plan(file)).splitlines() if line.startswith("#SBATCH")]
    return {word.partition("=")[0]: word.partition("=")[2] for _, word, *_ in lines}


@pytest.mark.parametrize("name", ["two-nodes", "sweep"])
def test_scripts_of_the_examples_are_valid_bash(name: str) -> None:
    text = script_text(read_plan(ROOT / "config" / "slurm" / f"{name}.yaml"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    assert not [line for line in text.splitlines() if len(line) > 160]


def test_options(write: Write) -> None:
    found = options(write({"partition": "gpu", "time_limit_minutes": 60, "continue_by": "spare"}))
    assert found["--nodes"] == "2" and found["--gres"] == "gpu:2" and found["--mem"] == "0"
    assert found["--signal"] == "B:USR1@300" and found["--open-mode"] == "append" and found["--time"] == "60"
    assert "--no-requeue" in found and "--no-kill" not in found and "--requeue" not in found
    shrinking = options(write(capacity={"nodes": 2, "min_nodes": 1}))
    assert "--no-kill" in shrinking and "--requeue" in shrinking


EDITS: dict[str, Any] = {
    "directory": "/other",
    "datasets": "/data",
    "checkpoints": "s3://bucket/runs",
    "partition": "gpu",
    "account": "lab",
    "qos": "high",
    "constraint": "h100&efa",
    "reservation": "r1",
    "gres": "gpu:a100:4",
    "exclusive": False,
    "cpus_per_node": 8,
    "memory_gib": 64,
    "time_limit_minutes": 60,
    "signal_seconds": 120,
    "continue_by": "requeue",
    "max_failures": 9,
    "launch": "srun",
    "host_python": "python3.9",
    "setup": ["module load cuda"],
    "watch_spot_notices": False,
    "health_check": False,
    "sweep": {"seed": [1, 2]},
    "sweep_parallel": 1,
    "container.image": "docker://pytorch:2.9",
    "container.runtime": "apptainer",
    "container.mounts": ["/opt"],
}
TOGETHER: dict[str, dict[str, Any]] = {
    "cpus_per_node": {"exclusive": False},
    "sweep_parallel": {"sweep": {"seed": [1, 2]}},
    "container.image": {"container": {"image": "nvcr.io#pytorch:1"}},
    "container.runtime": {"container": {"image": "nvcr.io#pytorch:1"}},
    "container.mounts": {"container": {"image": "nvcr.io#pytorch:1"}},
}


@pytest.mark.parametrize("key", sorted({path for path, _, _ in fields(SlurmConfig)}))
def test_each_key_has_an_effect(write: Write, key: str) -> None:
    before = submission_digest(read_plan(write(TOGETHER.get(key))))
    *parents, last = key.split(".")
    edited: dict[str, Any] = json.loads(json.dumps(TOGETHER.get(key, {})))
    place = edited
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = EDITS[key]
    assert submission_digest(read_plan(write(edited))) != before


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        ({"training": {"dataset": "other", "config": {"steps": 10}}}, True),
        ({"training": {"dataset": "text", "config": {"steps": 11}}}, True),
        ({"node": {"python": {"interpreter": "python3"}}}, True),
        ({"node": {"fabric": "efa"}}, True),
        ({"region": "us-west-2"}, True),
        ({"observability": {"dashboard": False}}, False),
    ],
)
def test_the_other_sections_have_the_documented_effect(write: Write, edit: dict[str, Any], changes: bool) -> None:
    base = {"training": {"dataset": "text", "config": {"steps": 10}}}
    before = submission_digest(read_plan(write(**base)))
    assert (submission_digest(read_plan(write(**{**base, **edit}))) != before) is changes


def test_a_sweep_is_an_array_of_its_length(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        {"sweep": {"optimizer.learning_rate": [1e-3, 3e-4, 1e-4], "seed": [1, 2, 3]}, "sweep_parallel": 2},
    )
    assert options(file)["--array"] == "0-8%2"
    plan = read_plan(file)
    settings = {
        (json.loads(m.config_text)["optimizer"]["learning_rate"], json.loads(m.config_text)["seed"])
        for m in plan.members
    }
    assert len(settings) == 9 and len({member.document.folder for member in plan.members}) == 9
    assert len({member.document.checkpoints for member in plan.members}) == 9
    with pytest.raises(SystemExit):
        main(["slurm", "sweep", str(file), "--json"])
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [f"run-1-{index}" for index in range(9)]


def test_containers_and_launchers(write: Write) -> None:
    pyxis = script_text(
        read_plan(write({"container": {"image": "nvcr.io#pytorch:1", "mounts": ["/opt/x"]}, "datasets": "/d"}))
    )
    assert "--container-image=nvcr.io#pytorch:1" in pyxis and "/d:/d,/opt/x:/opt/x" in pyxis
    apptainer = script_text(read_plan(write({"container": {"image": "docker://x:1", "runtime": "apptainer"}})))
    assert "apptainer exec --nv --bind" in apptainer
    by_process = script_text(read_plan(write({"launch": "srun"})))
    assert "#SBATCH --ntasks-per-node=2" in by_process and "--ntasks=$((node_count * 2))" in by_process


class Slurm:
    """Slurm's queue: the jobs as squeue prints them, and the calls."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *command: str) -> str:
        self.calls.append(command)
        if command[0] == "squeue":
            return "\n".join(self.queue)
        if command[0] == "sbatch":
            self.queue.append("12|PENDING|Resources||2026-11-30T12:00:00")
            return "12"
        if command[0] == "scancel":
            self.queue.clear()
        return ""


def engine(file: Path, slurm: Slurm) -> SlurmEngine:
    return SlurmEngine(read_plan(file), file, slurm)


def test_a_run_from_submission_to_the_end(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm()
    file = write()
    one = engine(file, slurm)
    one.submit(SUBMISSION)
    plan = read_plan(file)
    folder = Path(plan.members[0].document.folder)
    assert (Path(plan.code) / "bootstrap" / "slurm" / "job.py").is_file() and (folder / "run.json").is_file()
    waiting = one.observe().to_json()
    assert (waiting["phase"], waiting["cause"]) == ("waiting", "Resources")
    assert one.explain().lines()[0] == f"Resources: {REASONS['Resources'][0]}"
    one.submit(SUBMISSION)
    assert len([call for call in slurm.calls if call[0] == "sbatch"]) == 1, "nothing has changed"

    slurm.queue = ["12|RUNNING|None|n[1-2]|N/A"]
    generations = Generations(folder)
    generations.claim(nodes=["n1", "n2"])
    assert one.observe().to_json()["phase"] == "starting"
    record = {"record": "step", "step": 4, "loss": 2.5, "tokens_per_second": 10.0, "unix_seconds": 1.0}
    (generations.folder(1) / "metrics.jsonl").write_text(
        f'{{"record": "checkpoint", "step": 2}}\n{json.dumps(record)}\n{{"rec'
    )
    running = one.observe().to_json()
    assert (running["phase"], running["step"], running["checkpoint_step"]) == ("running", 4, 2)
    assert one.explain().to_json()["cause"] == "no_progress"

    write_json(folder / "failed.json", message="rank 1 was killed")
    slurm.queue = []
    assert one.explain().to_json()["cause"] == "failed"
    one.resume(waits=False, as_json=False)
    assert json.loads((folder / "resumed.json").read_text())["generation"] == 1
    assert not (folder / "failed.json").exists() and one.observe().to_json()["phase"] == "waiting"
    one.stop(waits=True, as_json=False)
    assert one.observe().to_json()["phase"] == "stopped"
    write_json(folder / "finished.json", message="done")
    capsys.readouterr()
    one.resume(waits=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["result"] == "was not stopped"


def test_stop_signals_the_script_of_running_jobs_and_cancels_pending_ones(write: Write) -> None:
    slurm = Slurm()
    file = write()
    engine(file, slurm).submit(SUBMISSION)
    slurm.queue = ["12|RUNNING|None|n[1-2]|N/A", "13|PENDING|Dependency||N/A"]
    slurm.calls.clear()
    engine(file, slurm).stop(waits=False, as_json=False)
    stopped = [call for call in slurm.calls if call[0] == "scancel"]
    assert stopped == [("scancel", "--batch", "--signal=TERM", "12"), ("scancel", "13")]


def test_only_unfinished_tasks_of_a_sweep_are_submitted_again(write: Write) -> None:
    slurm = Slurm()
    file = write({"sweep": {"seed": [1, 2, 3]}})
    engine(file, slurm).submit(SUBMISSION)
    write_json(Path(read_plan(file).members[1].document.folder, "finished.json"), message="done")
    slurm.queue = []
    engine(file, slurm).resume(waits=False, as_json=False)
    assert [call[2] for call in slurm.calls if call[0] == "sbatch"][1:] == ["--array=0,2"]


def test_an_edited_file_replaces_the_jobs(write: Write) -> None:
    slurm = Slurm()
    engine(write(), slurm).submit(SUBMISSION)
    slurm.calls.clear()
    engine(write({"max_failures": 5}), slurm).submit(SUBMISSION)
    assert [call[0] for call in slurm.calls if call[0] != "squeue"] == ["scancel", "sbatch"]
    with pytest.raises(CommandError, match="has changed since its jobs"):
        engine(write({"max_failures": 6}), slurm).resume(waits=False, as_json=False)


def test_logs(write: Write) -> None:
    file = write()
    folder = Path(read_plan(file).folder, "log")
    folder.mkdir(parents=True)
    (folder / "12.log").write_text("0: first\n1: second\nthe script\n")
    found = engine(file, Slurm())
    assert list(found.logs(LogQuery("", None, 3600, False))) == ["0: first", "1: second", "the script"]
    assert list(found.logs(LogQuery("", 1, 3600, False))) == ["1: second"]
    with pytest.raises(CommandError, match="--node"):
        list(found.logs(LogQuery("i-1", None, 3600, False)))


def test_a_machine_without_slurm_is_an_error(write: Write) -> None:
    def missing(*command: str) -> str:
        raise SlurmError("squeue: No such file or directory")

    with pytest.raises(CommandError, match="login node"):
        SlurmEngine(read_plan(write()), Path("x.yaml"), missing).observe()


def test_damaged_records_are_an_error(write: Write) -> None:
    member = read_plan(write()).members[0]
    folder = Path(member.document.folder)
    folder.mkdir(parents=True)
    (folder / "finished.json").write_text("[")
    with pytest.raises(CommandError, match="damaged"):
        read_records(member)


def test_the_engine_follows_from_the_file(write: Write) -> None:
    assert isinstance(dispatch.engine_of(str(write()), None), SlurmEngine)
    assert isinstance(dispatch.engine_of("config/single-gpu.yaml", None), FleetEngine)
    assert isinstance(dispatch.engine_of("name", None), FleetEngine)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["down"], "engine slurm has no billed resources"),
        (["restart"], "must be a deployment name"),
        (["events"], "must be a deployment name"),
    ],
)
def test_commands_for_fleets_reject_the_file(
    write: Write, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, str(write())])
    assert ended.value.code in (2, 4) and message in capsys.readouterr().err
