"""What goes wrong with a template or a stack; the gateway turns these into API errors."""

from __future__ import annotations

from localcloud.api import ApiError


class TemplateError(ApiError):
    """A template, or what was given to it, is wrong; nothing was made."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationError", message, 400)


class RequestRefused(ApiError):
    """A stack is in no state for what was asked, or the local cloud does not do it."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationError", message, 400)


class NoSuchStack(ApiError):
    """There is no stack of this name."""

    def __init__(self, name: str) -> None:
        super().__init__("ValidationError", f"Stack with id {name} does not exist", 400)


class NoSuchChangeSet(ApiError):
    """There is no change set of this name."""

    def __init__(self, name: str) -> None:
        super().__init__("ChangeSetNotFound", f"ChangeSet [{name}] does not exist", 404)
