"""The embedded cloud responds as AWS does. Each row contains a request and AWS's response."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from localcloud.cloud import LocalCloud
from tests.truth import rows
from tests.truth.row import Account, Row

TABLE: list[Row] = [
    row
    for module in sorted(pkgutil.iter_modules(rows.__path__), key=lambda found: found.name)
    for row in importlib.import_module(f"{rows.__name__}.{module.name}").ROWS
]


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    cloud = LocalCloud(tmp_path_factory.mktemp("cloud"))
    cloud.start()
    yield cloud.clients
    cloud.close()


def _parameter(row: Row) -> object:
    marks = [pytest.mark.xfail(reason=row.gap, strict=True, raises=AssertionError)] if row.gap else []
    return pytest.param(row, id=row.name, marks=marks)


@pytest.mark.parametrize("row", [_parameter(row) for row in TABLE])
def test_answer_is_that_of_aws(account: Account, row: Row) -> None:
    try:
        answer = row.send(account)
    except ClientError as error:
        found, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert (found["Code"], row.words in found["Message"]) == (row.code, True), f"{found}; see {row.source}"
        assert row.status in (0, status), f"{found}; see {row.source}"
    else:
        assert not row.code, f"AWS rejects it with {row.code}; see {row.source}"
        assert row.holds(answer), f"{answer}; see {row.source}"


def test_rows_have_unique_names_and_sources() -> None:
    assert [name for name, count in Counter(row.name for row in TABLE).items() if count > 1] == []
    assert [row.name for row in TABLE if not row.source] == []
