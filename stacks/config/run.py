"""The `training` section: what is trained."""

from __future__ import annotations

from typing import Any, Literal

from stacks.config.setting import Section, section, setting
from training.config import TrainingConfig


class PrepareConfig(Section):
    """A function that makes the dataset of raw objects, once: its work is found by code, options and objects."""

    function: str = setting(
        "`package.module:function` of your code, or `training.data.preparation:tokenize`, which makes tokens of text. "
        "It is called with source (folder of the raw files), target (empty folder for what it makes) and the options.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
    )
    source: str = setting(
        "Raw objects: everything below this name in the dataset bucket, such as raw/my-text.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$",
        max_length=200,
    )
    options: dict[str, Any] = setting(
        "Keyword arguments of the function, such as {vocabulary_size: 32000}.", edit="restarts the trainer", default={}
    )
    timeout_minutes: int = setting(
        "After so long it is ended, and the run fails: a node that hangs costs money.",
        edit="restarts the trainer",
        default=1440,
        ge=1,
    )


class RunConfig(Section):
    """What is trained."""

    run: str = setting(
        "Name of the run; its checkpoints lie under it, so another name starts from scratch.",
        edit="restarts the trainer",
        default="run-1",
        pattern=r"^[a-z0-9-]{1,40}$",
    )
    dataset: str = setting(
        "Name under datasets/ in the dataset bucket, as `python -m training tokenize --name` made it; with `prepare`, "
        "the name that what it makes has on the nodes.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    prepare: PrepareConfig | None = section(
        "How the dataset is made from raw objects, by the first node that needs it; null: it is there.",
        edit="restarts the trainer",
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
