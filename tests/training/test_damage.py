"""Gangs with a damaged or unreachable checkpoint store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.store import checkpoint_entries, read_manifest


def damage_newest(store: str, part: int, whole_checkpoints: int = 1) -> None:
    backend = DirectoryBackend(Path(store))
    for entry, _ in zip(checkpoint_entries(backend), range(whole_checkpoints), strict=False):
        victim = Path(store) / read_manifest(backend, entry).parts[part].chunks[0].key
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 255
        victim.write_bytes(content)


def test_damage_found_by_one_rank_makes_all_ranks_fall_back(gangs: Any, tiny_config: dict[str, Any]) -> None:
    config = {**tiny_config, "steps": 10}
    first = gangs.finish("first", config, 2)
    newest = first.records("checkpoint")[-1]["step"]
    damage_newest(first.checkpoints, part=1)
    second = gangs.finish("second", {**config, "steps": 12}, 2, generation=2)
    assert second.records("start")[0]["resumed_from_step"] < newest
    assert "skipping the checkpoint for step" in second.errors()


def test_run_does_not_start_over_if_all_checkpoints_are_damaged(gangs: Any, tiny_config: dict[str, Any]) -> None:
    first = gangs.finish("first", {**tiny_config, "steps": 10}, 1)
    damage_newest(first.checkpoints, part=0, whole_checkpoints=2)
    second = gangs.start("second", tiny_config, generation=2)
    assert second.wait() == [1]
    assert "checkpoints is complete and undamaged; restore the missing chunks" in second.outcomes()[0]["message"]


def test_failed_upload_on_one_rank_fails_all_ranks(
    gangs: Any, tiny_config: dict[str, Any], s3_environment: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    # The endpoint of rank 1 refuses connections.
    run = gangs.start(
        "run",
        {**tiny_config, "steps": 100000, "schedule": {"kind": "constant", "warmup_steps": 1}},
        2,
        checkpoints=f"s3://{bucket}/x",
        environment=s3_environment,
        rank_environment={1: {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}},
    )
    assert run.wait(90) == [1, 1], run.errors()
    for outcome in run.outcomes():
        assert outcome["outcome"] == "failed"
        assert "s3:PutObject failed 10 times" in outcome["message"]
        assert "rank 1" in outcome["message"]
