"""Code that all commands share: the account's clients, the exit codes, and common arguments."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import boto3
import typer
from botocore.config import Config

FAILED, INVALID, MISSING, REFUSED = 1, 2, 3, 4
EXIT_CODES = (
    "Exit codes: 0 success, 1 an AWS call failed or a wait ended without success, 2 invalid input, 3 the deployment or "
    "instance does not exist, 4 the run's phase does not permit the command."
)


def is_file_name(text: str) -> bool:
    """Return True if a text with a slash or a YAML suffix names a deployment file, not a deployment."""
    return "/" in text or text.endswith((".yaml", ".yml"))


def _deployment_name(name: str) -> str:
    """Reject a file. Commands with this argument support only fleets, which they find by name."""
    if is_file_name(name):
        raise CommandError(INVALID, f"{name}: must be a deployment name; the command supports only engine: fleet")
    return name


Name = Annotated[str, typer.Argument(help="Deployment name, as in the deployment file.", callback=_deployment_name)]
Region = Annotated[str | None, typer.Option(help="AWS region; default: the region of the AWS configuration.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CommandError(Exception):
    """A command cannot be executed. `code` is its exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Account:
    """boto3 clients for one region, each created once."""

    def __init__(self, region: str | None) -> None:
        self._session = boto3.session.Session(region_name=region or os.environ.get("AWS_REGION"))
        if self._session.region_name is None:
            raise CommandError(INVALID, "no AWS region is set; use --region, or set AWS_REGION")
        self.region: str = self._session.region_name
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Return a client. The first call for each service must not be concurrent."""
        if service not in self._clients:
            retries = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 4})
            self._clients[service] = self._session.client(service, config=retries)
        return self._clients[service]

    def prepare(self, *services: str) -> Account:
        """Create the clients of these services, so that threads can use them."""
        for service in services:
            self.client(service)
        return self


def span_seconds(span: str) -> float:
    """Return the seconds of a time span such as 30m, 6h or 2d.

    Raises:
        CommandError: The text is not a time span.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    try:
        seconds = float(span[:-1]) * units[span[-1]]
    except (ValueError, KeyError, IndexError):
        seconds = -1.0
    if not 0 <= seconds <= 3653 * 86400:
        raise CommandError(
            INVALID, f"--since: {span!r}: must be a number with the unit s, m, h or d, such as 90m; correct it"
        )
    return seconds


def confirm(question: str, otherwise: str, option: str) -> None:
    """Ask for confirmation on the terminal. Return only if the answer is yes.

    Args:
        question: The prompt.
        otherwise: The consequence of any other answer.
        option: The command-line option that replaces the answer.

    Raises:
        CommandError: The answer is not yes, or there is no terminal.
    """
    if not sys.stdin.isatty():
        raise CommandError(REFUSED, f"{question} {otherwise}; without a terminal, confirm with {option}")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise CommandError(REFUSED, otherwise)
