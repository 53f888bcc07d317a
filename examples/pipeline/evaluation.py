"""A step of a pipeline that evaluates a model, and compares it with a baseline in the checkpoint bucket."""

from __future__ import annotations

import json
from pathlib import Path

import boto3

from training.inference.steps import evaluate

BASELINE = "runs/demo-pipe/baseline/checkpoints/limits.json"


def against_baseline(weights: str, dataset: Path, output: Path) -> dict[str, float]:
    """Return the model's metrics, and the difference from the baseline's bits per byte.

    The baseline is an object that someone has uploaded before: ``{"bits_per_byte": 8.0}``.
    """
    bucket = weights.removeprefix("s3://").partition("/")[0]
    content = boto3.client("s3").get_object(Bucket=bucket, Key=BASELINE)["Body"].read()
    metrics = evaluate(weights, dataset)
    above = metrics["bits_per_byte"] - float(json.loads(content)["bits_per_byte"])
    (output / "comparison.json").write_text(json.dumps({**metrics, "above_baseline": above}) + "\n")
    return {**metrics, "above_baseline": above}
