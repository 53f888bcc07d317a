"""How the tests are distributed across worker processes, and how they share data that is slow to read."""

from __future__ import annotations

import functools

import pytest
from botocore.loaders import JSONFileLoader, Loader

# A new session parses the service models again, and moto starts a new session for every test: 0.2 s of processor time
# for the clients of S3 and Parameter Store.
# The model of S3 is not shared: botocore's clients edit the paths in it, and moto's router needs the original ones.
SERVICE_MODELS = JSONFileLoader()
_parse, _parse_once = SERVICE_MODELS.load_file, functools.cache(SERVICE_MODELS.load_file)
SERVICE_MODELS.load_file = lambda path: (_parse if "/s3/" in path else _parse_once)(path)
Loader.FILE_LOADER_CLASS = staticmethod(lambda: SERVICE_MODELS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a module's fixture in one worker; otherwise, each worker would start its own cloud."""
    for item in items:
        info = getattr(item, "_fixtureinfo", None)
        if info is None or item.get_closest_marker("xdist_group"):
            continue
        scopes = {definition.scope for definitions in info.name2fixturedefs.values() for definition in definitions}
        if "module" in scopes:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
