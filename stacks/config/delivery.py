"""The `delivery` section: what carries merged changes into the account, and asks a person when they are dangerous."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stacks.config.setting import EmailAddress, Section, setting
from stacks.config.setting import section as optional_section

ApproveFrom = Literal[10, 20, 30, 40]
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$")]
Branch = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")]
# A token's claims are texts; an environment's name stands in the subject between colons, so it holds none.
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ConfigFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}\.ya?ml$")]


class PipelineConfig(Section):
    """A pipeline in AWS (CodePipeline V2) that checks and deploys what is merged; paid by the minute."""

    connection_arn: str = setting(
        "ARN of the CodeConnections connection to the repository's host. A person makes it and confirms it in the "
        "console: no API can.",
        edit="changes the delivery",
        pattern=r"^arn:aws[a-z-]*:(codeconnections|codestar-connections):[a-z0-9-]+:\d{12}:connection/[0-9a-f-]{36}$",
    )
    repository: Repository = setting("Repository, as owner/name.", edit="changes the delivery")
    branch: Branch = setting("Branch whose commits are deployed.", edit="changes the delivery", default="main")
    stages: list[ConfigFile] = setting(
        "Deployment files from the repository's root, deployed one after the other, such as development before "
        "production; the next one only when the last one is there.",
        edit="changes the delivery",
        min_length=1,
        max_length=8,
    )
    approve_from: ApproveFrom = setting(
        "Exit code of `python -m stacks diff` from which a person is asked before a stage: 10 any change, 20 nodes are "
        "replaced, 30 IAM or network broadened, 40 data at risk. 30: what cannot be undone by the next commit.",
        edit="changes the delivery",
        default=30,
    )
    drift_hour_utc: int = setting(
        "Hour of the day at which the stages are compared with their templates, UTC.",
        edit="changes the delivery",
        default=4,
        ge=0,
        le=23,
    )
    emails: list[EmailAddress] = setting(
        "Who hears that an approval waits, a run failed or a stack drifted; each address confirms by a link.",
        edit="changes the delivery",
        default=[],
        max_length=10,
    )


class GithubConfig(Section):
    """Roles that GitHub's workflows take without a stored key: one to deploy, one that reads."""

    repository: Repository = setting("Repository, as owner/name.", edit="changes the delivery")
    repository_id: int = setting(
        "Numeric id of the repository (`gh api repos/OWNER/NAME --jq .id`): a name can be given away, an id cannot.",
        edit="changes the delivery",
        ge=1,
    )
    owner_id: int = setting(
        "Numeric id of its owner (`gh api repos/OWNER/NAME --jq .owner.id`), part of newer repositories' subjects.",
        edit="changes the delivery",
        ge=1,
    )
    branch: Branch = setting("Branch that may be deployed from.", edit="changes the delivery", default="main")
    environments: list[EnvironmentName] = setting(
        "GitHub environments whose jobs may deploy. The second one, with reviewers, is for what the gate stops.",
        edit="changes the delivery",
        default=["production", "production-approval"],
        min_length=1,
        max_length=8,
    )
    provider_arn: str | None = setting(
        "ARN of the account's identity provider for GitHub, of which there can be one only; null: make it.",
        edit="changes the delivery",
        default=None,
        pattern=r"^arn:aws[a-z-]*:iam::\d{12}:oidc-provider/token\.actions\.githubusercontent\.com$",
    )


class DeliveryConfig(Section):
    """What carries merged changes: nothing by default, so that a person deploys."""

    pipeline: PipelineConfig | None = optional_section("A pipeline in AWS; null: none.", edit="changes the delivery")
    github: GithubConfig | None = optional_section(
        "Roles for GitHub's workflows; null: none.", edit="changes the delivery"
    )
