"""Dependencies of the packages, as in docs/architecture.md."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stacks import validators
from stacks.artifacts.bundles import function_bundle

from .import_graph import ROOT, imports, modules

PACKAGES = ("bootstrap", "hardware", "localcloud", "stacks", "training", "trainstack")
ALLOWED = {
    "bootstrap": {"hardware"},
    "hardware": set(),
    "localcloud": set(),
    "stacks": {"bootstrap.documents", "bootstrap.slurm.hyperpod.settings", "hardware", "training.config"},
    "training": {"hardware"},
    "trainstack": {"bootstrap", "stacks"},
}
"""Imports that a package may make from other packages."""
NODE_PACKAGES = {"boto3", "botocore", "blake3"}
"""Packages that the node program may import. blake3 is optional: without it, the training interpreter computes the
hashes."""
LAMBDA_PACKAGES = ("boto3", "botocore", "dateutil", "jmespath", "s3transfer", "six.py", "urllib3")
"""Packages of the Lambda runtime.
Source: https://docs.aws.amazon.com/lambda/latest/dg/lambda-python.html (2026-11): boto3 and its dependencies."""
FUNCTIONS = sorted(path.parent.name for path in (ROOT / "stacks" / "functions").glob("*/handler.py"))


def within(name: str, allowed: set[str]) -> bool:
    return any(name == item or name.startswith(f"{item}.") for item in allowed)


def top_level(paths: list[Path]) -> set[str]:
    """Return the top-level names that modules import, without the standard library."""
    return {name.split(".", 1)[0] for path in paths for name in imports(path)} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_the_architecture_allows(package: str) -> None:
    wrong = []
    for path in modules(package):
        for name in imports(path):
            owner = name.split(".", 1)[0]
            if owner not in PACKAGES or owner == package:
                continue
            parents = {item.rsplit(".", 1)[0] for item in ALLOWED[package]}
            if not within(name, ALLOWED[package]) and name not in parents:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong


def test_documents_import_only_the_standard_library() -> None:
    paths = [*modules("bootstrap/documents"), ROOT / "bootstrap" / "errors.py"]
    assert top_level(paths) <= {"bootstrap"}


def test_hardware_imports_only_the_standard_library() -> None:
    assert not top_level(modules("hardware"))


def test_node_program_imports_only_packages_of_the_image() -> None:
    assert top_level(modules("bootstrap")) - {"bootstrap", "hardware"} <= NODE_PACKAGES


@pytest.mark.parametrize("function", FUNCTIONS)
def test_lambda_function_imports_from_its_asset(function: str, tmp_path: Path) -> None:
    """Import each module of a copy of the asset in an interpreter that has only the packages of the Lambda runtime."""
    asset, packages = tmp_path / "asset", tmp_path / "packages"
    with zipfile.ZipFile(function_bundle(function, tmp_path / "bundles").path) as archive:
        archive.extractall(asset)
    packages.mkdir()
    for name in LAMBDA_PACKAGES:
        found = importlib.import_module(name.removesuffix(".py")).__file__
        assert found is not None
        (packages / name).symlink_to(found if name.endswith(".py") else Path(found).parent)
    names = [".".join(path.relative_to(asset).with_suffix("").parts) for path in sorted(asset.rglob("*.py"))]
    assert f"{function}.handler" in names
    script = f"import sys; sys.path += sys.argv[1:3]; [__import__(name) for name in {names}]"
    done = subprocess.run(
        # The interpreter is isolated, and does not have the packages of this environment.
        [sys.executable, "-I", "-S", "-c", script, asset, packages],
        env={"AWS_DEFAULT_REGION": "us-east-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_trainer_imports_only_packages_of_every_node() -> None:
    """Packages of optional parts are on a node only if the deployment file selects the part."""
    optional = ("safetensors", "tokenizers", "tiktoken", "pyarrow", "tensorboard", "yaml", "typer", "rich")
    script = f"import sys; sys.modules.update(dict.fromkeys({optional})); import training.loop.trainer, training.train"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_training_config_does_not_import_torch() -> None:
    """`stacks check` and synthesis import the training configuration, and importing torch would add seconds."""
    import training.config

    names = [each.name for each in pkgutil.walk_packages(training.config.__path__, "training.config.")]
    assert names
    script = f"import sys; [__import__(name) for name in {names}]; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_commands_that_observe_a_run_do_not_import_the_configuration() -> None:
    """`trainstack status` runs often, and importing pydantic and the configuration would double its startup time."""
    script = "import sys, trainstack.commands; print({'pydantic', 'stacks.config'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr


def test_only_the_checkpoint_storage_imports_boto3() -> None:
    users = {path for path in modules("training") if top_level([path]) & {"boto3", "botocore"}}
    assert {path.relative_to(ROOT).parent.as_posix() for path in users} == {"training/checkpoint/storage"}


def test_each_validator_is_applied() -> None:
    """A rules module that is missing from the list would have no effect."""
    paths = modules("stacks/validators")
    used = {name for path in paths for name in imports(path)}
    for path in paths:
        name = f"stacks.validators.{path.stem}"
        if path.stem != "__init__":
            rules = getattr(importlib.import_module(name), "RULES", ())
            assert set(rules) <= set(validators.RULES), name
            assert rules or name in used, f"{name} has no rules, and no validator uses it"


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("def f():\n    from training.loop.trainer import Trainer\n    import stacks.config\n")
    assert set(imports(path)) == {"training.loop.trainer", "training.loop.trainer.Trainer", "stacks.config"}


def test_deploying_and_destroying_do_not_import_the_cdk() -> None:
    """The CDK CLI synthesizes in another process, and importing the library here would add seconds."""
    names = "stacks.delivery.deploy, stacks.delivery.destroy, stacks.delivery.delete_data"
    script = f"import sys, {names}; print({{'aws_cdk', 'jsii'}} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
