"""Dependencies of user code: imports, requirements.txt, deployment file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.__main__ import main
from stacks.artifacts.wheelhouse.dependencies import Dependencies, dependencies_of, tracker_problems
from stacks.artifacts.wheelhouse.imports import distribution_of, imports_of
from stacks.config import DeploymentConfig
from stacks.loading import read

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


def deployment(folder: Path, configured: Any = "auto", prepare: Any = None, **config: Any) -> DeploymentConfig:
    file = folder.parent / "x.yaml"
    training = {"dataset": "d", "code": str(folder), "dependencies": configured, "config": config, "prepare": prepare}
    file.write_text(yaml.safe_dump({"name": "x", "capacity": {"instance_types": ["g6.xlarge"]}, "training": training}))
    return read(file)


def dependencies(folder: Path, configured: Any = "auto", prepare: Any = None, **config: Any) -> Dependencies:
    return dependencies_of(deployment(folder, configured, prepare, **config))


def test_third_party_imports_have_place_and_optional_flag(code: Path) -> None:
    found, invalid = imports_of(code)
    assert invalid == []
    assert [(one.module, one.optional) for one in found] == [
        ("PIL", False),
        ("boto3", False),
        ("cv2", False),  # optional in one file, required in another
        ("einops", False),
        ("numpy", False),
        ("sklearn", False),
        ("torch", False),
        ("wandb", True),
    ]
    (sklearn,) = (one for one in found if one.module == "sklearn")
    assert (sklearn.file, sklearn.line) == ("train.py", 21)


@pytest.mark.parametrize(
    ("module", "distribution", "reason"),
    [
        ("yaml", "pyyaml", "installed here"),
        ("google_nothing", "google-nothing", "same name"),
        ("sklearn", "scikit-learn", "known"),
        ("pynvml", "nvidia-ml-py", "installed here"),
    ],
)
def test_distribution_of_a_module(module: str, distribution: str, reason: str) -> None:
    mapped = distribution_of(module)
    assert mapped.distribution == distribution
    assert reason in mapped.reason


def test_imports_become_requirements_with_an_explanation(code: Path) -> None:
    found = dependencies(code)
    assert found.problems == []
    assert found.requirements == ["einops", "opencv-python-headless", "pillow", "scikit-learn"]
    why = {source: (distribution, reason) for source, distribution, reason in found.explanation}
    assert why["import torch (train.py:4)"] == ("torch", "part of the image")
    assert why["import boto3 (train.py:6)"] == ("boto3", "installed on every node")
    assert "optional (except ImportError)" in why["import wandb (train.py:14)"][1]


def test_requirements_file_overrides_imports(code: Path) -> None:
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


def test_a_list_and_off_ignore_the_code(code: Path) -> None:
    (code / "requirements.txt").write_text("einops\n")
    assert dependencies(code, ["timm>=1"]).requirements == ["timm>=1"]
    assert dependencies(code, "off").requirements == []


def test_tensorboard_is_installed_if_configured(code: Path) -> None:
    found = dependencies(code, "off", observation={"tensorboard": True})
    assert found.requirements[0].startswith("tensorboard==")
    assert found.explanation[0][0] == "training.config.observation.tensorboard"
    assert dependencies(code, ["tensorboard>=2"], observation={"tensorboard": True}).requirements == ["tensorboard>=2"]


@pytest.mark.parametrize(
    ("configured", "packages", "wheelhouse", "missing"),
    [
        (["einops"], [], "auto", ["wandb", "mlflow"]),
        (["wandb>=0.20", "mlflow"], [], "auto", []),
        (["wandb", "mlflow-skinny==3"], [], "auto", []),
        (["wandb"], ["mlflow"], "auto", []),
        (["wandb", "mlflow"], [], "off", ["wandb", "mlflow"]),
        ("off", ["wandb", "mlflow"], "off", []),
    ],
)
def test_trackers_need_their_packages(
    code: Path, configured: Any, packages: list[str], wheelhouse: str, missing: list[str]
) -> None:
    config = deployment(code, configured, observation={"wandb": True, "mlflow": True})
    python = config.node.python.model_copy(
        update={"packages": [*config.node.python.packages, *packages], "wheelhouse": wheelhouse}
    )
    config = config.model_copy(update={"node": config.node.model_copy(update={"python": python})})
    assert [each.path.rpartition(".")[2] for each in tracker_problems(config)] == missing


def test_tokenizing_packages_are_installed_for_the_trainers_prepare_function(code: Path) -> None:
    prepare = {"source": "raw/d", "function": "training.data.prepare:tokenize"}
    found = dependencies(code, ["tiktoken>=0.5"], prepare)
    assert [line.partition("==")[0] for line in found.requirements] == ["pyarrow", "tiktoken>=0.5", "tokenizers"]
    assert ("training.prepare.function", found.requirements[0], "installed") in found.explanation
    own = {"source": "raw/d", "function": "models.preparation:make"}
    assert dependencies(code, "off", own).requirements == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("torch==2.12.0", "would replace the distribution in the image"),
        ("nvidia-cublas-cu12==12.1", "would replace the distribution in the image"),
        ("-e ../mine", "pip options are not supported"),
        ("--index-url http://127.0.0.1/", "pip options are not supported"),
        ("mine @ https://127.0.0.1/mine.whl", "must not have a URL"),
        ("two words", "must be a requirement"),
    ],
)
def test_reports_the_line_of_an_unsupported_requirement(code: Path, line: str, rule: str) -> None:
    (code / "requirements.txt").write_text(f"einops\n{line}\n")
    (problem,) = dependencies(code).problems
    assert problem.path.endswith("requirements.txt:2")
    assert rule in problem.rule
    assert problem.remedy


def test_reports_code_that_cannot_be_parsed(code: Path) -> None:
    (code / "broken.py").write_text("import (\n")
    (problem,) = dependencies(code).problems
    assert "broken.py" in problem.rule


def test_explain_claims_nothing_about_a_missing_folder(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dependencies(code)
    shutil.rmtree(code)
    assert main(["bundle", str(code.parent / "x.yaml"), "--explain"]) != 0
    found = capsys.readouterr()
    assert "needs only" not in found.out and "training.code" in found.err


def test_explain_prints_origins_and_locks_nothing(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dependencies(code)
    file = code.parent / "x.yaml"
    assert main(["bundle", str(file), "--explain"]) == 0
    assert "import PIL (train.py:7) -> pillow: installed" in capsys.readouterr().out
    assert main(["bundle", str(file), "--explain", "--json"]) == 0
    assert {"source": "import torch (train.py:4)", "distribution": "torch", "why": "part of the image"} in json.loads(
        capsys.readouterr().out
    )
    (code / "requirements.txt").write_text("torch==2.0\n")
    assert main(["bundle", str(file)]) == 2
    assert not (code.parent / "wheelhouse.lock.json").exists()
