"""Builds of container images, cold and after edits: `python -m benchmarks.image` writes build/bench/image.json.

Builds the image of a small deployment on a debootstrap base with buildah, with wheels from an index on this machine
that counts downloads. A cold build has an empty storage and an empty cache. Then the code is edited, and later a
dependency is added. A cold build in another storage must have the same digest. The built root file system then trains
20 steps in a chroot, as the image's user.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.image.index import Index, serving
from benchmarks.image.storage import ROOT, Storage, base_archive, run

REPORT = Path("build/bench/image.json")
ARCHIVE = Path("build/bench/image-base.tar")
BASE = "localhost/trainstack-base:1"
PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap"}
EDIT_BOUND_SECONDS = 15.0
RATIO_BOUND = 9.0
STEPS = 20
DEPENDENCY = "einops"
MODULE = "my_code"
MODEL = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 32, "sequence_length": 32}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and return 0 if all bounds are met, or if the machine cannot run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/bench/image-work"), help="folder for images (10 GB)")
    options = parser.parse_args(arguments)
    missing = [package for name, package in PROGRAMS.items() if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print(f"make bench-image: skipped; needs root and Debian's packages, missing: {' '.join(missing) or 'none'}")
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    report = REPORT.resolve()
    with tempfile.TemporaryDirectory(dir=options.work.resolve(), prefix="run-", ignore_cleanup_errors=True) as name:
        found = measure(Path(name))
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(found, indent=2) + "\n")
    print(f"load {found['load'][0]:.1f}; CPU time of a cold build {found['cold_cpu_seconds']:.0f} s, of a code edit "
          f"{found['edit_cpu_seconds']:.1f} s")  # fmt: skip
    for row in found["bounds"]:
        print(f"{'met   ' if row['met'] else 'MISSED'} {row['text']}: {row['value']}")
    return 0 if all(row["met"] for row in found["bounds"]) else 1


class Deployment:
    """The deployment file and its user code, operated with `trainstack image`."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self._index = folder, index
        self.file = folder / "tiny.yaml"
        self.pip_config = folder / "pip.conf"
        self.pip_config.write_text(index.pip_config())
        (folder / "code").mkdir()
        self.edit_code(1)
        self.write()

    def write(self, **training: Any) -> None:
        """Write the deployment file."""
        config = {"steps": STEPS, "global_batch_size": 4, "micro_batch_size": 2, "threads": 1, "model": MODEL}
        config["checkpoint"] = {"interval_steps": STEPS}
        document = {
            "name": "tiny",
            "engine": "kubernetes",
            "image": {"base": BASE, "torch": "cpu", "repository": "localhost/trainstack/tiny"},
            "kubernetes": {"bucket": "my-bucket"},
            "capacity": {"nodes": 1},
            "training": {"dataset": "text", "code": "code", "config": config, **training},
        }
        self.file.write_text(yaml.safe_dump(document))

    def edit_code(self, value: int) -> None:
        """Change the user code."""
        (self.folder / "code" / f"{MODULE}.py").write_text(f'"""A module."""\n\nVALUE = {value}\n')

    def image(self, storage: Storage, *arguments: str | Path) -> str:
        """Run `trainstack image` in a storage."""
        action, *rest = arguments
        tools = os.pathsep.join([os.environ["PATH"], str(ROOT / "build" / "image-venv" / "bin")])
        environment = {**storage.environment, "PATH": tools, "PYTHONPATH": str(ROOT)}
        return run([sys.executable, "-m", "trainstack", "image", action, self.file, *rest], environment, self.folder)

    def lock(self, storage: Storage) -> None:
        """Lock the image, and make its wheels available in the index."""
        self.image(storage, "lock")
        self.image(storage, "lint")
        from stacks.artifacts.wheelhouse.building import fetch
        from stacks.loading import load
        from trainstack.image.lock import read_lock

        config = load(self.file)
        wheels = read_lock(config, self.file).wheels
        fetch(wheels, "3.11", self._index.folder, lambda text: print(text, file=sys.stderr))

    def build(self, storage: Storage) -> tuple[str, float]:
        """Build the image with the code. Return its name and the seconds of the complete command."""
        started = time.perf_counter()
        output = self.image(storage, "build", "--target", "run", "--pip-config", self.pip_config, "--json")
        seconds = time.perf_counter() - started
        answer = json.loads(output.splitlines()[-1])
        print(f"built {answer['reference']} in {seconds:.1f} s", file=sys.stderr)
        return str(answer["reference"]), seconds


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures and the bounds."""
    archive = base_archive(ARCHIVE.resolve())
    wheels = Path("build/wheelhouse").resolve()
    wheels.mkdir(parents=True, exist_ok=True)
    (folder / "build").mkdir()
    (folder / "build" / "wheelhouse").symlink_to(wheels)
    os.chdir(folder)  # a deployment's code is in the current folder
    first, second = Storage(folder / "first"), Storage(folder / "second")
    try:
        with serving(wheels / "wheels") as index:
            return _measure(folder, archive, first, second, index)
    finally:
        first.close()
        second.close()


def _measure(folder: Path, archive: Path, first: Storage, second: Storage, index: Index) -> dict[str, Any]:
    for storage in (first, second):
        storage.add_base(archive, BASE)
    deployment = Deployment(folder, index)
    deployment.lock(first)
    before = _cpu_seconds()
    reference, cold = deployment.build(first)
    cold_cpu = _cpu_seconds() - before
    downloads = sum(index.downloads.values())
    layers = first.layers(reference)
    digest = first.manifest_digest(reference)
    again, _ = deployment.build(second)
    digests = [digest, second.manifest_digest(again)]
    index.downloads.clear()
    edited, edits = [], []
    before = _cpu_seconds()
    for value in (2, 3, 4):
        deployment.edit_code(value)
        name, seconds = deployment.build(first)
        edits.append(seconds)
        edited.append(sum(one != other for one, other in zip(layers, first.layers(name), strict=True)))
    edit_cpu = (_cpu_seconds() - before) / len(edits)
    after_edits = sum(index.downloads.values())
    deployment.write(dependencies=[DEPENDENCY])
    deployment.lock(first)
    _, relocked = deployment.build(first)
    new = sorted(index.downloads)
    steps = train(first, reference, folder)
    edit = sorted(edits)[1]
    bounds = [
        _bound(f"a code edit, s (median of 3, at most {EDIT_BOUND_SECONDS:.0f})", edit, edit <= EDIT_BOUND_SECONDS),
        _bound(f"cold build relative to it (at least {RATIO_BOUND:.0f})", cold / edit, cold / edit >= RATIO_BOUND),
        _bound("layers that a code edit rebuilds", edited, edited == [1, 1, 1]),
        _bound("downloads after a code edit", after_edits, after_edits == 0),
        _bound(
            "downloads after another dependency", new, len(new) == 1 and new[0].startswith(DEPENDENCY)
        ),
        _bound("digests of two cold builds", [each[:19] for each in digests], len(set(digests)) == 1),
        _bound("steps trained in a chroot", steps, steps == STEPS),
    ]  # fmt: skip
    return {
        "load": os.getloadavg(),
        "cold_seconds": cold,
        "cold_cpu_seconds": cold_cpu,
        "edit_cpu_seconds": edit_cpu,
        "edit_seconds": edits,
        "lock_edit_seconds": relocked,
        "downloads_cold": downloads,
        "layers": len(layers),
        "digests": digests,
        "bounds": bounds,
    }


def _cpu_seconds() -> float:
    """Return the CPU time of all ended child processes, which does not depend on the machine's load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _bound(text: str, value: Any, met: bool) -> dict[str, Any]:
    return {"text": text, "value": round(value, 2) if isinstance(value, float) else value, "met": met}


