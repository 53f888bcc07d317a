"""How long nodes that are ready to join wait for others."""

from __future__ import annotations

import pytest

from bootstrap.supervise.joins import LONGEST_WAIT_SECONDS, PAUSE_SECONDS, longest_wait_seconds, waits_for_more


@pytest.mark.parametrize(
    ("ready", "loading", "members", "waited_seconds", "expected"),
    [
        (1, 1, 2, 0.0, True),
        (1, 1, 2, 2 * PAUSE_SECONDS, False),  # it has lost as much as the two members would with one more change
        (2, 1, 2, PAUSE_SECONDS, False),
        (1, 0, 2, 0.0, False),  # no other node is loading
        (0, 1, 2, 0.0, False),
        (1, 1, 100, LONGEST_WAIT_SECONDS - 0.1, True),
        (1, 1, 100, LONGEST_WAIT_SECONDS, False),
    ],
)
def test_nodes_wait_until_the_wait_costs_as_much_as_a_change(
    ready: int, loading: int, members: int, waited_seconds: float, expected: bool
) -> None:
    assert waits_for_more(ready, loading, members, waited_seconds) is expected


def test_the_wait_is_at_most_twice_as_expensive_as_the_best_choice() -> None:
    for ready, members in ((1, 1), (1, 4), (3, 4), (2, 16)):
        wait = longest_wait_seconds(ready, members)
        change = members * PAUSE_SECONDS
        for arrives in (0.0, wait / 2, wait, 2 * wait, 100.0):
            together = ready * arrives + change
            apart = 2 * change
            cost = together if arrives < wait else ready * wait + apart
            assert cost <= 2 * min(together, apart) + 1e-9
