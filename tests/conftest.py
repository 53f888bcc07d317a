"""How the tests are spread over worker processes."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a fixture of their module in one worker: each worker would start a cloud for its share."""
    for item in items:
        info = getattr(item, "_fixtureinfo", None)
        if info is None or item.get_closest_marker("xdist_group"):
            continue
        scopes = {definition.scope for definitions in info.name2fixturedefs.values() for definition in definitions}
        if "module" in scopes:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
