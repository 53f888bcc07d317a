"""Errors that the CloudFormation API returns."""

from __future__ import annotations

from localcloud.api import ApiError


class TemplateError(ApiError):
    """A template, parameter or other argument is invalid. No resource has been created."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationError", message, 400)


class InvalidRequest(ApiError):
    """The stack's state does not allow the operation, or the operation is not emulated."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationError", message, 400)


class NoSuchStack(ApiError):
    """The stack does not exist. The message depends on the operation."""

    def __init__(self, name: str, words: str = "Stack with id {name} does not exist") -> None:
        super().__init__("ValidationError", words.format(name=name), 400)


class NoSuchChangeSet(ApiError):
    """The change set does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__("ChangeSetNotFound", f"ChangeSet [{name}] does not exist", 404)
