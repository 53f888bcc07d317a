"""What a deployment's own code needs: its imports, its requirements.txt, the deployment file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.__main__ import main
from stacks.config import read
from stacks.wheelhouse.dependencies import Dependencies, dependencies_of
from stacks.wheelhouse.imports import distribution_of, imports_of

CODE = """
from __future__ import annotations
import json, os.path
import torch.nn as nn
import numpy
import boto3
from PIL import Image
from einops.layers import torch as layers
from . import sibling
import models, helper
from training.script import this_run
from typing import TYPE_CHECKING
try:
    import wandb
    import cv2
except ImportError:
    wandb = None
if TYPE_CHECKING:
    import pandas
def late():
    import sklearn.metrics
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "models").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "train.py").write_text(CODE)
    (folder / "helper.py").write_text("import cv2\n")
    (folder / "models" / "__init__.py").write_text("import layers\n")
    (folder / "models" / "layers.py").write_text("")
    (folder / "__pycache__" / "left.py").write_text("import nonsense\n")
    return folder


def dependencies(folder: Path, said: Any = "auto", prepare: Any = None, **config: Any) -> Dependencies:
    file = folder.parent / "x.yaml"
    training = {"dataset": "d", "code": str(folder), "dependencies": said, "config": config, "prepare": prepare}
    file.write_text(yaml.safe_dump({"name": "x", "capacity": {"instance_types": ["g6.xlarge"]}, "training": training}))
    return dependencies_of(read(file))


def test_imports_of_others_with_where_and_whether_needed(code: Path) -> None:
    found, wrong = imports_of(code)
    assert wrong == []
    assert [(one.module, one.optional) for one in found] == [
        ("PIL", False),
        ("boto3", False),
        ("cv2", False),  # tried in one file, needed in another
        ("einops", False),
        ("numpy", False),
        ("sklearn", False),
        ("torch", False),
        ("wandb", True),
    ]
    (sklearn,) = (one for one in found if one.module == "sklearn")
    assert (sklearn.file, sklearn.line) == ("train.py", 21)


@pytest.mark.parametrize(
    ("module", "distribution", "why"),
    [
        ("yaml", "pyyaml", "installed here"),
        ("google_nothing", "google-nothing", "of the same name"),
        ("sklearn", "scikit-learn", "known"),
        ("pynvml", "nvidia-ml-py", "installed here"),
    ],
)
def test_import_names_are_not_always_those_of_distributions(module: str, distribution: str, why: str) -> None:
    mapped = distribution_of(module)
    assert mapped.distribution == distribution
    assert why in mapped.why


def test_imports_become_requirements_and_each_is_explained(code: Path) -> None:
    found = dependencies(code)
    assert found.problems == []
    assert found.requirements == ["einops", "opencv-python-headless", "pillow", "scikit-learn"]
    why = {source: (distribution, reason) for source, distribution, reason in found.explanation}
    assert why["import torch (train.py:4)"] == ("torch", "the image brings it")
    assert why["import boto3 (train.py:6)"] == ("boto3", "every node gets it")
    assert "is tried only" in why["import wandb (train.py:14)"][1]


def test_requirements_file_has_the_last_word_on_what_it_names(code: Path) -> None:
    (code / "requirements.txt").write_text("# models\n\neinops>=0.8  # layers\nPillow<13\nwandb==0.20\ntorch>=2.5,<3\n")
    found = dependencies(code)
    assert found.requirements == [
        "Pillow<13",
        "einops>=0.8",
        "opencv-python-headless",
        "scikit-learn",
        "wandb==0.20",
    ]
    assert found.image == ["torch<3,>=2.5"]


def test_a_list_and_off_look_at_nothing(code: Path) -> None:
    (code / "requirements.txt").write_text("einops\n")
    assert dependencies(code, ["timm>=1"]).requirements == ["timm>=1"]
    assert dependencies(code, "off").requirements == []


def test_tensorboard_comes_with_its_setting(code: Path) -> None:
    found = dependencies(code, "off", observation={"tensorboard": True})
    assert found.requirements[0].startswith("tensorboard==")
    assert found.explanation[0][0] == "training.config.observation.tensorboard"
    assert dependencies(code, ["tensorboard>=2"], observation={"tensorboard": True}).requirements == ["tensorboard>=2"]


def test_what_tokenizes_on_the_node_comes_with_preparing_by_the_trainers_own_function(code: Path) -> None:
    prepare = {"source": "raw/d", "function": "training.data.preparation:tokenize"}
    found = dependencies(code, ["tiktoken>=0.5"], prepare)
    assert [line.partition("==")[0] for line in found.requirements] == ["pyarrow", "tiktoken>=0.5", "tokenizers"]
    assert ("training.prepare.function", found.requirements[0], "is installed") in found.explanation
    own = {"source": "raw/d", "function": "models.preparation:make"}
    assert dependencies(code, "off", own).requirements == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch==2.12.0", "would replace the image's own"),
        ("nvidia-cublas-cu12==12.1", "would replace the image's own"),
        ("-e ../mine", "options of pip are not taken"),
        ("--index-url http://127.0.0.1/", "options of pip are not taken"),
        ("mine @ https://127.0.0.1/mine.whl", "is fetched from a URL"),
        ("two words", "is not a requirement"),
    ],
)
def test_what_cannot_be_shipped_is_said_with_its_line(code: Path, line: str, words: str) -> None:
    (code / "requirements.txt").write_text(f"einops\n{line}\n")
    (problem,) = dependencies(code).problems
    assert problem.path.endswith("requirements.txt:2")
    assert words in problem.rule
    assert problem.remedy


def test_code_that_cannot_be_parsed_is_a_problem_not_a_crash(code: Path) -> None:
    (code / "broken.py").write_text("import (\n")
    (problem,) = dependencies(code).problems
    assert "broken.py" in problem.rule


def test_explain_says_why_and_locks_nothing(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dependencies(code)
    file = code.parent / "x.yaml"
    assert main(["bundle", str(file), "--explain"]) == 0
    assert "import PIL (train.py:7) -> pillow: is installed" in capsys.readouterr().out
    assert main(["bundle", str(file), "--explain", "--json"]) == 0
    assert {"source": "import torch (train.py:4)", "distribution": "torch", "why": "the image brings it"} in json.loads(
        capsys.readouterr().out
    )
    (code / "requirements.txt").write_text("torch==2.0\n")
    assert main(["bundle", str(file)]) == 2
    assert not (code.parent / "wheelhouse.lock.json").exists()
