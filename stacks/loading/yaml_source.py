"""Reads strict YAML: a mapping without aliases or repeated keys.

Reading any file results in a mapping or a ConfigError in bounded time because bytes, nodes, nesting and values are
limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from stacks.errors import ConfigError, Problem

MAX_BYTES = 1 << 20
MAX_EVENTS = 20_000
"""Maximum number of events: scalars, and the starts and ends of collections. The examples have fewer than 500."""
MAX_DEPTH = 64
"""Maximum depth of nested collections. PyYAML's scanner is quadratic in the depth, and its constructor recurses."""
MAX_SCALAR_CHARACTERS = 16_384
_MAX_INTEGER = 2**63
# C0 and C1 control characters except tab and line feed, and surrogates, which files and program arguments cannot
# contain.
_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")


class _Loader(yaml.SafeLoader):
    """A YAML loader that records repeated keys. PyYAML silently keeps the last one."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.repeated: list[Problem] = []

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node. PyYAML can raise any error for a value that does not match its tag."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            problem = f"the value does not match the tag {node.tag.rpartition(':')[2]} ({error})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
        if isinstance(value, int) and abs(value) > _MAX_INTEGER:
            problem = "an integer must fit in 64 bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if isinstance(value, str) and _CONTROL.search(value):
            problem = "text must not contain control characters or surrogates"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return value


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problem = "a key must be text; quote it"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        if key in found:
            where = f"line {key_node.start_mark.line + 1}"
            loader.repeated.append(Problem(where, key, "repeated key", "keep one of the two"))
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
# PyYAML follows YAML 1.1, which reads 3e-4 as text, but users mean the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _check_events(text: str, refuse: Callable[[object, str, str], ConfigError]) -> None:
    """Parse without constructing values, and stop at the first limit that is exceeded."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, yaml.SafeLoader), 1):
        if isinstance(event, yaml.AliasEvent):
            # A few lines of aliases can expand to more text than fits in memory.
            raise refuse("an alias (*name)", "anchors and aliases are not supported", "write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        where = f"line {event.start_mark.line + 1}" if event.start_mark else "unknown position"
        if depth > MAX_DEPTH:
            raise refuse(where, f"must have at most {MAX_DEPTH} nested collections", "use a deployment file")
        if count > MAX_EVENTS:
            raise refuse(where, f"must have at most {MAX_EVENTS} values", "use a deployment file")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SCALAR_CHARACTERS:
            raise refuse(where, f"a value must have at most {MAX_SCALAR_CHARACTERS} characters", "shorten it")


def read_value(text: str, source: str) -> Any:
    """Return the value that a text has in a deployment file, such as the number 0.001 for `1e-3`.

    Raises:
        ConfigError: The text is not a YAML value.
    """

    def refuse(value: object, rule: str, remedy: str) -> ConfigError:
        return ConfigError(source, [Problem(source, value, rule, remedy)])

    loader = None
    try:
        _check_events(text, refuse)
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise refuse(text, "is not a YAML value", "quote text with special characters") from error
    finally:
        if loader is not None:
            loader.dispose()


def read_yaml(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return the mapping in a YAML file, and one problem for each repeated key.

    Raises:
        ConfigError: The file is unreadable, too large, not YAML, or not a mapping.
    """

    def refuse(value: object, rule: str, remedy: str) -> ConfigError:
        return ConfigError(str(path), [Problem("the file", value, rule, remedy)])

    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise refuse(f"{size} bytes", f"must have at most {MAX_BYTES} bytes", "use a deployment file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise refuse(str(path), f"cannot be read: {error.strerror}", "see config/ for examples") from error
    except UnicodeDecodeError as error:
        raise refuse(str(path), f"must be UTF-8 text: {error.reason}", "save it as UTF-8") from error
    loader = None
    try:
        _check_events(text, refuse)
        loader = _Loader(text)
        loaded = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown position"
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise refuse(where, f"is not valid YAML: {problem}", "correct the line") from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(loaded, dict):
        raise refuse(type(loaded).__name__, "must be a mapping of sections", "see config/ for examples")
    return loaded, loader.repeated
