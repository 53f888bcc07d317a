"""Bug reports about other trainers, and the tests that guard against them here.

Most of these tests belong to the module that they test. This table prevents their removal.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests/training/complaints"
CHECKPOINT = "tests/training/checkpoint"
REQUESTS = "tests/training/test_requests.py"
STOP = "tests/training/test_stop.py"
DATA = "tests/training/test_data.py"
STEP = "tests/training/test_step.py"
RECOVERY = "tests/training/test_recovery.py"
CURVES = "tests/training/test_loss_curves.py"
TUNING = "tests/training/test_tuning.py"
OBSERVATION = "tests/training/test_observation.py"
ABLATIONS = "tests/training/test_ablations.py"
SUPERVISORS = "tests/bootstrap/test_supervisors.py"

COVERED: dict[str, tuple[str, list[str]]] = {
    "https://github.com/pytorch/pytorch/issues/119856": (
        "torchrun kills 30 s after SIGTERM, and a save that takes longer is lost",
        [
            f"{STOP}::test_last_save",
            f"{HERE}/test_stopping.py::test_completes_the_running_save_if_a_new_one_would_miss_the_deadline",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/154849": (
        "torchrun does not forward SIGUSR1",
        [
            f"{STOP}::test_every_stop_signal_is_a_request",
            f"{REQUESTS}::test_stop_during_validation",  # by the stop file, which needs no signal
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/150916": (
        "an elastic job hangs when one agent is killed",
        [
            f"{SUPERVISORS}::test_a_silent_node_is_detected_and_its_trainers_are_killed",
            f"{HERE}/test_stopping.py::test_gangs_are_static",
        ],
    ),
    "https://github.com/goodfire-ai/spd/pull/677": (
        "a stop is not noticed during validation, warm-up and compilation",
        [
            f"{REQUESTS}::test_stop_during_validation",
            f"{REQUESTS}::test_stop_before_the_first_step_saves_nothing",
            f"{HERE}/test_stopping.py::test_stops_between_warm_up_passes",
        ],
    ),
    "https://github.com/kyutai-labs/pocket-tts/pull/277": (
        "ranks that stop at different steps deadlock",
        [f"{REQUESTS}::test_sigterm_on_one_rank_stops_all_ranks_and_a_second_one_changes_nothing"],
    ),
    "https://github.com/aws/sagemaker-training-toolkit/issues/173": (
        "the signal of a spot interruption never reaches the trainer",
        [
            f"{SUPERVISORS}::test_a_notice_saves_and_the_replacement_resumes",
            f"{HERE}/test_stopping.py::test_signal_to_torchrun_reaches_the_ranks",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/688": (
        "a kill during a save leaves an unreadable file",
        [
            "tests/training/test_checkpoint_store.py::test_crash_at_any_write_keeps_the_newest_committed_checkpoint",
            "tests/benchmarks/test_chaos.py::test_short_experiment",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/21431": (
        "a corrupt checkpoint is not reported as such",
        [
            "tests/training/test_damage.py::test_damage_found_by_one_rank_makes_all_ranks_fall_back",
            f"{CHECKPOINT}/test_crash_points.py::test_power_failure_at_every_system_call_of_a_directory_store",
            f"{HERE}/test_storing.py::test_names_a_truncated_chunk",
        ],
    ),
    "https://github.com/pytorch/torchtitan/pull/315": (
        "a run resumes from a partly written checkpoint",
        [
            "tests/training/test_checkpoint_store.py::test_crash_at_any_write_keeps_the_newest_committed_checkpoint",
            f"{HERE}/test_storing.py::test_ignores_chunks_without_a_commit",
            f"{HERE}/test_storing.py::test_interrupted_second_save_of_a_step_does_not_replace_the_first",
        ],
    ),
    "https://github.com/marin-community/marin/issues/9213": (
        "after a storage error on one rank the others hang",
        [
            "tests/training/test_damage.py::test_failed_upload_on_one_rank_fails_all_ranks",
            f"{HERE}/test_stopping.py::test_storage_error_of_one_rank_in_the_last_save_fails_all",
            f"{HERE}/test_stopping.py::test_hanging_storage_of_one_rank_delays_no_rank_past_the_deadline",
        ],
    ),
    "https://github.com/awslabs/s3-connector-for-pytorch/issues/219": (
        "the real error of an upload is hidden",
        [
            f"{HERE}/test_storing.py::test_message_has_the_error_code_of_the_service",
            f"{HERE}/test_storing.py::test_message_has_the_error_of_an_upload_part",
        ],
    ),
    "https://github.com/mlcommons/storage/issues/642": (
        "a process forked after the S3 client started its threads hangs",
        [f"{HERE}/test_storing.py::test_forked_process_can_use_s3"],
    ),
    "https://github.com/boto/boto3/issues/4839": (
        "the configured endpoint is ignored",
        [f"{HERE}/test_storing.py::test_every_request_uses_the_configured_endpoint"],
    ),
    "https://github.com/peak/s5cmd/issues/419": (
        "copies fail silently or mix two versions of a file",
        [
            f"{CHECKPOINT}/test_s3_ranges.py::test_two_versions_are_never_mixed",
            f"{CHECKPOINT}/test_s3_ranges.py::test_interrupted_range_is_retried",
            "tests/bootstrap/test_steps.py::test_damaged_dataset_is_refused",
            "tests/bootstrap/test_steps.py::test_staging_is_complete_incremental_and_follows_a_new_index",
        ],
    ),
    "https://github.com/pytorch/torchtitan/issues/146": (
        "the gradient scaler's state is lost on resume",
        [
            f"{HERE}/test_resuming.py::test_manifest_restores_the_gradient_scaler",
            f"{HERE}/test_resuming.py::test_checkpointer_restores_the_gradient_scaler",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/1772": (
        "the learning rate is one step off after a resume",
        [f"{HERE}/test_resuming.py::test_records_after_a_resume_equal_those_of_an_uninterrupted_run"],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/18828": (
        "after a step that the scaler skips, schedule and data disagree",
        [f"{HERE}/test_resuming.py::test_skipped_step_advances_schedule_and_data_but_no_weight"],
    ),
    "https://github.com/huggingface/transformers/issues/17032": (
        "random number generators are not restored; a changed number of ranks fails",
        [
            f"{HERE}/test_resuming.py::test_records_after_a_resume_equal_those_of_an_uninterrupted_run",  # with dropout
            "tests/training/test_bit_equal_resume.py::test_other_world_size_continues_with_the_same_batches",
        ],
    ),
    "https://github.com/huggingface/accelerate/issues/2016": (
        "a resume within an epoch skips the wrong samples",
        [f"{DATA}::test_order_depends_only_on_the_position"],
    ),
    "https://github.com/paiml/entrenar/issues/294": (
        "every resume reads the first shard again",
        [f"{HERE}/test_resuming.py::test_resume_continues_with_unseen_batches"],
    ),
    "https://github.com/mosaicml/streaming/issues/437": (
        "a restored data state is wrong after the first epoch",
        [
            f"{DATA}::test_each_epoch_has_every_sample_once_in_a_new_order",
            f"{HERE}/test_resuming.py::test_resume_continues_with_unseen_batches",
        ],
    ),
    "https://github.com/huggingface/transformers/issues/40500": (
        "the safe loader refuses a saved checkpoint",
        [f"{HERE}/test_resuming.py::test_loads_no_pickle_from_a_store"],
    ),
    "https://github.com/pytorch/pytorch/issues/104767": (
        "the optimizer's step count is restored to the wrong device",
        [f"{HERE}/test_resuming.py::test_optimizer_state_is_restored_to_the_device_of_the_parameter"],
    ),
    "https://github.com/pytorch/pytorch/issues/170163": (
        "asynchronous saves use more memory each time",
        [
            f"{HERE}/test_storing.py::test_memory_does_not_grow_with_the_number_of_saves",
            f"{HERE}/test_storing.py::test_writer_process_does_not_import_torch",
            "tests/flow/test_full_disk_and_refused_writes.py::test_no_memory_for_the_checkpoint_buffer",
        ],
    ),
    "https://github.com/karpathy/nanoGPT/issues/325": (
        "names of a compiled or replicated model do not match the bare one",
        [
            "tests/training/checkpoint/test_coverage.py::test_names_are_those_of_the_bare_model",
            f"{STEP}::test_state_loads_by_bare_names_into_wrapped_and_bare_models",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/33148": (
        "ranks with unequal numbers of batches deadlock",
        [
            "tests/training/test_bit_equal_resume.py::test_other_world_size_continues_with_the_same_batches",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/379": (
        "each rank decides on its own to stop early",
        [
            f"{RECOVERY}::test_early_stopping_ends_all_ranks_at_the_same_step",
        ],
    ),
    "https://github.com/huggingface/accelerate/issues/3679": (
        "a static graph with accumulation crashes, or does not synchronize gradients",
        [
            f"{CURVES}::test_two_processes_have_the_loss_curve_of_one",
        ],
    ),
    "https://github.com/pytorch/torchtitan/pull/4226": (
        "a gradient that is not finite is skipped on one rank only, or after the update",
        [
            f"{STEP}::test_non_finite_gradient_updates_neither_weights_nor_moments",
            f"{RECOVERY}::test_non_finite_steps_are_skipped_up_to_the_limit",
            f"{REQUESTS}::test_nan_loss_fails_all_ranks_and_is_never_saved",
        ],
    ),
    "https://github.com/karpathy/nanoGPT/issues/136": (
        "the loss is NaN after thousands of steps, without a hint to the cause",
        [
            f"{RECOVERY}::test_first_non_finite_part_of_the_model_is_named",
            f"{CURVES}::test_fp16_recovers_from_an_overflow",
        ],
    ),
    "https://github.com/karpathy/nanoGPT/issues/287": (
        "memory grows with the amount of data read",
        [
            f"{DATA}::test_reading_the_dataset_does_not_grow_anonymous_memory",
        ],
    ),
    "https://github.com/princeton-nlp/LLM-Shearing/issues/65": (
        "token ids above 65535 overflow 16 bits, and the width of a file is not recorded",
        [
            "tests/training/test_tokenize.py::test_invalid_input_is_reported_and_leaves_no_files",
            f"{DATA}::test_rejects_invalid_records",
            f"{DATA}::test_rows_span_shards",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/68576": (
        "prefetching and persistent workers are requested without workers",
        ["tests/training/test_own_code.py::test_contradictory_configs_are_rejected"],
    ),
    "https://github.com/pytorch/pytorch/issues/2640": (
        "memory is pinned without a GPU",
        ["tests/training/test_own_code.py::test_order_and_noise_depend_only_on_the_position"],
    ),
    "https://github.com/pytorch/pytorch/issues/5040": (
        "workers die if shared memory is small",
        [
            "tests/training/test_own_code.py::test_batches_larger_than_shared_memory_are_rejected",
        ],
    ),
    "https://github.com/pytorch/torchtune/pull/1875": (
        "accumulation averages over micro-batches instead of tokens",
        [
            f"{CURVES}::test_curves_agree",
            f"{STEP}::test_accumulation_changes_only_the_order_of_additions",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/20231": (
        "the micro-batch size found does not fit in memory, or differs between ranks",
        [
            f"{TUNING}::test_largest_micro_batch_is_that_of_the_smallest_rank",
            f"{TUNING}::test_search_leaves_weights_buffers_gradients_and_random_numbers_alone",
        ],
    ),
    "https://github.com/meta-llama/llama-cookbook/issues/65": (
        "one rank validates while the others run into the collective timeout",
        [
            f"{CURVES}::test_two_processes_have_the_loss_curve_of_one",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/10717": (
        "the profiler exhausts memory and writes gigabytes",
        [
            f"{OBSERVATION}::test_traces_are_bounded",
            f"{OBSERVATION}::test_large_trace_is_removed",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/172547": (
        "every restart compiles again",
        [
            f"{ABLATIONS}::test_compiled_kernels_are_kept_beside_the_run",
        ],
    ),
}


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("url", COVERED)
def test_complaint_has_its_tests(url: str) -> None:
    complaint, names = COVERED[url]
    assert complaint and names
    for name in names:
        file, _, test = name.partition("::")
        assert test in functions_of(ROOT / file), f"{complaint}: {name} does not exist"
