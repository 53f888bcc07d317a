"""Roles that GitHub workflows assume with their OIDC tokens: one for deploys and one for read-only jobs.

Both roles can assume only the roles that `cdk bootstrap` creates. IAM checks the token's claims: the mandatory `sub`
claim, and claims that cannot be forged by renaming a repository or editing a workflow.

Sources (2026-11): https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html (since
January 2026, the claims in GitHub's tokens are condition keys),
https://docs.github.com/en/actions/reference/security/oidc and
https://github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens/
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Duration, Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.config.delivery import GithubConfig
from stacks.constructs.cdk_bootstrap_roles import DEPLOY, LOOKUP, Duty, qualifier_of, role_arn

ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"
Claims = dict[str, "str | list[str]"]


class GithubAccess(Construct):
    """Both roles, and the identity provider unless the deployment file names an existing provider."""

    def __init__(self, scope: Construct, id_: str, *, config: GithubConfig) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._provider = self._identity_provider()
        ref = f"refs/heads/{config.branch}"
        self.deploy_role = self._role(
            "DeployRole",
            DEPLOY,
            [
                {
                    "sub": [each for name in config.environments for each in self._subjects(f"environment:{name}")],
                    "ref": ref,
                    "environment": list(config.environments),
                }
            ],
        )
        """The role for jobs that run on the branch in one of the environments."""
        self.read_role = self._role(
            "ReadRole",
            LOOKUP,
            [
                {
                    "sub": self._subjects(f"environment:{config.review_environment}"),
                    "environment": config.review_environment,
                },
                {"sub": self._subjects(f"ref:{ref}"), "ref": ref},
            ],
        )
        """The role for jobs on the branch, and for pull requests in the review environment."""

    def _identity_provider(self) -> iam.IOidcProvider:
        if self._config.provider_arn is not None:
            return iam.OidcProviderNative.from_oidc_provider_arn(self, "Provider", self._config.provider_arn)
        # The provider does not need a thumbprint because IAM trusts the authority that signs GitHub's certificate.
        return iam.OidcProviderNative(self, "Provider", url=f"https://{ISSUER}", client_ids=[AUDIENCE])

    def _subjects(self, context: str) -> list[str]:
        """Return both forms of a token's subject. In repositories created since July 2026, the subject contains ids."""
        config = self._config
        owner, name = config.repository.split("/")
        return [
            f"repo:{config.repository}:{context}",
            f"repo:{owner}@{config.owner_id}/{name}@{config.repository_id}:{context}",
        ]

    def _role(self, id_: str, duties: Sequence[Duty], trusted: Sequence[Claims]) -> iam.Role:
        stack = Stack.of(self)
        principals = [self._principal(claims) for claims in trusted]
        role = iam.Role(
            self,
            id_,
            assumed_by=iam.CompositePrincipal(*principals),
            description=f"GitHub workflows of {self._config.repository}",
            max_session_duration=Duration.hours(1),
        )
        roles = [
            role_arn(duty, qualifier_of(self), partition=stack.partition, account=stack.account, region=stack.region)
            for duty in duties
        ]
        role.add_to_policy(iam.PolicyStatement(sid="AssumeBootstrapRoles", actions=["sts:AssumeRole"], resources=roles))
        return role

    def _principal(self, claims: Claims) -> iam.WebIdentityPrincipal:
        known = {"aud": AUDIENCE, "repository_id": str(self._config.repository_id)} | claims
        conditions = {"StringEquals": {f"{ISSUER}:{claim}": value for claim, value in known.items()}}
        return iam.WebIdentityPrincipal(self._provider.oidc_provider_arn, conditions)
