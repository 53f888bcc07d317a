"""Tags: every tag that `check` accepts is accepted by every service that receives it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import regex
import yaml

from stacks.errors import ConfigError
from stacks.loading import load
from stacks.validators.network import MAX_TAGS

from .conftest import CONFIGS, STACKS, Synthesis

# The services of the templates' taggable resources whose API models limit tags.
SERVICES = ("autoscaling", "cloudformation", "dlm", "fsx", "iam", "lambda", "logs", "resource-groups", "ssm")
SHAPES = {"iam": ("tagKeyType", "tagValueType")}
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html
METADATA_KEY = regex.compile(r"(?!\.$|\.\.$|_index$)[A-Za-z0-9+\-=.,_:@]+")
SAMPLES = [*map(chr, range(32, 127)), *"\t\n\u00e9\u65e5\u0663\u00a0\u2028\u20ac", "\U0001f680", "\u0301"]


@cache
def limits(kind: int) -> list[tuple[int, int, Any]]:
    """Return each service's minimum and maximum length, and its pattern, for tag keys (kind 0) or values (kind 1)."""
    session, found = botocore.session.get_session(), []
    for service in SERVICES:
        shape = SHAPES.get(service, ("TagKey", "TagValue"))[kind]
        known = session.get_service_model(service).shape_for(shape).metadata
        pattern = known.get("pattern", "").replace("\\p{all}", "\\p{Any}")
        if "\\uD7FF" in pattern:  # a range of UTF-16 units, which excludes only control characters
            pattern = r"[^\p{Cc}]*"
        found.append((known.get("min", 0), known.get("max", 256), regex.compile(pattern or r"(?s).*")))
    return found


def accepted_by_services(kind: int, text: str) -> bool:
    """Return True if every service accepts a tag key (kind 0) or value (kind 1), according to its API model."""
    accepted = all(least <= len(text) <= most and pattern.fullmatch(text) for least, most, pattern in limits(kind))
    return accepted and (kind == 1 or METADATA_KEY.fullmatch(text) is not None)


def accepted_by_check(path: Path, tags: Mapping[str, str]) -> bool:
    capacity = {"instance_types": ["g6.xlarge", "g6.2xlarge"]}
    document = {"name": "x", "capacity": capacity, "training": {"dataset": "d"}, "tags": tags}
    file = path / "x.yaml"
    file.write_text(yaml.safe_dump(document))
    try:
        load(file)
    except ConfigError as error:
        assert all(problem.path.startswith("tags.") for problem in error.problems)
        return False
    return True


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda one: f"U+{ord(one):04X}")
def test_check_accepts_the_characters_that_all_services_accept(sample: str, tmp_path: Path) -> None:
    assert accepted_by_check(tmp_path, {f"k{sample}k": "v"}) == accepted_by_services(0, f"k{sample}k")
    assert accepted_by_check(tmp_path, {"k": f"v{sample}v"}) == accepted_by_services(1, f"v{sample}v")


@pytest.mark.parametrize("length", [0, 1, 128, 129, 256, 257])
def test_check_accepts_the_lengths_that_all_services_accept(length: int, tmp_path: Path) -> None:
    assert accepted_by_check(tmp_path, {"k" * length: "v"}) == accepted_by_services(0, "k" * length)
    assert accepted_by_check(tmp_path, {"k": "v" * length}) == accepted_by_services(1, "v" * length)


def test_resources_stay_below_the_limit_with_the_most_tags(synthesis: Synthesis) -> None:
    """At most 50 per resource: https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html."""
    for name in CONFIGS:
        assembly = synthesis.of(name)
        for stack in STACKS:
            for resource in assembly.resources(stack).values():
                tags = resource.get("Properties", {}).get("Tags") or []
                assert len(tags) + MAX_TAGS <= 50, (name, resource["Type"])
