"""Checks whether a deployment can run in an account, using read-only calls and launch dry runs.

`questions` contains the table of checks. The preflight runs them concurrently.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from stacks.account import launch
from stacks.account.account import Account, ClientOf, Templates
from stacks.account.questions import QUESTIONS, Question
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem

PERMISSION_ERRORS = ("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation")
REGION_ERRORS = ("AuthFailure", "InvalidClientTokenId", "OptInRequired", "UnrecognizedClientException")
"""Error codes for invalid credentials, and for a region that the account has not enabled.
Source (2026-11): https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-regions.html."""
THREADS = 8
PROGRESS_SECONDS = 4.0


def account_problems(
    config: DeploymentConfig,
    *,
    templates: Callable[[], Templates],
    progress: Callable[[str], None] = lambda text: None,
    client_of: ClientOf | None = None,
    questions: tuple[Question, ...] = QUESTIONS,
    progress_seconds: float = PROGRESS_SECONDS,
) -> list[Problem]:
    """Return the problems that would prevent a deploy to the account. A check that cannot be completed is a warning.

    Args:
        config: The deployment.
        templates: Function that synthesizes the deployment.
        progress: Function that receives a line of text for each result, and periodically while waiting.
        client_of: Function that creates the client for a service. The default uses the environment's credentials.
        questions: The checks to run. Checks that do not apply to the deployment are skipped.
        progress_seconds: Maximum time between two lines of text, in seconds.
    """
    clients = client_of or _clients(config.region)
    progress(f"credentials and account, {config.region}")
    account = Account(config, clients, templates)
    asked = [question for question in questions if question.applies(config)]
    with ThreadPoolExecutor(THREADS) as pool:
        first = pool.submit(_account, config, clients)
        while not wait([first], progress_seconds).done:
            progress("waiting for the credentials and the account")
        if (problem := first.result()) is not None:
            return [problem]
        answers = {pool.submit(_answer, question, account): question for question in asked}
        pending: set[Future[list[Problem]]] = set(answers)
        while pending:
            done, pending = wait(pending, progress_seconds, FIRST_COMPLETED)
            for one in sorted(done, key=lambda one: asked.index(answers[one])):
                left = f", {len(pending)} left" if pending else ""
                progress(f"{answers[one].title}: {len(one.result())} problems{left}")
            if not done:
                progress(f"waiting for {', '.join(sorted(answers[one].title for one in pending))}")
        return [problem for answer in answers for problem in answer.result()]


def synthesised(path: Path) -> Templates:
    """Return the templates of a deployment file, synthesized in the same way as for a deploy."""
    return launch.synthesise(path)


def _clients(region: str) -> ClientOf:
    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    session = boto3.Session(region_name=region)
    return lambda service: session.client(service, config=settings)


def _account(config: DeploymentConfig, clients: ClientOf) -> Problem | None:
    """Return a problem that blocks all checks, or None."""
    try:
        account = clients("sts").get_caller_identity()["Account"]
    except (NoCredentialsError, PartialCredentialsError) as error:
        remedy = "`aws configure`, `aws sso login`, or set AWS_PROFILE"
        return Problem("--aws", str(error), "no AWS credentials found", remedy)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code not in REGION_ERRORS:
            return Problem("--aws", str(error), "the call to AWS failed", "see the message")
        rule = f"the credentials are invalid or expired, or the account has not enabled {config.region}"
        remedy = f"renew the credentials; `aws account enable-region --region-name {config.region}` enables the region"
        return Problem("--aws", code, rule, remedy)
    except BotoCoreError as error:
        return Problem("--aws", str(error), "the call to AWS failed", "check the network, proxy and credentials")
    if config.account is not None and account != config.account:
        rule = f"the credentials belong to account {account}"
        return Problem("account", config.account, rule, "use the configured account's credentials, or correct the key")
    return None


def _answer(question: Question, account: Account) -> list[Problem]:
    found: list[Problem] = []
    try:
        for problem in question.ask(account):
            found.append(problem)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in PERMISSION_ERRORS:
            called = f"{error.operation_name}; the check calls {', '.join(question.calls)}"
            rule, remedy = f"{question.title}: missing permission for {called}", "grant it, or use other credentials"
        else:
            rule, remedy = f"{question.title}: the call failed: {error}", "see the message"
        found.append(Problem("--aws", code, rule, remedy, "warning"))
    except BotoCoreError as error:
        rule = f"{question.title}: AWS is not reachable"
        found.append(Problem("--aws", str(error), rule, "check the network and proxy", "warning"))
    except ConfigError as error:
        found += error.problems
    return found
