"""The least-privilege policy for CloudFormation's execution role, derived from the resource type schemas.

A type's schema lists the permissions that its handlers (create, read, update, delete) need. The policy contains the
permissions for the types in the project's stacks (`needed`), except permissions that no template uses (`trimmed`). It
is limited to the given deployments' resources (`scopes`). `documents` packs the policy into managed policies.
`boundary` creates the role's permissions boundary.
"""
