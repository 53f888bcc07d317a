"""A stand-in for training/__main__.py in code bundles of tests: the trainer's command line without torch.

The ranks of a gang meet in a directory ($STANDIN_SHARED) instead of over a network. Rank 0 counts steps; "checkpoints"
are one number in that directory. config: {"steps", "step_seconds", "fail_at"?, "bad"?, "superseded"?, "save_every"?}
"""

import json
import os
import pathlib
import signal
import sys
import time

# The launcher forwards SIGTERM; the real trainer treats it as a stop request.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=False))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
config = json.loads(pathlib.Path(options["--config"]).read_text())
directory = pathlib.Path(options["--run-directory"])
generation = int(options["--generation"])
shared = pathlib.Path(os.environ["STANDIN_SHARED"])
meeting = shared / f"gen-{generation}"
checkpoint = shared / "checkpoint"
CODES = {"finished": 0, "stopped": 75, "bad_configuration": 78, "superseded": 76, "failed": 1}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{rank}")
    temporary.write_text(text)
    temporary.replace(path)


def record(name, **fields):
    with (directory / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"record": name, "unix_seconds": time.time(), **fields}) + "\n")


def end(outcome, step, message=""):
    text = {"schema_version": 1, "generation": generation, "rank": rank, "outcome": outcome, "step": step}
    text.update(
        checkpoint_step=int(checkpoint.read_text()) if checkpoint.exists() else 0, message=message, traceback=""
    )
    write(directory / "outcomes" / f"rank-{rank:05d}.json", json.dumps(text))
    sys.exit(CODES[outcome])


def flagged():
    if (directory / "stop").exists():
        write(meeting / "stop", (directory / "stop").read_text())
    return (meeting / "stop").exists()


def follow():
    while not (meeting / "end").exists():
        flagged()
        time.sleep(0.01)
    outcome, step = (meeting / "end").read_text().split()
    end(outcome, int(step))


def lead():
    while len(list(meeting.glob("here-*"))) < world:
        time.sleep(0.01)
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    record("start", step=step, resumed_from_step=step or None, world_size=world)
    while step < config["steps"]:
        if flagged():
            write(checkpoint, str(step))
            record("checkpoint", step=step, reason="stop")
            write(meeting / "end", f"stopped {step}")
            end("stopped", step)
        time.sleep(config["step_seconds"])
        step += 1
        record("step", step=step, loss=1 / step)
        if step == config.get("fail_at"):
            end("failed", step, "the loss is not a number")
        if (directory / "save").exists() or step % config.get("save_every", 10) == 0:
            (directory / "save").unlink(missing_ok=True)
            write(checkpoint, str(step))
            record("checkpoint", step=step, reason="interval")
    write(checkpoint, str(step))
    write(meeting / "end", f"finished {step}")
    end("finished", step)


if config.get("superseded"):
    end("superseded", 0, "generation 9 has committed")
if config.get("bad"):
    end("bad_configuration", 0, "optimizer.learning_rate: -1: must be above 0")
write(meeting / f"here-{rank}", str(os.getpid()))
lead() if rank == 0 else follow()
