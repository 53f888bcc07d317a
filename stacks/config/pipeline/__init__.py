"""The `pipeline` section: steps that prepare data, train, evaluate and export, in the order in which they run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stacks.config.capacity import CapacityConfig
from stacks.config.setting import Section, section, setting

StepName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,11}$")]
MetricName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Kind = Literal["train", "prepare", "export", "function"]
MAX_PARALLEL = 20


class RangeConfig(Section):
    """A range of numbers."""

    low: float = setting("Lowest value.", edit="repeats steps")
    high: float = setting("Highest value.", edit="repeats steps")
    log: bool = setting("Choose uniformly on a logarithmic scale.", edit="repeats steps", default=False)
    integer: bool = setting("Round the values to integers.", edit="repeats steps", default=False)


class RandomConfig(Section):
    """Members with random values. The same seed and ranges produce the same members."""

    members: int = setting("Number of members.", edit="repeats steps", ge=1)
    seed: int = setting("Seed of the random numbers.", edit="repeats steps", default=0, ge=0)
    values: dict[str, RangeConfig] = setting(
        "Ranges for keys of `training.config`, such as `{optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: "
        "true}}`.",
        edit="repeats steps",
        min_length=1,
    )


class StepConfig(Section):
    """One step: a run, or a sweep of runs. At most one of `sweep`, `members` and `random` can be set."""

    run: Literal["train", "prepare", "export"] = setting(
        "`train`: trains as the `training` section describes. `prepare`: prepares the dataset (`training.prepare`). "
        "`export`: writes the weights of the previous step's run as a folder that transformers loads, to the run's "
        "results. Not used with `function`.",
        edit="repeats steps",
        default="train",
    )
    function: str | None = setting(
        "`package.module:function` in your code, or `training.inference.steps:evaluate`, which computes the validation "
        "loss. A node calls it with `weights` (URL of the previous step's checkpoints), `dataset` (folder of the "
        "staged dataset) and `output` (folder, uploaded with the run's results). It returns a mapping from metrics to "
        "numbers; `null`: the step runs `run`.",
        edit="repeats steps",
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
    )
    after: StepName | None = setting(
        "The previous step; `null`: this is the first step.", edit="repeats steps", default=None
    )
    sweep: dict[str, list[Any]] = setting(
        "Lists of values for keys of `training.config`, such as `{optimizer.learning_rate: [1e-3, 3e-4]}`. The step "
        "trains one member for each combination.",
        edit="repeats steps",
        default={},
    )
    members: list[dict[str, Any]] = setting(
        "One mapping from keys of `training.config` to values for each member.", edit="repeats steps", default=[]
    )
    random: RandomConfig | None = section("Members with random values; `null`: none.", edit="repeats steps")
    parallel: int = setting(
        "Maximum number of members that train at the same time, at most `capacity.slots`. With `capacity`, the step "
        "has this number of fleets.",
        edit="new nodes",
        default=1,
        ge=1,
        le=MAX_PARALLEL,
    )
    keep: str | None = setting(
        "`best(METRIC)`: the next step receives the member with the lowest value of this metric. A step with several "
        "members requires it if another step follows.",
        edit="nothing",
        default=None,
        pattern=r"^best\([a-z][a-z0-9_]{0,39}\)$",
    )
    when: str | None = setting(
        "Condition on a metric of the previous step, such as `bits_per_byte < 1.2`: one metric, one of `<`, `<=`, `>` "
        "and `>=`, and one number. If it is false, the pipeline ends successfully before this step.",
        edit="nothing",
        default=None,
        max_length=100,
    )
    reports: list[MetricName] = setting(
        "Metrics that `function` returns. The step fails if one is missing.", edit="nothing", default=[], max_length=20
    )
    retry: int = setting(
        "Number of times that a failed member continues from its newest checkpoint before the step fails.",
        edit="nothing",
        default=0,
        ge=0,
        le=10,
    )
    timeout_hours: float | None = setting(
        "Hours after which a member's run is saved and stopped, and the step fails; `null`: no limit. Each `retry` has "
        "this time again. Less than 901 seconds, the time without a heartbeat, applies as 901 seconds.",
        edit="nothing",
        default=None,
        gt=0,
        le=8760,
    )
    capacity: CapacityConfig | None = section(
        "Instances of this step, in separate fleets; `null`: the deployment's `capacity`.", edit="replaces nodes"
    )

    @property
    def kind(self) -> Kind:
        """What the step's runs do."""
        return self.run if self.function is None else "function"

    def suffixes(self, name: str) -> list[str]:
        """Return the suffixes of the step's fleets, for the step's name; none without `capacity`."""
        return [] if self.capacity is None else [f"{name}-{number}" for number in range(1, self.parallel + 1)]

    @property
    def kept_metric(self) -> str | None:
        """The metric in `keep`."""
        return None if self.keep is None else self.keep.removeprefix("best(").removesuffix(")")


class PipelineConfig(Section):
    """A pipeline of steps on Step Functions."""

    steps: dict[StepName, StepConfig] = setting(
        "Steps by name. Each step follows one other step (`after`), except for the first one.",
        edit="repeats steps",
        min_length=1,
        max_length=20,
    )
