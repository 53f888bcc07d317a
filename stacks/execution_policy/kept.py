"""Permissions that no recorded deploy on the embedded cloud has used, and the reasons to keep them.

policy/exercised.json lists the permissions that were used. The embedded cloud recorded these actions under the
execution role while the examples were deployed, updated and destroyed with IAM enforced.
"""

from __future__ import annotations

_READ = "handlers read the entire resource after each change; the embedded cloud's handlers read less"
_TAGS = "editing `tags`; the embedded cloud stores some tags with the resource"
_PIPELINE = "types of the PipelineStack that the embedded cloud does not emulate"
_NODES = "a node edit with running instances: instance refresh and lifecycle hooks"
_RESERVED = "reservations and fleets in examples whose deploys were not recorded"
_LUSTRE = "updating a Lustre file system, and its network interfaces"
_QUEUE = "the run controller's event queue, which the demo deploys; the deploys were recorded before it was added"
_IMAGES = "image repositories, which the recorded deploys precede"
_KEY = "volumes, log groups and parameters that use the deployment's key: AWS calls KMS on behalf of the caller"

KEPT: tuple[tuple[str, str], ...] = (
    ("codebuild:*", _PIPELINE),
    ("codepipeline:*", _PIPELINE),
    ("code*connections:*", _PIPELINE),
    ("iam:*OpenIDConnect*", _PIPELINE),
    ("*:Tag*", _TAGS),
    ("*:Untag*", _TAGS),
    ("*:ListTags*", _TAGS),
    ("*:*DeleteTags", _TAGS),
    ("ssm:*Tags*", _TAGS),
    ("kms:ListResourceTags", _TAGS),
    ("ecr:*", _IMAGES),
    ("fsx:*", _LUSTRE),
    ("ec2:CreateNetworkInterface", _LUSTRE),
    ("ec2:GetSecurityGroupsForVpc", _LUSTRE),
    ("route53:AssociateVPCWithHostedZone", "private DNS names of endpoints, which the embedded cloud does not emulate"),
    ("ec2:*CapacityReservation*", _RESERVED),
    ("ec2:*Fleet*", _RESERVED),
    ("iam:CreateServiceLinkedRole", "accounts without the role: the parameter ServiceLinkedRoles=create"),
    ("autoscaling:*InstanceRefresh", _NODES),
    ("autoscaling:*LifecycleHook", _NODES),
    ("autoscaling:*Processes", _NODES),
    ("autoscaling:*MetricsCollection", "handlers set a group's metrics with every update"),
    ("ec2:TerminateInstances", "deleting a group or fleet with running instances"),
    ("kms:*Alias", "the CDK's artifact stack, for a pipeline with a stage in another region"),
    ("kms:*able*", "handlers set a key's state and rotation to match the template"),
    ("kms:PutKeyPolicy", "a release that allows another service or role to use the key"),
    ("kms:UpdateKeyDescription", "a new key description"),
    ("kms:CreateGrant", _KEY),
    ("kms:RetireGrant", _IMAGES),
    ("kms:*crypt*", _KEY),
    ("kms:GenerateDataKey*", _KEY),
    ("logs:*KmsKey", "a new or changed log group key"),
    ("logs:Delete*", "handlers delete what the template no longer contains"),
    ("s3:PutBucketVersioning", "handlers set versioning to match the template, even if versioning is off"),
    ("iam:*PolicyVersion", "a release with another boundary: creates a version, and deletes the oldest of five"),
    ("iam:Update*", "a release with a new role description or another trusted service"),
    ("ec2:*LaunchTemplateVersion", "a node edit"),
    ("ec2:Modify*", "larger volumes, and changed endpoint policies"),
    ("ec2:Replace*", "changed routes and route tables"),
    ("ec2:AssociateAddress", "handlers for addresses, including a NAT gateway's address"),
    ("ec2:UpdateSecurityGroupRuleDescriptions*", "a new rule description"),
    ("dlm:UpdateLifecyclePolicy", "a changed snapshot interval"),
    ("lambda:UpdateFunctionCode", "a release with a new run controller"),
    ("lambda:DeleteFunctionConcurrency", "removing a function's limit of one concurrent call"),
    ("lambda:*EventSourceMapping", _QUEUE),
    ("sqs:*", _QUEUE),
    ("states:*", "state machines of pipelines, which the recorded deploys precede"),
    ("lambda:InvokeFunction", "the custom resource for fast snapshot restore"),
    ("sns:SetSubscriptionAttributes", "handlers for an existing subscription"),
    ("*:Get*", _READ),
    ("*:List*", _READ),
    ("*:Describe*", _READ),
)
"""Action patterns with reasons. A test checks that they cover every unused action in the policy."""
