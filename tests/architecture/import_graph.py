"""The import graph of the packages, read from their sources. It includes every import, at any position in a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules(package: str) -> list[Path]:
    """Return the Python files of a package, sorted."""
    return sorted(path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names that a module imports, including those of `from x import y` as `x.y`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, path)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _base_of(node: ast.ImportFrom, path: Path) -> str:
    if node.level == 0:
        return node.module or ""
    package = path.resolve().relative_to(ROOT).parent.parts[: len(path.resolve().relative_to(ROOT).parts) - node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def name_of(path: Path) -> str:
    """Return the dotted name of a module; a package's `__init__.py` has the package's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph(*packages: str) -> dict[str, set[str]]:
    """Return the modules of these packages that each module imports."""
    paths = {name_of(path): path for package in packages for path in modules(package)}
    edges: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = {each for each in imports(path) if each in paths and each != name}
        # `from a.b import c` also names a.b. If c is a module, the import refers to c.
        edges[name] = {each for each in found if not _only_as_parent(each, found, path)}
    return edges


def _only_as_parent(name: str, found: set[str], path: Path) -> bool:
    """True if each `from name import x` in a module imports modules only."""
    if not any(each.startswith(f"{name}.") for each in found):
        return False
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and _base_of(node, path) == name:
            if any(f"{name}.{alias.name}" not in found for alias in node.names):
                return False
        elif isinstance(node, ast.Import) and any(alias.name == name for alias in node.names):
            return False
    return True


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan's algorithm), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        on_stack.add(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in on_stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = []
            while True:
                component.append(stack.pop())
                on_stack.remove(component[-1])
                if component[-1] == name:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for name in edges:
        if name not in index:
            visit(name)
    return found
