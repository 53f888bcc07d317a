"""The grammar of sweeps: a mapping from keys of `training.config` to lists of values, for all combinations.

The last key varies fastest, as in `itertools.product`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from training.config import TrainingConfig, describe_problems

MAX_MEMBERS = 10_000
"""Maximum number of combinations. A cluster's own limit (MaxArraySize) is usually lower."""


class SweepError(ValueError):
    """A sweep is invalid. `problems` are pairs of a key and a rule that its values violate."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {rule}" for key, rule in problems))
        self.problems = list(problems)


def size(sweep: Mapping[str, Sequence[Any]]) -> int:
    """Return the number of combinations; 1 for an empty sweep."""
    total = 1
    for values in sweep.values():
        total *= len(values)
    return total


def combinations(sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each combination, as a mapping from key to value."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def members(config: TrainingConfig, sweep: Mapping[str, Sequence[Any]]) -> list[tuple[dict[str, Any], TrainingConfig]]:
    """Return the combinations, each with its configuration.

    Raises:
        SweepError: A key does not exist, a list is empty or repeats a value, a value is invalid, or there are too many
            combinations. The error contains all problems.
    """
    problems = [*key_problems(sweep)]
    if size(sweep) > MAX_MEMBERS:
        problems.append(("", f"has {size(sweep)} combinations, more than {MAX_MEMBERS}"))
    if problems:
        raise SweepError(problems)
    found = []
    seen: set[str] = set()
    for values in combinations(sweep):
        try:
            found.append((values, TrainingConfig.model_validate(replaced(config, values))))
        except ValidationError as error:
            for text in describe_problems(error):
                if text not in seen:
                    seen.add(text)
                    settings = ", ".join(f"{key}={value}" for key, value in values.items())
                    problems.append(("", f"{settings}: {text}"))
    if problems:
        raise SweepError(problems)
    return found


def key_problems(sweep: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield each key with a rule that it or its values violate."""
    for key, values in sweep.items():
        place: Any = TrainingConfig
        for part in key.split("."):
            fields = getattr(place, "model_fields", {})
            if part not in fields:
                yield key, f"training.config has no key {key}"
                break
            place = fields[part].annotation
        else:
            if hasattr(place, "model_fields"):
                yield key, "is a section; list values of one of its keys"
        if not values:
            yield key, "has no values"
        texts = [repr(value) for value in values]
        yield from ((key, f"repeats the value {text}") for text in sorted({t for t in texts if texts.count(t) > 1}))
        longer = [other for other in sweep if other.startswith(f"{key}.")]
        yield from ((key, f"contains {other}, which is also listed") for other in longer)


def replaced(config: TrainingConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration as JSON values, with some of them replaced."""
    document = config.model_dump()
    for key, value in values.items():
        *parents, last = key.split(".")
        place = document
        for name in parents:
            place = place[name]
        place[last] = value
    return document
