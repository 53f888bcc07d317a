"""Validates manifests against published schemas, in a separate environment: `schema_check.py FOLDER VERSION...`.

FOLDER contains YAML files. Each object of a core API is strictly validated against each Kubernetes version. JobSets,
TrainJobs and runtimes are decoded and encoded by the models of Kubeflow Trainer, which must keep every key.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}


def problems(document: dict[str, Any], versions: list[str]) -> list[str]:
    model = MODELS.get(document["kind"])
    if model is not None:
        try:
            kept = json.loads(model.from_json(json.dumps(document)).to_json())
        except ValueError as error:
            return [str(error)]
        if lost := difference(document, kept, ""):
            return [f"unknown to the schema: {lost}"]
        jobs = (
            document["spec"] if document["kind"] == "JobSet" else document["spec"].get("template", {}).get("spec", {})
        )
        nested = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": each["template"]["spec"]}
                  for each in jobs.get("replicatedJobs", [])]  # fmt: skip
        return [problem for job in nested for problem in problems(job, versions)]
    found = []
    for version in versions:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version}: {'.'.join(map(str, error.path))}: {error.message}")
    return found


def difference(given: Any, kept: Any, path: str) -> list[str]:
    if isinstance(given, dict):
        return [p for key in given for p in difference(given[key], (kept or {}).get(key), f"{path}.{key}")]
    if isinstance(given, list):
        pairs = zip(given, kept or [None] * len(given), strict=True)
        return [p for index, (one, two) in enumerate(pairs) for p in difference(one, two, f"{path}.{index}")]
    return [] if given == kept else [path]


def main(folder: str, *versions: str) -> None:
    report = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            report[f"{path.stem} {document['kind']}"] = problems(document, list(versions))
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
