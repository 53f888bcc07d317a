"""The job script: a readable bash program for sbatch.

Options (2026-11): https://slurm.schedmd.com/sbatch.html, https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator

from trainstack.slurm.plan import Plan

BODY = r"""
# The commands of the job: begin, notice and conclude. They need no packages.
job() { PYTHONPATH=$code {host_python} -m bootstrap.slurm "$@"; }

# A signal does not end this script. It asks the trainers to save and stop.
reason=
records=
stop_trainers() {
  reason=$1
  if [ -n "$records" ]; then
    printf '{"reason": "%s"%s}\n' "$1" "$2" > "$records/.stop" && mv "$records/.stop" "$records/stop"
  fi
}
# {signal_seconds} s before the time limit (--signal):
trap 'stop_trainers time_limit ", \"deadline_unix_seconds\": $(($(date +%s) + {signal_seconds}))"' USR1
trap 'stop_trainers terminated ""' TERM

while true; do
  # Claims the next generation of trainers. Code 10: the run is over, stopped, or continued by another job.
  settings=$(job begin)
  case $? in
    0) eval "$settings" ;;
    10) exit 0 ;;
    *) exit 1 ;;
  esac
  export TRAINSTACK_GENERATION=$generation TRAINSTACK_RECORDS=$records
  export TRAINSTACK_MASTER_ADDRESS=$master_address TRAINSTACK_MASTER_PORT=$master_port
  export TRAINSTACK_GRACE_SECONDS=$grace_seconds

  # One task per {task}. A task that fails ends the others.
  PYTHONPATH=$code srun --nodes="$node_count" --nodelist="$nodes" --ntasks=$((node_count * {tasks})) \
    {srun_options} \
    {program} -m bootstrap.slurm node &
  step=$!
  if [ -n "$reason" ]; then stop_trainers "$reason" ""; fi

  # When a node stops, a job that continues the run is queued before this one ends.
  is_continued=
  while kill -0 "$step" 2>/dev/null; do
    if [ -z "$is_continued" ] && { [ -n "$reason" ] || compgen -G "$records/stopping-*.json" > /dev/null; }; then
      job notice --generation "$generation" --reason "$reason"
      is_continued=yes
    fi
    sleep 1
  done
  wait "$step"

  # Reads outcomes/rank-*.json: exit codes do not tell a stop from a failure.
  case $(job conclude --generation "$generation" --reason "$reason") in
    again) ;;
    failed | "") exit 1 ;;
    *) exit 0 ;;
  esac
