"""Computes the digest of a function's code: its module, and the code bundle modules that it imports.

Editing the model must not repeat data preparation. The bundle's digest is therefore used only if the imports cannot be
determined: a module imports a computed name, or this Python version cannot parse a module.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

# Each of these runs or loads code without an import statement that names it.
_DYNAMIC = frozenset(
    {"import_module", "__import__", "exec", "eval", "run_path", "run_module", "spec_from_file_location"}
)


def code_digest(folder: Path, function: str, bundle_sha256: str) -> str:
    """Return the digest of a function's code, as 64 hexadecimal digits.

    The digest includes data files in the modules' directories, but not installed packages.

    Args:
        folder: Directory of the unpacked code bundle.
        function: The function, as `package.module:function`.
        bundle_sha256: Digest to return if the imports cannot be determined.
    """
    try:
        files = _reached(folder, function.partition(":")[0])
    except (SyntaxError, ValueError, _DynamicImport):
        return bundle_sha256
    siblings = {path for parent in {each.parent for each in files} for path in parent.iterdir()}
    files |= {path for path in siblings if path.is_file() and path.suffix not in (".py", ".pyc")}
    digest = hashlib.sha256()
    for path in sorted(files):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


class _DynamicImport(Exception):
    """A module imports a computed name."""


def _reached(folder: Path, module: str) -> set[Path]:
    """Return the files of a module and, recursively, of its imports within the directory."""
    waiting, seen, files = [module], set[str](), set[Path]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        base = folder.joinpath(*name.split("."))
        for path, package in ((base / "__init__.py", name), (base.with_name(f"{base.name}.py"), parent)):
            if path.is_file():
                files.add(path)
                waiting += _imports(ast.parse(path.read_bytes(), str(path)), package)
                break
    return files


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules that a module in `package` imports, at any level of nesting."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            parts = package.split(".") if package else []
            base = parts[: len(parts) - each.level + 1] if each.level else []
            module = ".".join([*base, *([each.module] if each.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" if module else alias.name for alias in each.names)
        elif (isinstance(each, ast.Name) and each.id in _DYNAMIC) or (
            isinstance(each, ast.Attribute) and each.attr in _DYNAMIC and each.attr not in ("eval", "exec")
        ):
            raise _DynamicImport
