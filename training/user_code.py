"""Imports user-supplied functions by path, and calls them with the arguments that they declare."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from training.errors import ConfigurationError

SHOWN_CHARACTERS = 80


def import_function(path: str, key: str) -> Callable[..., Any]:
    """Import ``package.module:function``.

    Args:
        path: package, module and function.
        key: configuration key, for messages.

    Raises:
        ConfigurationError: The module or function does not exist. Errors raised by the module itself propagate.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # an import inside the user's module failed; the traceback shows where
        raise ConfigurationError(
            [f"{key}: {path}: no module named {error.name}; put it in training.code or on PYTHONPATH"]
        ) from error
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise ConfigurationError(
            [
                f"{key}: {path}: {error}; top-level modules in training.code have no parent package, so import their "
                "siblings by name (import layers), or move them to a package folder (package.models:build)"
            ]
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        what = "has no attribute" if function is None else "has no function"
        raise ConfigurationError([f"{key}: {path}: {module.__file__} {what} {name}; correct the name"])
    return function  # type: ignore[no-any-return]


def call(path: str, key: str, options: Mapping[str, Any], **arguments: Any) -> Any:
    """Call a user's function with all ``options`` and with the ``arguments`` that match its parameters.

    Raises:
        ConfigurationError: An option does not match any parameter, or a parameter has no value and no default.
    """
    function = import_function(path, key)
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a built-in function without a signature
        return function(**arguments, **options)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    given = {name: value for name, value in arguments.items() if takes_any or name in parameters} | dict(options)
    problems = [
        f"{key}: {path} has no parameter {name!r}, which options sets; its "
        f"parameters: {', '.join(parameters) or 'none'}"
        for name in options
        if not takes_any and name not in parameters
    ]
    problems += [
        f"{key}: {path} requires {name!r}; set it in options, or give the parameter a default"
        for name, parameter in parameters.items()
        if name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if problems:
        raise ConfigurationError(problems)
    return function(**given)


def shown(value: object) -> str:
    """Return a value's type and shortened repr, for messages."""
    text = repr(value)
    return f"{type(value).__name__} ({text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + '...'})"
