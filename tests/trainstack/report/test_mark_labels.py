"""Labels of a chart's vertical marks do not overlap. The page's script runs in Node.js."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from itertools import combinations
from typing import Any

import pytest

from tests.localcloud.core.command_line import ROOT

SCRIPT = ROOT / "trainstack" / "report" / "mark_labels.js"
GAP = 6

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is absent")


def places(charts: list[dict[str, Any]]) -> list[list[dict[str, float]]]:
    """Return the places of the labels of each chart: `marks` (x and width), `left` and `right`, in pixels."""
    program = (
        f"{SCRIPT.read_text()};"
        "const charts = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "process.stdout.write(JSON.stringify(charts.map((c) => placeLabels(c.marks, c.left, c.right))))"
    )
    done = subprocess.run(["node", "-e", program], input=json.dumps(charts), capture_output=True, text=True, check=True)
    found: list[list[dict[str, float]]] = json.loads(done.stdout)
    return found


def chart(left: float, right: float, *marks: tuple[float, float]) -> dict[str, Any]:
    return {"marks": [{"x": x, "width": width} for x, width in marks], "left": left, "right": right}


def test_labels_of_neighbors_are_on_opposite_sides() -> None:
    # A plot that is 400 pixels wide: an interruption at step 150 of 300, and a resume from step 140.
    (found,) = places([chart(66, 466, (266, 138), (253, 146))])
    assert found == [{"left": 266 + GAP, "row": 0}, {"left": 253 - GAP - 146, "row": 0}]


def test_third_label_between_neighbors_is_in_another_row() -> None:
    (found,) = places([chart(66, 466, (266, 138), (253, 146), (260, 140))])
    assert sorted(each["row"] for each in found) == [0, 0, 1]


def test_label_at_the_edge_is_inside_the_plot() -> None:
    (found,) = places([chart(66, 466, (460, 138), (70, 146), (100, 380))])
    assert found[0] == {"left": 460 - GAP - 138, "row": 0}
    assert found[1]["left"] == 70 + GAP
    assert 66 <= found[2]["left"] <= 466 - 380


def test_labels_never_overlap() -> None:
    random_numbers = random.Random(7)
    charts = []
    for _ in range(300):
        right = random_numbers.choice([320.0, 466.0, 1010.0])
        marks = [
            (random_numbers.uniform(66, right), random_numbers.uniform(60, 240))
            for _ in range(random_numbers.randint(1, 6))
        ]
        charts.append(chart(66, right, *marks))
    for each, found in zip(charts, places(charts), strict=True):
        boxes = [(place["row"], place["left"], mark["width"]) for place, mark in zip(found, each["marks"], strict=True)]
        assert all(each["left"] <= left and left + width <= each["right"] for _, left, width in boxes)
        for (row, left, width), (other_row, other_left, other_width) in combinations(boxes, 2):
            assert row != other_row or left + width + GAP <= other_left or other_left + other_width + GAP <= left
        assert max(row for row, _, _ in boxes) < len(boxes)