done
"""


def script_text(plan: Plan) -> str:
    """Return the job script."""
    slurm, training = plan.slurm, plan.config.training
    document = plan.members[0].document
    lines = [
        "#!/bin/bash",
        f"# Trains {plan.config.name}, run {training.run}, in jobs of a Slurm cluster.",
        "# `trainstack slurm script FILE` has written this script; edit the deployment file instead.",
        "#",
        *(f"#SBATCH {option:<32}# {why}" if why else f"#SBATCH {option}" for option, why in _options(plan)),
        "",
        f"code={plan.code}",
        f"run={training.run}" + ("-$SLURM_ARRAY_TASK_ID" if plan.is_sweep else ""),
        f'export TRAINSTACK_JOB="{slurm.directory}/runs/$run/job.json"',
        *(["", *slurm.setup] if slurm.setup else []),
    ]
    by_process = slurm.launch == "srun"
    body = BODY
    for name, value in {
        "host_python": slurm.host_python,
        "signal_seconds": str(slurm.signal_seconds),
        "task": "process" if by_process else "node, which runs the launcher",
        "tasks": str(document.processes_per_node if by_process else 1),
        "srun_options": " ".join(_srun_options(plan)),
        "program": " ".join(_program(plan)),
    }.items():
        body = body.replace(f"{{{name}}}", value)
    return "\n".join(lines) + "\n" + body


def submission_digest(plan: Plan) -> str:
    """Return a digest of everything that the jobs of a plan depend on, for finding out whether a file has changed."""
    parts = [script_text(plan), *(member.config_text + member.document.to_text() for member in plan.members)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _options(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield sbatch's options, each with a comment or an empty text."""
    slurm, capacity = plan.slurm, plan.config.capacity
    document = plan.members[0].document
    tasks = document.processes_per_node if slurm.launch == "srun" else 1
    yield f"--job-name={plan.job_name}", ""
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        value = getattr(slurm, name)
        if value is not None:
            yield f"--{name}={shlex.quote(value)}", ""
    yield f"--nodes={document.nodes}", ""
    yield f"--ntasks-per-node={tasks}", ""
    if plan.gres is not None:
        yield f"--gres={plan.gres}", "per node"
    if slurm.exclusive:
        yield "--exclusive", "no other jobs on the nodes"
    if slurm.cpus_per_node is not None:
        yield f"--cpus-per-task={max(1, slurm.cpus_per_node // tasks)}", ""
    if slurm.memory_gib is not None:
        yield f"--mem={slurm.memory_gib}G", "per node"
    elif slurm.exclusive:
        yield "--mem=0", "all memory of the nodes"
    if slurm.time_limit_minutes is not None:
        yield f"--time={slurm.time_limit_minutes}", "minutes; the next job continues"
    yield f"--signal=B:USR1@{slurm.signal_seconds}", "to this script, before the time limit"
    if slurm.continue_by == "spare":
        yield "--no-requeue", "the held successor continues instead"
    else:
        yield "--requeue", "after the loss of a node"
    if (capacity.min_nodes or capacity.nodes) < capacity.nodes:
        yield "--no-kill", "continue on the remaining nodes"
    yield "--open-mode=append", "a requeued job continues its log"
    if plan.is_sweep:
        limit = f"%{slurm.sweep_parallel}" if slurm.sweep_parallel is not None else ""
        yield f"--array=0-{len(plan.members) - 1}{limit}", "one task per combination"
    yield f"--output={plan.folder}/log/{'%A_%a' if plan.is_sweep else '%j'}.log", ""


def _srun_options(plan: Plan) -> Iterator[str]:
    slurm = plan.slurm
    document = plan.members[0].document
    by_process = slurm.launch == "srun"
    yield from ("--kill-on-bad-exit=1", "--label", "--cpu-bind=none")
    hyperpod = plan.config.hyperpod
    if plan.config.engine == "hyperpod" and hyperpod is not None and hyperpod.node_recovery:
        # HyperPod replaces a node with a hardware fault, and starts the step again. Source (2026-11):
        # https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-resiliency-slurm-auto-resume.html
        yield "--auto-resume=1"
    if by_process:
        yield f"--ntasks-per-node={document.processes_per_node}"
        yield "--distribution=block"
    else:
        yield "--ntasks-per-node=1"
    if slurm.cpus_per_node is not None:  # since 22.05, srun does not inherit it
        yield f"--cpus-per-task={max(1, slurm.cpus_per_node // (document.processes_per_node if by_process else 1))}"
    container = slurm.container
    assert container is None or container.image is not None, "trainstack.image.reference.with_image"
    if container is not None and container.runtime == "pyxis":
        yield f"--container-image={container.image}"
        yield f"--container-mounts={','.join(_mounts(plan))}"


def _program(plan: Plan) -> Iterator[str]:
    container = plan.slurm.container
    if container is not None and container.runtime == "apptainer":
        assert container.image is not None, "trainstack.image.reference.with_image"
        yield from ("apptainer", "exec")
        if plan.gres is not None:
            yield "--nv"
        yield from ("--bind", ",".join(_mounts(plan)), container.image)
    yield plan.members[0].document.interpreter


def _mounts(plan: Plan) -> list[str]:
    """Return the folders to mount in a container, as SOURCE:TARGET."""
    slurm = plan.slurm
    assert slurm.container is not None, "checked by the callers"
    folders = [slurm.directory]
    if slurm.datasets is not None:
        folders.append(slurm.datasets)
    folders += [part for part in (slurm.checkpoints or "").split(",") if part.startswith("/")]
    return list(dict.fromkeys([*(f"{each}:{each}" for each in folders), *map(_mount, slurm.container.mounts)]))


def _mount(text: str) -> str:
    return text if ":" in text else f"{text}:{text}"
