"""The wheelhouse: wheels that a node's Python needs besides what the image brings, chosen here, installed there.

`stacks.bundles` ships the project's own code; this package ships other people's: `python -m stacks bundle FILE`.
"""

LOCK_NAME = "wheelhouse.lock.json"
"""Name of the file beside the deployment files that says which wheels their nodes get."""
