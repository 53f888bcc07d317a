"""Where each failure of a node is tested: one clear event with a remedy, uploaded, and the right action."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent.parent

FAILURES = {
    "no metadata service": "bootstrap/test_boot.py::test_without_metadata_service_boot_ends_in_seconds",
    "a token that expired": "bootstrap/test_imds.py::test_a_token_that_ran_out_is_renewed",
    "credentials that expire in mid-run": (
        "bootstrap/failures/test_expired_credentials.py::"
        "test_credentials_that_expire_in_mid_run_are_renewed_before_a_call_is_refused"
    ),
    "an endpoint that hangs": "bootstrap/failures/test_no_answer.py::test_an_endpoint_that_never_answers_ends_the_boot",
    "a bundle with another digest": "stacks/test_shim.py::test_another_bundle_than_named_is_not_run",
    "code with another digest": "bootstrap/test_steps.py::test_bad_code_bundle_is_refused",
    "a document of a newer version": "bootstrap/test_documents.py::test_newer_version_is_refused_in_words",
    "a disk too small": "bootstrap/test_steps.py::test_too_small_a_disk_is_said_before_the_copy",
    "a disk full in mid-staging": (
        "bootstrap/failures/test_full_disk.py::test_a_disk_that_fills_up_in_mid_staging_is_named"
    ),
    "a volume attached elsewhere": (
        "bootstrap/test_volumes.py::test_a_checkpoint_volume_that_another_machine_has_is_left_to_it"
    ),
    "a volume of another zone that cannot be copied": (
        "localcloud/compute/test_volume_copies.py::test_a_refused_call_costs_the_copy_alone"
    ),
    "a missing GPU": "bootstrap/test_instance_checks.py::test_another_number_of_gpus_and_no_report_at_all",
    "a wrong driver": (
        "bootstrap/test_gpu_links.py::test_a_driver_that_is_too_old_is_named_rather_than_the_gpus_that_torch_lacks"
    ),
    "a wheel missing from the bundle": ("bootstrap/test_wheelhouse.py::test_what_does_not_fit_ends_in_one_clear_event"),
    "peers that never come": ("bootstrap/failures/test_gang.py::test_peers_that_never_come_are_named_and_waited_for"),
    "two nodes that both think they are first": (
        "bootstrap/failures/test_gang.py::"
        "test_of_two_nodes_that_both_think_they_are_first_one_leads_and_the_other_says_so"
    ),
    "a node declared lost that is alive": (
        "bootstrap/failures/test_gang.py::test_a_frozen_node_that_was_declared_lost_gives_up_its_part_and_joins_again"
    ),
    "a node declared lost that wants to commit": (
        "training/test_checkpoint_store.py::test_superseded_writer_commits_nothing"
    ),
    "a dataset object changed while it is fetched": (
        "bootstrap/failures/test_changed_dataset.py::"
        "test_a_dataset_object_that_changes_while_it_is_fetched_ends_the_boot"
    ),
    "a dataset that is not what its index says": "bootstrap/test_steps.py::test_damaged_dataset_is_refused",
    "SIGKILL of the supervisor": (
        "bootstrap/test_supervisors.py::test_restarted_supervisor_ends_left_over_trainers_and_rejoins"
    ),
    "this node's clock that jumps": (
        "bootstrap/failures/test_gang.py::test_a_clock_that_jumps_is_said_and_changes_nothing"
    ),
    "a peer's clock that jumps": "bootstrap/test_control.py::test_silence_is_measured_by_the_own_clock",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_it_has_a_test(failure: str) -> None:
    path, _, name = FAILURES[failure].partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))

    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
