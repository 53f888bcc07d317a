"""The `delivery` section: how merged changes are deployed, and which of them need approval."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stacks.config.setting import EmailAddress, Section, setting
from stacks.config.setting import section as optional_section

ApproveFrom = Literal[10, 20, 30, 40]
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$")]
Branch = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")]
# No colon: in a token's subject claim, colons separate the environment's name from the other fields.
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ConfigFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}\.ya?ml$")]


class PipelineConfig(Section):
    """A pipeline in AWS (CodePipeline V2) that checks and deploys merged changes; AWS bills it by the minute."""

    connection_arn: str = setting(
        "ARN of the CodeConnections connection to the repository host. Create and confirm the connection in the "
        "console, because AWS does not provide an API for confirming it.",
        edit="changes the delivery",
        pattern=r"^arn:aws[a-z-]*:(codeconnections|codestar-connections):[a-z0-9-]+:\d{12}:connection/[0-9a-f-]{36}$",
    )
    repository: Repository = setting("Repository, as owner/name.", edit="changes the delivery")
    branch: Branch = setting("Branch to deploy.", edit="changes the delivery", default="main")
    stages: list[ConfigFile] = setting(
        "Deployment files, as paths relative to the repository root, in deployment order, such as development before "
        "production. A stage starts after the previous stage has succeeded.",
        edit="changes the delivery",
        min_length=1,
        max_length=8,
    )
    approve_from: ApproveFrom = setting(
        "Lowest exit code from `python -m stacks diff` that requires approval for a stage. `10`: any change; `20`: "
        "nodes are replaced; `30`: permissions or network access are broadened, or the review does not recognize "
        "the change as safe; `40`: data is at risk. The "
        "default covers changes that the next commit cannot undo.",
        edit="changes the delivery",
        default=30,
    )
    drift_hour_utc: int = setting(
        "Hour of the daily drift detection, UTC.",
        edit="changes the delivery",
        default=4,
        ge=0,
        le=23,
    )
    emails: list[EmailAddress] = setting(
        "E-mail addresses to notify of pending approvals, failed runs and drift; each recipient must confirm through a"
        " link.",
        edit="changes the delivery",
        default=[],
        max_length=10,
    )


class GithubConfig(Section):
    """Roles that GitHub workflows assume without stored keys: a role that can deploy, and a read-only role."""

    repository: Repository = setting("Repository, as owner/name.", edit="changes the delivery")
    repository_id: int = setting(
        "Numeric id of the repository (`gh api repos/OWNER/NAME --jq .id`). Names can be reused, but ids cannot.",
        edit="changes the delivery",
        ge=1,
    )
    owner_id: int = setting(
        "Numeric id of the owner (`gh api repos/OWNER/NAME --jq .owner.id`), which newer repositories include in the "
        "token subject.",
        edit="changes the delivery",
        ge=1,
    )
    branch: Branch = setting("Branch that may deploy.", edit="changes the delivery", default="main")
    environments: list[EnvironmentName] = setting(
        "GitHub environments whose jobs may deploy. The second environment requires reviewers; changes that the "
        "gate blocks wait there for approval.",
        edit="changes the delivery",
        default=["production", "production-approval"],
        min_length=1,
        max_length=8,
    )
    review_environment: EnvironmentName = setting(
        "GitHub environment whose jobs may read the account to review a pull request. Require reviewers, because "
        "a pull request can change the workflow that runs in it.",
        edit="changes the delivery",
        default="review",
    )
    provider_arn: str | None = setting(
        "ARN of the account's existing identity provider for GitHub (an account can have one); `null`: create one.",
        edit="changes the delivery",
        default=None,
        pattern=r"^arn:aws[a-z-]*:iam::\d{12}:oidc-provider/token\.actions\.githubusercontent\.com$",
    )


class DeliveryConfig(Section):
    """How merged changes are deployed. By default, neither key is set, and you deploy manually."""

    pipeline: PipelineConfig | None = optional_section("A pipeline in AWS; `null`: none.", edit="changes the delivery")
    github: GithubConfig | None = optional_section(
        "Roles for GitHub workflows; `null`: none.", edit="changes the delivery"
    )
