"""Finds the third-party imports in a folder of Python code, and the distributions that provide them."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from stacks.artifacts.bundles import EXCLUDED, TRAINER

# Modules whose names differ from their distributions' names. Source: each project's page,
# https://pypi.org/project/NAME/ (2026-11). OpenCV maps to the headless build, which does not need libGL.
DISTRIBUTIONS = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "hydra": "hydra-core",
    "jwt": "pyjwt",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
PROJECT = frozenset(TRAINER)


@dataclass(frozen=True)
class Import:
    """An imported top-level module and its first import. `optional` is True if the code handles a missing module."""

    module: str
    file: str
    line: int
    optional: bool


@dataclass(frozen=True)
class Mapped:
    """The distribution that provides a module, and the reason for the choice."""

    distribution: str
    reason: str


def imports_of(folder: Path) -> tuple[list[Import], list[str]]:
    """Return the third-party modules that a folder's files import, and the files that cannot be parsed.

    The standard library, the folder's own modules, the trainer and imports for type checkers are excluded. An import
    with an `except ImportError` is optional unless another import requires the module.
    """
    found: dict[str, Import] = {}
    invalid: list[str] = []
    own = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"} | PROJECT
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if EXCLUDED & set(name.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            invalid.append(f"{name}: {error}")
            continue
        # A script in a subfolder can import its siblings.
        siblings = {other.stem for other in path.parent.glob("*.py")}
        for module, line, optional in _imports(tree):
            if module in own or module in siblings or module in sys.stdlib_module_names:
                continue
            known = found.get(module)
            if known is None or (known.optional and not optional):
                found[module] = Import(module, name.as_posix(), line, optional)
    return [found[module] for module in sorted(found)], invalid


def _imports(tree: ast.AST, optional: bool = False) -> Iterator[tuple[str, int, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno, optional
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node.lineno, optional
        elif isinstance(node, ast.Try) and any(_catches_import_error(handler) for handler in node.handlers):
            yield from _imports(ast.Module(node.body, []), True)
            # The fallback is also optional, because only one of the two modules needs to exist.
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from _imports(ast.Module([*handled, *node.orelse, *node.finalbody], []), True)
        elif isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            yield from _imports(ast.Module(node.orelse, []), optional)
        else:
            yield from _imports(node, optional)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(one, ast.Name) and one.id in ("ImportError", "ModuleNotFoundError") for one in names)


def _is_for_type_checkers(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def distribution_of(module: str) -> Mapped:
    """Return a module's distribution: the installed one, the table's entry, or one with the module's name."""
    installed = sorted({canonicalize_name(name) for name in _installed().get(module, ())})
    if len(installed) == 1:
        return Mapped(installed[0], "the distribution installed here")
    if module in DISTRIBUTIONS:
        return Mapped(DISTRIBUTIONS[module], "the known distribution of this module")
    return Mapped(canonicalize_name(module), "assumed to have the same name")


@cache
def _installed() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
