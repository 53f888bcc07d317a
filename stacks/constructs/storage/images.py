"""The repository of the deployment's container images in ECR.

Sources (2026-11): https://docs.aws.amazon.com/AmazonECR/latest/userguide/LifecyclePolicies.html,
https://docs.aws.amazon.com/AmazonECR/latest/userguide/image-tag-mutability.html and
https://docs.aws.amazon.com/AmazonECR/latest/userguide/repository-policies.html
"""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.config.image import ImageConfig


def image_repository(
    scope: Construct, id_: str, *, config: ImageConfig, key: kms.IKey, removal: RemovalPolicy
) -> ecr.Repository:
    """Create a repository that scans each pushed image, refuses to move tags, and keeps the newest images.

    `key` encrypts it. ECR decrypts images with a grant, so that the roles that pull do not need the key.
    """
    repository = ecr.Repository(
        scope,
        id_,
        encryption=ecr.RepositoryEncryption.KMS,
        encryption_key=key,
        image_scan_on_push=True,
        image_tag_mutability=ecr.TagMutability.IMMUTABLE,
        lifecycle_rules=[ecr.LifecycleRule(max_image_count=config.keep_images, description="Newest images")],
        empty_on_delete=removal == RemovalPolicy.DESTROY,
        removal_policy=removal,
    )
    for role in config.pull_roles:
        repository.grant_pull(iam.ArnPrincipal(role))
    return repository
