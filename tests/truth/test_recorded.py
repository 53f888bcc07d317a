"""The comparison of LocalStack's snapshot tests with the committed list of known differences."""

from __future__ import annotations

import json

from tests.truth.recorded.run import TESTS, compare


def results(**outcomes: str) -> str:
    return "\n".join(json.dumps({"test": f"{TESTS}/{name}", "outcome": one}) for name, one in outcomes.items())


def test_known_differences_are_out_of_scope() -> None:
    found = compare(results(a="equal", b="cosmetic", c="differs", d="out of scope"), {"c": "reason"})
    assert found == {"passed": 2, "failed": 0, "out of scope": 2}


def test_new_differences_fail() -> None:
    assert compare(results(a="equal", b="differs"), {})["failed"] == 1


def test_known_differences_that_have_disappeared_fail() -> None:
    assert compare(results(a="equal", b="equal"), {"b": "reason"})["failed"] == 1
    assert compare("", {"b": "reason"})["failed"] == 1
