"""Index of failure tests: each failure of a node leads to one uploaded event with a remedy, and to the correct
action."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent.parent

FAILURES = {
    "no metadata service": "bootstrap/test_boot.py::test_without_a_metadata_service_the_boot_fails_within_seconds",
    "an expired metadata token": "bootstrap/test_imds.py::test_an_expired_token_is_renewed",
    "credentials that expire during a run": (
        "bootstrap/failures/test_expired_credentials.py::test_credentials_are_renewed_before_they_expire"
    ),
    "an endpoint that hangs": "bootstrap/failures/test_no_answer.py::test_an_unresponsive_endpoint_ends_the_boot",
    "a bundle with another digest": "stacks/test_shim.py::test_rejects_a_bundle_with_another_digest",
    "code with another digest": "bootstrap/test_steps.py::test_bad_code_bundle_is_refused",
    "a document of another version": "bootstrap/test_documents.py::test_another_version_is_refused",
    "a small disk": "bootstrap/test_steps.py::test_a_small_disk_is_reported_before_the_download",
    "a disk that fills up during staging": (
        "bootstrap/failures/test_full_disk.py::test_a_disk_that_fills_up_during_staging_is_reported"
    ),
    "a volume attached elsewhere": (
        "bootstrap/test_volumes.py::test_a_checkpoint_volume_of_another_instance_is_not_mounted"
    ),
    "a volume in another zone that cannot be copied": (
        "localcloud/compute/test_volume_copies.py::test_denied_call_only_prevents_the_copy"
    ),
    "a missing GPU": "bootstrap/test_instance_checks.py::test_a_wrong_number_of_gpus_and_a_missing_report",
    "a wrong driver": ("bootstrap/test_gpu_links.py::test_an_old_driver_is_reported_rather_than_missing_gpus"),
    "a wheel missing from the bundle": ("bootstrap/test_wheelhouse.py::test_an_unsuitable_wheelhouse_is_reported"),
    "an image without boto3": "bootstrap/test_sdk.py::test_without_a_wheelhouse_the_remedy_is_named",
    "a driver that never loads": "bootstrap/test_late_services.py::test_a_driver_that_never_loads_ends_the_boot",
    "a service in the image that does not mount the disks": (
        "bootstrap/test_local_disks.py::test_a_service_that_does_not_mount_the_disks_is_named"
    ),
    "a node bundle that the role may not read": (
        "stacks/test_shim.py::test_the_cause_of_a_refused_download_is_on_the_console_and_in_the_report"
    ),
    "missing peers": "bootstrap/failures/test_gang.py::test_missing_peers_are_reported_and_waited_for",
    "two simultaneous electors": (
        "bootstrap/failures/test_gang.py::test_one_of_two_simultaneous_electors_wins_and_the_other_reports_it"
    ),
    "a live node that was declared lost": (
        "bootstrap/failures/test_gang.py::test_a_frozen_node_that_was_declared_lost_ends_its_part_and_rejoins"
    ),
    "a commit by a node that was declared lost": (
        "training/test_checkpoint_store.py::test_superseded_writer_cannot_commit"
    ),
    "a dataset object that changes during staging": (
        "bootstrap/failures/test_changed_dataset.py::test_a_dataset_object_that_changes_during_staging_ends_the_boot"
    ),
    "a dataset that differs from its index": "bootstrap/test_steps.py::test_damaged_dataset_is_refused",
    "SIGKILL of the supervisor": (
        "bootstrap/test_supervisors.py::test_a_restarted_supervisor_kills_old_trainers_and_rejoins"
    ),
    "a jump of this node's clock": (
        "bootstrap/failures/test_gang.py::test_a_clock_jump_is_reported_and_changes_nothing"
    ),
    "a jump of a peer's clock": "bootstrap/test_control.py::test_silence_is_measured_by_the_local_clock",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_each_failure_has_a_test(failure: str) -> None:
    path, _, name = FAILURES[failure].partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))

    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
