"""The changes that the review understands, by resource type.

A property that is not in the tables needs approval, as does a type. The rules of a property also cover everything below
it, unless the table contains a longer path. List positions are not part of a path.
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
"""Resource attributes that decide what remains of a resource. The findings about data cover them for stateful types."""
METADATA = ("aws:cdk:", "aws:asset:", "cdk_nag", "cfn-lint", "cfn_nag", "checkov", "BuildMethod")
"""Prefixes of metadata keys that only the CDK and policy checkers read."""