def train(storage: Storage, reference: str, folder: Path) -> int:
    """Train in the root file system of an image, as its user. Return the number of completed steps."""
    shared = folder / "shared"
    (shared / "texts").mkdir(parents=True)
    for path in sorted(Path(json.__file__).parent.parent.glob("[a-d]*.py")):
        shutil.copy(path, shared / "texts" / f"{path.name}.txt")
    container = storage.buildah("from", reference).strip()
    for name in ("data", "output"):
        (shared / name).mkdir()
        (shared / name).chmod(0o777)
    mounts = [option for name in ("data", "output") for option in ("--volume", f"{shared / name}:/mnt/{name}")]
    python = "/opt/pytorch/bin/python3"

    def inside(*command: str) -> str:
        return storage.buildah("run", "--isolation", "chroot", *mounts, container, "--", python, *command)

    user = inside("-c", "import os, my_code; print(os.getuid(), my_code.VALUE)").split()
    if user != ["10001", "1"]:
        sys.exit(f"{reference}: user and code are {user}, expected 10001 and 1")
    # The image has no tokenizers: users prepare data elsewhere.
    tokenize: list[str | Path] = [
        sys.executable,
        "-m",
        "training",
        "tokenize",
        "--input",
        shared / "texts",
        "--output",
        shared / "data",
    ]
    run([*tokenize, "--name", "text", "--vocabulary-size", "300"])
    config = yaml.safe_load((folder / "tiny.yaml").read_text())["training"]["config"]
    (shared / "output" / "run.json").write_text(json.dumps(config))
    inside("-m", "training", "train", "--config", "/mnt/output/run.json", "--dataset", "/mnt/data/text",
           "--checkpoints", "/mnt/output/checkpoints", "--run-directory", "/mnt/output/run",
           "--generation", "1")  # fmt: skip
    lines = (shared / "output" / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return sum(record["record"] == "step" for record in records)


if __name__ == "__main__":
    sys.exit(main())
