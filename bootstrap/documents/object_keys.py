"""Keys of a deployment's objects in S3. `stacks.constructs.nodes.object_rights` lists which of them nodes may access.

A fleet's nodes share one role, which may access the keys of all the fleet's runs, because a node still writes the last
save of the old run after the run is renamed. The fleet has the deployment's name.

An instance's role session has the user id `<role id>:<instance id>`. For heartbeats and reports, the role allows writes
only to keys that contain the caller's user id, so a node cannot overwrite another node's objects.
Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html (principal key values;
2026-11).
"""

from __future__ import annotations


def run_prefix(fleet: str, run: str) -> str:
    """Return the prefix of a run's objects, without a trailing slash."""
    return f"runs/{fleet}/{run}"


def control_prefix(fleet: str, run: str) -> str:
    """Return the prefix of a run's control records in the control bucket, with a trailing slash."""
    return f"{run_prefix(fleet, run)}/control/"


def results_prefix(fleet: str, run: str) -> str:
    """Return the prefix of the results of a run's generations in the checkpoint bucket, with a trailing slash."""
    return f"{run_prefix(fleet, run)}/results/"


def is_event_file(name: str) -> bool:
    """Return True for the name of a file that TensorBoard reads. Source (2026-11): `IsTensorFlowEventsFile` in
    https://github.com/tensorflow/tensorboard/blob/master/tensorboard/backend/event_processing/io_wrapper.py
    """
    return "tfevents" in name.rpartition("/")[2]


def is_tracking_file(path: str) -> bool:
    """Return True for the path in a run directory of a file that grows with the run, for TensorBoard or a tracker.

    `wandb sync` reads only the file `*.wandb` of an offline run. MLflow's file store has a file for each metric.
    Sources (2026-11): https://docs.wandb.ai/models/support/run_wandb_offline and `FileStore` in
    https://github.com/mlflow/mlflow/blob/master/mlflow/store/tracking/file_store.py
    """
    folder = path.partition("/")[0]
    return is_event_file(path) or folder == "mlruns" or (folder == "wandb" and path.endswith(".wandb"))


def user_id(role_id: str, instance_id: str) -> str:
    """Return the value of `aws:userid` in an instance's calls."""
    return f"{role_id}:{instance_id}"


def heartbeat_key(fleet: str, run: str, user: str) -> str:
    """Return the key of a node's heartbeat; `user` is its `user_id`."""
    return f"{control_prefix(fleet, run)}heartbeats/{user}.json"


def report_prefix(user: str) -> str:
    """Return the prefix of an instance's failure reports in the control bucket, with a trailing slash."""
    return f"nodes/{user}/"
