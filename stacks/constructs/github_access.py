"""Roles that GitHub's workflows take by their identity token: one deploys, one reads; neither does anything itself.

Both may only take on roles of `cdk bootstrap`. IAM checks the claims of the token: `sub` because it must, and beside it
those that no rename of a repository or choice of a workflow's author can bring about.

Sources (2026-11): https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html (claims
of GitHub's tokens are condition keys since January 2026),
https://docs.github.com/en/actions/reference/security/oidc and
https://github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens/
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Duration, Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.bootstrap_roles import DEPLOY, LOOKUP, Duty, role_arn
from stacks.config.delivery import GithubConfig

ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"
Claims = dict[str, "str | list[str]"]


class GithubAccess(Construct):
    """Identity provider, unless the account has one, and the two roles."""

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
        """Taken by jobs of the branch in one of the environments."""
        self.read_role = self._role(
            "ReadRole",
            LOOKUP,
            [{"sub": self._subjects("pull_request")}, {"sub": self._subjects(f"ref:{ref}"), "ref": ref}],
        )
        """Taken by jobs of pull requests from within the repository, and of the branch."""

    def _identity_provider(self) -> iam.IOidcProvider:
        if self._config.provider_arn is not None:
            return iam.OidcProviderNative.from_oidc_provider_arn(self, "Provider", self._config.provider_arn)
        # Without a thumbprint: IAM knows the authority that signs GitHub's certificate.
        return iam.OidcProviderNative(self, "Provider", url=f"https://{ISSUER}", client_ids=[AUDIENCE])

    def _subjects(self, context: str) -> list[str]:
        """Return the subject of a token in both forms: repositories made since July 2026 have ids in it."""
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
            description=f"Workflows of {self._config.repository}",
            max_session_duration=Duration.hours(1),
        )
        roles = [
            role_arn(duty, partition=stack.partition, account=stack.account, region=stack.region) for duty in duties
        ]
        role.add_to_policy(iam.PolicyStatement(sid="TakeOn", actions=["sts:AssumeRole"], resources=roles))
        return role

    def _principal(self, claims: Claims) -> iam.WebIdentityPrincipal:
        known = {"aud": AUDIENCE, "repository_id": str(self._config.repository_id)} | claims
        conditions = {"StringEquals": {f"{ISSUER}:{claim}": value for claim, value in known.items()}}
        return iam.WebIdentityPrincipal(self._provider.oidc_provider_arn, conditions)
