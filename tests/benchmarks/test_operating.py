"""The bounds of the commands that observe a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.operating import Figures

GOOD = Figures(status_calls=6, status_seconds=(1.0, 1.5, 9.0), late_seconds=(0.5, 3.0))


@pytest.mark.parametrize(
    ("figures", "problems"),
    [
        (GOOD, []),
        (replace(GOOD, status_calls=7), ["status: 7 calls, at most 6"]),
        (replace(GOOD, status_seconds=(1.0, 2.0, 9.0)), ["status: median 2.00 s, must be below 2.0 s"]),
        (replace(GOOD, late_seconds=(0.1, 3.01)), ["logs --follow: 3.01 s late, at most 3.0 s"]),
    ],
)
def test_each_bound_is_checked(figures: Figures, problems: list[str]) -> None:
    assert figures.problems() == problems
