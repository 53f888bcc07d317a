"""Who may import whom: docs/architecture.md, held by walking every import of the packages."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bootstrap", "localcloud", "stacks", "training")
ALLOWED = {
    "bootstrap": set(),
    "training": set(),
    "localcloud": set(),
    "stacks": {"bootstrap.documents", "training.config"},
}
"""What a package may import of the others."""


def modules(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, allowed: set[str]) -> bool:
    return any(name == item or name.startswith(f"{item}.") for item in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_meet_only_where_the_architecture_says(package: str) -> None:
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


def test_documents_need_the_standard_library_only() -> None:
    for module in ("documents", "document_decoding", "errors"):
        for name in imports(ROOT / "bootstrap" / f"{module}.py"):
            owner = name.split(".", 1)[0]
            assert owner in sys.stdlib_module_names or owner == "bootstrap", f"{module}: {name}"


@pytest.mark.parametrize(("package", "third_parties"), [("bootstrap", {"boto3", "botocore"})])
def test_the_node_needs_no_more_than_the_image_has(package: str, third_parties: set[str]) -> None:
    found = {name.split(".", 1)[0] for path in modules(package) for name in imports(path)}
    # blake3 is asked for and done without: hashes are then left to the trainer's own check.
    assert found - set(sys.stdlib_module_names) - {package} <= third_parties | {"blake3"}


def test_the_run_controller_runs_from_its_asset_alone() -> None:
    folder = ROOT / "stacks" / "functions" / "run_controller"
    found = {name.split(".", 1)[0] for path in folder.glob("*.py") for name in imports(path)}
    assert found <= set(sys.stdlib_module_names) | {"boto3", "botocore"}


def test_training_config_needs_no_torch() -> None:
    """`stacks check` and synth read it; torch would cost them seconds."""
    needed = ["config", "errors", "__init__", *(path.stem for path in (ROOT / "training").glob("*settings*.py"))]
    assert len(needed) > 3
    for module in needed:
        assert not any(name.split(".", 1)[0] == "torch" for name in imports(ROOT / "training" / f"{module}.py"))


def test_boto3_stays_in_the_trainers_back_ends() -> None:
    allowed = ("checkpoint", "data")
    for path in modules("training"):
        if path.relative_to(ROOT / "training").parts[0] in allowed:
            continue
        names = {name.split(".", 1)[0] for name in imports(path)}
        assert not names & {"boto3", "botocore"}, path


def test_a_validator_is_in_the_list() -> None:
    """A rules module that nobody applies would be silent."""
    from stacks import validators

    for path in (ROOT / "stacks" / "validators").glob("*.py"):
        if path.stem != "__init__":
            rules = set(getattr(validators, path.stem).RULES)
            assert rules and rules <= set(validators.RULES), path.stem


def test_walker_sees_imports_inside_functions(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("def f():\n    from training.trainer import Trainer\n    import stacks.config\n")
    assert set(imports(path)) == {"training.trainer", "training.trainer.Trainer", "stacks.config"}
