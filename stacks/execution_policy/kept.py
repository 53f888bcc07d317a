"""Permissions that no deploy on the embedded cloud has used so far, and why the policy keeps them.

What was used is in policy/exercised.json: the actions that the embedded cloud counted under the execution role while
examples were deployed, changed in place and destroyed with the rights enforced.
"""

from __future__ import annotations

_READ = "handlers read a resource back whole after each change; the embedded cloud's read what they answer with"
_TAGS = "`tags` of a deployment file change, or go; the embedded cloud keeps some with the resource itself"
_PIPELINE = "the PipelineStack's: types that the embedded cloud does not play"
_NODES = "a node edit while there are machines: refresh, and hooks that are held meanwhile"
_RESERVED = "reservations and fleets of examples that were not among the deploys counted"
_LUSTRE = "a file system for Lustre that grows or is made faster, and the interfaces that it has in the network"
_KEY = "volumes, log groups and parameters under the deployment's key: AWS asks for it in the caller's name"

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
    ("fsx:*", _LUSTRE),
    ("ec2:CreateNetworkInterface", _LUSTRE),
    ("resource-groups:*", _RESERVED),
    ("ec2:*CapacityReservation*", _RESERVED),
    ("ec2:*Fleet*", _RESERVED),
    ("iam:CreateServiceLinkedRole", "an account without the role: the parameter ServiceLinkedRoles=create"),
    ("autoscaling:*InstanceRefresh", _NODES),
    ("autoscaling:*LifecycleHook", _NODES),
    ("autoscaling:*Processes", _NODES),
    ("autoscaling:*MetricsCollection", "handlers settle a group's metrics with every update"),
    ("ec2:TerminateInstances", "a group or fleet that goes while it has machines"),
    ("kms:*Alias", "the CDK's own stack for artifacts, of a pipeline with a stage in another region"),
    ("kms:*able*", "handlers set a key's state and rotation to what the template says"),
    ("kms:PutKeyPolicy", "a release that lets another service or role use the key"),
    ("kms:UpdateKeyDescription", "a deployment's key that is described anew"),
    ("kms:CreateGrant", _KEY),
    ("kms:*crypt*", _KEY),
    ("kms:GenerateDataKey*", _KEY),
    ("logs:*KmsKey", "a log group that gets another key, or gets one at all"),
    ("logs:Delete*", "handlers take away what the template no longer has"),
    ("s3:DeleteBucket*", "handlers take away what the template no longer has"),
    ("s3:PutBucketVersioning", "handlers set it to what the template says, off too"),
    ("iam:*PolicyVersion", "a release with another boundary: a new version, and the oldest of five goes"),
    ("iam:Update*", "a release that describes a role anew, or lets another service take it on"),
    ("ec2:*LaunchTemplateVersion", "a node edit"),
    ("ec2:Modify*", "volumes that grow, endpoints whose policy changes"),
    ("ec2:Replace*", "routes and route tables that change"),
    ("ec2:AssociateAddress", "handlers of an address, also of one that a NAT gateway takes itself"),
    ("ec2:UpdateSecurityGroupRuleDescriptions*", "a rule that is described anew"),
    ("dlm:UpdateLifecyclePolicy", "snapshots that are taken more or less often"),
    ("lambda:UpdateFunctionCode", "a release with another run controller"),
    ("lambda:DeleteFunctionConcurrency", "a function that is no longer held to one call at a time"),
    ("lambda:InvokeFunction", "the custom resource that switches fast snapshot restore"),
    ("sns:SetSubscriptionAttributes", "handlers of a subscription that is there already"),
    ("*:Get*", _READ),
    ("*:List*", _READ),
    ("*:Describe*", _READ),
)
"""Patterns of actions and the reason; a test holds that nothing else is in the policy unused."""
