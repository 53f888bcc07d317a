"""The `training` section: the run, its dataset, user code, and the trainer configuration."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from stacks.config.setting import Section, section, setting
from training.config import TrainingConfig


class PrepareConfig(Section):
    """A function that prepares the dataset from raw objects, once for each combination of code, options and objects."""

    function: str = setting(
        "`package.module:function` in your code, or `training.data.prepare:tokenize`, which tokenizes text. It is "
        "called with `source` (the folder with the raw files), `target` (an empty folder for the dataset) and the "
        "options.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
    )
    source: str = setting(
        "Prefix of the raw objects in the dataset bucket, such as `raw/my-text`.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$",
        max_length=200,
    )
    options: dict[str, Any] = setting(
        "Keyword arguments for the function, such as `{vocabulary_size: 32000}`.",
        edit="restarts the trainer",
        default={},
    )
    timeout_minutes: int = setting(
        "Minutes after which the node stops the function and the run fails; this limits the cost of a hang.",
        edit="restarts the trainer",
        default=1440,
        ge=1,
    )


class RunConfig(Section):
    """The run, its dataset, user code, and the trainer configuration."""

    run: str = setting(
        "Name of the run, and prefix for its checkpoints. With a new name, training starts from scratch.",
        edit="restarts the trainer",
        default="run-1",
        pattern=r"^[a-z0-9-]{1,40}$",
    )
    dataset: str = setting(
        "Name of the dataset under datasets/ in the dataset bucket (`python -m training tokenize --name`); with "
        "`prepare`, the name of the prepared dataset on the nodes.",
        edit="requires a new run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    prepare: PrepareConfig | None = section(
        "How the first node that needs the dataset prepares it from raw objects; `null`: the dataset already exists.",
        edit="restarts the trainer",
    )
    processes_per_node: int | None = setting(
        "Trainer processes per node; `null`: one per GPU, or one on a node without GPUs.",
        edit="restarts the trainer",
        default=None,
        ge=1,
        le=64,
    )
    code: str | None = setting(
        "Folder with user code to copy to the nodes, as a path from the folder in which you run the commands; `null`: "
        "none.",
        edit="restarts the trainer",
        default=None,
    )
    dependencies: Literal["auto", "off"] | list[str] = setting(
        "Python distributions that user code needs in addition to those in the image and the trainer, such as "
        "`[einops>=0.8]`. `auto`: the distributions in the code folder's requirements.txt, and those that its files "
        "import. `off`: none. `python -m stacks bundle FILE` locks and builds them for the nodes; `--explain` prints "
        "the origin of each.",
        edit="nothing",
        default="auto",
    )
    config: TrainingConfig = TrainingConfig()


def training_document(section: BaseModel) -> dict[str, Any]:
    """Return a section of the trainer configuration as JSON values, without keys whose default, null, is unchanged.

    A new optional key therefore does not change the documents of runs that do not use it. A null value remains in the
    document if the default is another value, which the trainer would otherwise use.
    """
    values = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            values[name] = training_document(value)
        elif value is None and field.default is None:
            del values[name]
    return values
