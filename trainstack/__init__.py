"""The `trainstack` command: operates the training runs of an account. It uses only the caller's AWS permissions.

`account` finds deployments and reads their state from AWS, `status` and `why` derive the commands' output,
`node_events` reads the nodes' events, and `commands` defines the command line.
"""
