"""Exit codes of a pod. The job's pod failure policy maps each of them to an action.

75, 76 and 78 mean the same as for a trainer (docs/architecture.md, section 6).
Source (2026-11): https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

from __future__ import annotations

FINISHED = 0
"""The run has finished."""
FAILED_NODE = 1
"""The pod's boot, GPUs or supervisor failed. A new pod may succeed."""
RUN_FAILED = 70
"""The run has failed too often. EX_SOFTWARE from sysexits.h."""
LEFT = 75
"""This pod received SIGTERM and left the run, which another pod continues."""
SUPERSEDED = 76
"""Another job is training the run and writing its checkpoints."""
BAD_CONFIGURATION = 78
"""The pod's environment, a document, or the trainer's configuration is invalid."""
SIGTERM_WITHOUT_HANDLER = 143
"""128 + SIGTERM: the pod was terminated during its boot."""

FAIL_JOB = (RUN_FAILED, SUPERSEDED, BAD_CONFIGURATION)
"""Codes after which new pods would fail in the same way."""
IGNORE = (LEFT, SIGTERM_WITHOUT_HANDLER)
"""Codes that do not count toward the job's failure limit. A new pod continues the run."""
