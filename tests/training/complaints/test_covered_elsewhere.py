"""What users of other trainers complained of, and the test that holds that it does not happen here.

Most are tests of a part of ours that would be there anyway; this table keeps them from being lost.
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
FINDERS = "tests/training/test_finders.py"
OBSERVATION = "tests/training/test_observation.py"
LEVERS = "tests/training/test_levers.py"
SUPERVISORS = "tests/bootstrap/test_supervisors.py"

COVERED: dict[str, tuple[str, list[str]]] = {
    "https://github.com/pytorch/pytorch/issues/119856": (
        "torchrun kills 30 s after SIGTERM, and a save that takes longer is lost",
        [
            f"{STOP}::test_last_save",
            f"{HERE}/test_stopping.py::test_save_under_way_is_kept_when_a_new_one_would_be_cut",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/154849": (
        "torchrun does not pass SIGUSR1 on",
        [
            f"{STOP}::test_every_signal_that_means_stop_is_a_request",
            f"{REQUESTS}::test_stop_during_validation",  # by the stop file, which needs no signal
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/150916": (
        "an elastic job hangs when one agent is killed",
        [
            f"{SUPERVISORS}::test_silent_node_is_noticed_and_its_trainers_die_with_it",
            f"{HERE}/test_stopping.py::test_gangs_are_static",
        ],
    ),
    "https://github.com/goodfire-ai/spd/pull/677": (
        "a stop is not noticed during validation, warm-up and compilation",
        [
            f"{REQUESTS}::test_stop_during_validation",
            f"{REQUESTS}::test_stop_before_the_first_step_ends_the_start_with_nothing_to_save",
            f"{HERE}/test_stopping.py::test_stop_is_noticed_between_the_passes_that_warm_up_and_compile",
        ],
    ),
    "https://github.com/kyutai-labs/pocket-tts/pull/277": (
        "ranks that stop at different steps wait for each other for ever",
        [f"{REQUESTS}::test_sigterm_on_one_rank_stops_all_and_a_second_one_changes_nothing"],
    ),
    "https://github.com/aws/sagemaker-training-toolkit/issues/173": (
        "the signal of a spot interruption never reaches the trainer",
        [
            f"{SUPERVISORS}::test_notice_saves_and_the_replacement_goes_on",
            f"{HERE}/test_stopping.py::test_signal_to_torchrun_reaches_the_ranks",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/688": (
        "a kill during a save leaves an unreadable file",
        [
            "tests/training/test_checkpoint_store.py::test_crash_at_every_write_leaves_the_newest_committed_one",
            "tests/benchmarks/test_chaos.py::test_short_experiment",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/21431": (
        "a corrupt checkpoint is not said to be one",
        [
            "tests/training/test_damage.py::test_damage_that_one_rank_finds_makes_all_fall_back",
            f"{CHECKPOINT}/test_crash_points.py::test_the_power_may_be_cut_at_every_call_of_a_directory_store",
            f"{HERE}/test_storing.py::test_cut_off_chunk_is_named",
        ],
    ),
    "https://github.com/pytorch/torchtitan/pull/315": (
        "a half-written newest checkpoint is resumed from",
        [
            "tests/training/test_checkpoint_store.py::test_crash_at_every_write_leaves_the_newest_committed_one",
            f"{HERE}/test_storing.py::test_chunks_without_a_commit_are_no_checkpoint",
            f"{HERE}/test_storing.py::test_a_step_that_is_saved_again_is_not_mistaken_for_its_first_save",
        ],
    ),
    "https://github.com/marin-community/marin/issues/9213": (
        "a storage error on one rank leaves the others waiting",
        [
            "tests/training/test_damage.py::test_one_rank_that_cannot_upload_fails_all_and_none_hangs",
            f"{HERE}/test_stopping.py::test_storage_that_fails_one_rank_in_the_last_save_fails_all",
            f"{HERE}/test_stopping.py::test_storage_that_does_not_answer_one_rank_holds_nobody_up_past_the_deadline",
        ],
    ),
    "https://github.com/awslabs/s3-connector-for-pytorch/issues/219": (
        "the real error of an upload is hidden",
        [
            f"{HERE}/test_storing.py::test_code_of_the_service_is_in_the_message",
            f"{HERE}/test_storing.py::test_error_of_a_part_is_in_the_message",
        ],
    ),
    "https://github.com/mlcommons/storage/issues/642": (
        "a process forked after the S3 client started its threads hangs",
        [f"{HERE}/test_storing.py::test_forked_process_can_use_s3"],
    ),
    "https://github.com/boto/boto3/issues/4839": (
        "the endpoint that was given is ignored",
        [f"{HERE}/test_storing.py::test_every_request_goes_to_the_given_endpoint"],
    ),
    "https://github.com/peak/s5cmd/issues/419": (
        "copies fail silently or mix two versions of a file",
        [
            f"{CHECKPOINT}/test_s3_ranges.py::test_two_versions_are_never_mixed",
            f"{CHECKPOINT}/test_s3_ranges.py::test_a_range_that_breaks_off_is_asked_for_again",
            "tests/bootstrap/test_steps.py::test_damaged_dataset_is_refused",
            "tests/bootstrap/test_steps.py::test_staging_is_complete_incremental_and_follows_a_new_index",
        ],
    ),
    "https://github.com/pytorch/torchtitan/issues/146": (
        "the gradient scaler's state is lost on resume",
        [
            f"{HERE}/test_resuming.py::test_gradient_scaler_goes_on_where_it_was",
            f"{HERE}/test_resuming.py::test_gradient_scaler_of_another_trainer_goes_on_too",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/1772": (
        "the learning rate is one step off after a resume",
        [f"{HERE}/test_resuming.py::test_every_record_after_a_resume_is_that_of_the_unbroken_run"],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/18828": (
        "a step that the scaler skips moves schedule and data apart",
        [f"{HERE}/test_resuming.py::test_skipped_step_moves_schedule_and_data_together_and_no_weight"],
    ),
    "https://github.com/huggingface/transformers/issues/17032": (
        "random generators are not restored; a changed number of ranks fails",
        [
            f"{HERE}/test_resuming.py::test_every_record_after_a_resume_is_that_of_the_unbroken_run",  # with dropout
            "tests/training/test_bit_equal_resume.py::test_other_world_size_goes_on_with_the_same_batches",
        ],
    ),
    "https://github.com/huggingface/accelerate/issues/2016": (
        "a resume within an epoch skips the wrong samples",
        [f"{DATA}::test_order_is_a_function_of_the_position"],
    ),
    "https://github.com/paiml/entrenar/issues/294": (
        "every resume reads the first shard again",
        [f"{HERE}/test_resuming.py::test_batches_after_a_resume_are_those_that_were_not_seen"],
    ),
    "https://github.com/mosaicml/streaming/issues/437": (
        "a restored data state is wrong after the first epoch",
        [
            f"{DATA}::test_an_epoch_has_every_sample_once_and_the_next_another_order",
            f"{HERE}/test_resuming.py::test_batches_after_a_resume_are_those_that_were_not_seen",
        ],
    ),
    "https://github.com/huggingface/transformers/issues/40500": (
        "what was saved cannot be loaded by the safe loader",
        [f"{HERE}/test_resuming.py::test_nothing_is_unpickled_from_a_store"],
    ),
    "https://github.com/pytorch/pytorch/issues/104767": (
        "the optimizer's step count comes back on the wrong device",
        [f"{HERE}/test_resuming.py::test_optimizer_state_comes_back_to_where_the_parameter_is"],
    ),
    "https://github.com/pytorch/pytorch/issues/170163": (
        "asynchronous saves use more memory each time",
        [
            f"{HERE}/test_storing.py::test_memory_does_not_grow_with_the_number_of_saves",
            f"{HERE}/test_storing.py::test_the_writer_shares_no_interpreter_with_training_and_needs_none_of_its_memory",
            "tests/flow/test_full_disk_and_refused_writes.py::test_a_state_for_which_there_is_no_memory",
        ],
    ),
    "https://github.com/karpathy/nanoGPT/issues/325": (
        "names of a compiled or replicated model do not fit the bare one",
        [
            f"{STEP}::test_bare_names",
            f"{STEP}::test_state_goes_by_bare_names_into_wrapped_and_bare_models",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/33148": (
        "ranks with unequal numbers of batches wait for each other for ever",
        [
            "tests/training/test_bit_equal_resume.py::test_other_world_size_goes_on_with_the_same_batches",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/379": (
        "each rank decides by itself to stop early",
        [
            f"{RECOVERY}::test_run_that_stops_learning_is_finished_on_all_ranks_at_the_same_step",
        ],
    ),
    "https://github.com/huggingface/accelerate/issues/3679": (
        "a static graph with accumulation crashes, or exchanges no gradients",
        [
            f"{CURVES}::test_two_processes_have_the_curve_of_one",
        ],
    ),
    "https://github.com/pytorch/torchtitan/pull/4226": (
        "a gradient that is not finite is skipped on one rank only, or after the update",
        [
            f"{STEP}::test_gradient_that_is_not_finite_moves_no_weight_and_no_moment",
            f"{RECOVERY}::test_steps_that_are_not_finite_are_skipped_up_to_a_bound",
            f"{REQUESTS}::test_loss_that_is_no_number_fails_all_and_is_never_saved",
        ],
    ),
    "https://github.com/karpathy/nanoGPT/issues/136": (
        "the loss is NaN after thousands of steps, and nobody knows where from",
        [
            f"{RECOVERY}::test_part_of_the_model_where_it_began_is_named",
            f"{CURVES}::test_fp16_recovers_from_an_overflow",
        ],
    ),
    "https://github.com/karpathy/nanoGPT/issues/287": (
        "memory grows with the part of the dataset that was read",
        [
            f"{DATA}::test_reading_the_dataset_takes_no_memory_of_its_own",
        ],
    ),
    "https://github.com/princeton-nlp/LLM-Shearing/issues/65": (
        "token ids beyond 65535 wrap in 16 bits, and nothing says which width a file has",
        [
            "tests/training/test_tokenize.py::test_wrong_input_in_words_and_nothing_half_made",
            f"{DATA}::test_records_that_cannot_be",
            f"{DATA}::test_rows_run_over_the_borders_of_shards",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/68576": (
        "fetching ahead and workers that stay are asked for where there are no workers",
        ["tests/training/test_own_code.py::test_configs_that_contradict_themselves"],
    ),
    "https://github.com/pytorch/pytorch/issues/2640": (
        "memory is pinned where there is no GPU",
        [
            "tests/training/test_own_code.py"
            "::test_order_and_noise_are_those_of_the_position_at_any_workers_world_and_resumption"
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/5040": (
        "workers die where shared memory is small",
        [
            "tests/training/test_own_code.py::test_batches_that_shared_memory_has_no_room_for",
        ],
    ),
    "https://github.com/pytorch/torchtune/pull/1875": (
        "accumulation divides by micro-batches and not by tokens",
        [
            f"{CURVES}::test_curves_agree",
            f"{STEP}::test_accumulation_changes_nothing_but_the_order_of_additions",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/20231": (
        "the micro-batch that was found does not fit, or differs between ranks",
        [
            f"{FINDERS}::test_largest_micro_batch_is_that_of_the_smallest_rank",
            f"{FINDERS}::test_search_leaves_weights_buffers_gradients_and_random_numbers_alone",
        ],
    ),
    "https://github.com/meta-llama/llama-cookbook/issues/65": (
        "one rank validates while the others run into the collective's time limit",
        [
            f"{CURVES}::test_two_processes_have_the_curve_of_one",
        ],
    ),
    "https://github.com/Lightning-AI/pytorch-lightning/issues/10717": (
        "the profiler takes all memory and writes gigabytes",
        [
            f"{OBSERVATION}::test_traces_are_few_and_bounded",
            f"{OBSERVATION}::test_trace_that_is_too_large_is_removed",
        ],
    ),
    "https://github.com/pytorch/pytorch/issues/172547": (
        "every restart compiles anew",
        [
            f"{LEVERS}::test_compiled_kernels_are_kept_beside_the_run",
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
        assert test in functions_of(ROOT / file), f"{complaint}: {name} is gone"
