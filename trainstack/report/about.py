"""Reads what a report says about the run itself: its settings, dataset, code and weights.

The keys of the result are `name`, `run`, `run_digest`, `nodes`, `processes_per_node`, `settings` (dotted name to
value), `dataset`, `code` {sha256, url}, `weights` {url, step} and, for a GPT or Llama, `sample`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.documents import RunDocument
from bootstrap.documents.object_keys import run_prefix
from trainstack.account import Clients, Deployment
from trainstack.programs import python

SAMPLE_TOKENS, SAMPLE_TEMPERATURE, SAMPLE_TOP_K, SAMPLE_SEED = 120, 0.8, 50, 0
SAMPLE_TIMEOUT_SECONDS = 600.0
MAX_RECORD_BYTES = 16 * 1024 * 1024
Values = dict[str, Any]


def about_run(client: Clients, deployment: Deployment, run: RunDocument, checkpoint_step: int | None) -> Values:
    """Return the facts about a run.

    Args:
        client: Clients of the account.
        deployment: The run's deployment.
        run: The run document.
        checkpoint_step: Step of the newest checkpoint; None without one.
    """
    prefix = f"{run_prefix(deployment.name, run.run)}/checkpoints"
    return {
        "name": deployment.name,
        "run": run.run,
        "run_digest": run.digest(),
        "nodes": run.nodes,
        "processes_per_node": run.processes_per_node,
        "settings": dict(_flat(run.training)),
        "dataset": _dataset(client, deployment, run),
        "code": {"sha256": run.code.sha256, "url": f"s3://{run.code.bucket}/{run.code.key}"},
        "weights": {"url": f"s3://{deployment.checkpoint_bucket}/{prefix}", "step": checkpoint_step},
    }


def text_sample(about: Values, prompt: str) -> Values | None:
    """Return a text that the newest checkpoint continues: `prompt`, `text`, `step`, or a `problem`.

    Returns None for a run without text: one with a model, dataset or script of its own, or without a checkpoint.
    """
    settings, dataset, step = about["settings"], about["dataset"], about["weights"]["step"]
    own = (settings.get(name) for name in ("entrypoint", "model.function", "data.function"))
    if any(own) or step is None or "tokens" not in dataset:
        return None
    arguments = [f"{about['weights']['url']}#{step}", "--dataset", dataset["url"], f"--prompt={prompt}"]
    arguments += ["--max-new-tokens", str(SAMPLE_TOKENS), "--temperature", str(SAMPLE_TEMPERATURE)]
    arguments += ["--top-k", str(SAMPLE_TOP_K), "--seed", str(SAMPLE_SEED)]
    try:
        done = subprocess.run(
            python("training", "sample", *arguments), capture_output=True, text=True, timeout=SAMPLE_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"no sample within {SAMPLE_TIMEOUT_SECONDS:.0f} s; try `trainstack sample {about['name']}`"}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"problem": f"`python -m training sample` failed with code {done.returncode}: {last}"}
    text = done.stdout.removesuffix("\n")
    return {"prompt": prompt, "text": text, "step": step, "temperature": SAMPLE_TEMPERATURE, "seed": SAMPLE_SEED}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _dataset(client: Clients, deployment: Deployment, run: RunDocument) -> Values:
    if run.prepare is not None:
        source = f"prepared by {run.prepare.function} from {run.prepare.source}"
        return {"name": run.dataset, "url": f"s3://{deployment.dataset_bucket}/datasets/prepared", "problem": source}
    key = f"datasets/{run.dataset}/dataset.json"
    found: Values = {"name": run.dataset, "url": f"s3://{deployment.dataset_bucket}/datasets/{run.dataset}"}
    try:
        body = client("s3").get_object(Bucket=deployment.dataset_bucket, Key=key)["Body"].read(MAX_RECORD_BYTES)
        record = json.loads(body)
        splits, source = record["splits"], record["source"]
        if "tokenizer" not in record:  # files of a user's own
            return found
        return found | {
            "tokens": {name: int(split["tokens"]) for name, split in splits.items()},
            "vocabulary_size": int(record["vocabulary_size"]),
            "bytes_per_token": float(record["bytes_per_token"]),
            "source_files": int(source["files"]),
            "source_bytes": int(source["bytes"]),
            "source_digest": str(source["digest"]),
        }
    except ClientError as error:
        code = error.response["Error"]["Code"]
        return found | {"problem": f"cannot be read ({code}); `trainstack reader-policy --models` permits it"}
    except (ValueError, KeyError, TypeError) as error:
        return found | {"problem": f"{key} is not a dataset's record ({type(error).__name__}: {error})"}
