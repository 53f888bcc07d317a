"""The `training` section: what is trained."""

from __future__ import annotations

from typing import Literal

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
    dependencies: Literal["auto", "off"] | list[str] = setting(
        "Distributions that your own code needs besides those of the image and the trainer, such as [einops>=0.8]. "
        "auto: those of requirements.txt in its folder, and what its imports name besides. `python -m stacks bundle "
        "FILE` locks and builds them for the nodes; with --explain it says why each.",
        edit="nothing",
        default="auto",
    )
    config: TrainingConfig = TrainingConfig()
