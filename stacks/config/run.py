"""The `training` section: what is trained."""

from __future__ import annotations

from stacks.config.setting import Section, setting
from training.config import TrainingConfig


class RunConfig(Section):
    """What is trained."""

    run: str = setting(
        "Name of the run; its checkpoints lie under it, so another name starts from scratch.",
        edit="restarts the trainer",
        default="run-1",
        pattern=r"^[a-z0-9-]{1,40}$",
    )
    dataset: str = setting(
        "Name under datasets/ in the dataset bucket, as `python -m training tokenize --name` made it.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    processes_per_node: int | None = setting(
        "Processes a machine; null: one per GPU, one on a machine without.",
        edit="restarts the trainer",
        default=None,
        ge=1,
        le=64,
    )
    code: str | None = setting(
        "Folder of your own code, shipped beside the trainer; null: none.",
        edit="restarts the trainer",
        default=None,
    )
    config: TrainingConfig = TrainingConfig()
