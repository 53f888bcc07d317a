"""The list of mutations matches the code; `make mutate` runs it."""

from __future__ import annotations

from collections import Counter

from .__main__ import ROOT, problems
from .mutations import MUTATIONS, Mutation


def test_each_mutation_applies_to_the_code() -> None:
    assert problems(MUTATIONS) == []
    assert [each for each in MUTATIONS if each.old == each.new] == []


def test_each_package_has_mutations() -> None:
    counts = Counter(each.file.partition("/")[0] for each in MUTATIONS)
    assert counts.keys() == {"bootstrap", "localcloud", "stacks", "training"}


def test_reports_text_that_does_not_occur_once_and_missing_tests() -> None:
    absent = Mutation("training/errors.py", "no such text", "", ("tests/absent.py::test",))
    frequent = Mutation("training/errors.py", "class ", "", ("tests/mutate/test_mutations.py",))
    missing = Mutation("training/absent.py", "text", "", ("tests/mutate/test_mutations.py",))
    count = (ROOT / "training" / "errors.py").read_text().count("class ")
    assert count > 1
    found = problems([absent, frequent, missing])
    assert found == [
        "training/errors.py: 'no such text': found 0 times, expected 1",
        "tests/absent.py::test: no such file",
        f"training/errors.py: 'class ': found {count} times, expected 1",
        "training/absent.py: 'text': found 0 times, expected 1",
    ]
