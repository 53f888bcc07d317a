"""The changes that the review recognizes, by resource type.

A type or property that is not in the tables needs approval. A property's rule also covers all properties below it,
unless the table contains a longer path. List positions are not part of a path.
"""

from __future__ import annotations

from collections.abc import Mapping

from stacks.changes.approvals.known import Known
from stacks.changes.approvals.tables_access import ACCESS
from stacks.changes.approvals.tables_monitoring import MONITORING
from stacks.changes.approvals.tables_network import NETWORK
from stacks.changes.approvals.tables_nodes import NODES
from stacks.changes.approvals.tables_storage import STORAGE

KNOWN: Mapping[str, Known] = {**ACCESS, **NETWORK, **STORAGE, **NODES, **MONITORING}
"""Recognized changes, by resource type."""
DELETION = ("DeletionPolicy", "UpdateReplacePolicy")
"""Attributes that determine what remains of a deleted resource. For stateful types, the data findings cover them."""
METADATA = ("aws:cdk:", "aws:asset:", "cdk_nag", "cfn-lint", "cfn_nag", "checkov", "BuildMethod")
"""Prefixes of metadata keys that only the CDK and policy checkers read."""
