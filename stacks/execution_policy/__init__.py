"""What CloudFormation's execution role may do in place of everything: written from the schemas of the resource types.

The handlers that make, change, read and delete a resource name in its schema the permissions they need. Those of the
types that the project's stacks hold, less what their templates never ask for (`trimmed`), kept to the resources of the
deployments named (`scopes`), are the policy; `documents` writes it as IAM takes it.
"""
