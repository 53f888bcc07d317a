"""Determines the permissions that FSx, Data Lifecycle Manager and Resource Groups calls require.

Source: https://docs.aws.amazon.com/service-authorization/latest/reference/ (list_amazonfsx,
list_amazondatalifecyclemanager, list_awsresourcegroups; 2026-11).
"""

from __future__ import annotations

from localcloud.api import Call
from localcloud.iam.policy import Access


def fsx_accesses(call: Call) -> list[Access]:
    """Return the actions that an FSx call requires on a file system or association and its tags."""
    p = call.parameters
    action = f"fsx:{call.operation}"
    prefix = f"arn:aws:fsx:{call.region}:{call.account}"
    if call.operation.startswith("Describe"):
        return [Access(action, "*", {})]
    if p.get("ResourceARN"):
        return [Access(action, str(p["ResourceARN"]), {})]
    system = p.get("FileSystemId")
    resources = [f"{prefix}:file-system/{system or '*'}"] if system or call.operation == "CreateFileSystem" else []
    tagged = resources[:1]
    if "DataRepositoryAssociation" in call.operation:
        tagged = [f"{prefix}:association/{system or '*'}/{p.get('AssociationId', '*')}"]
        resources += tagged
    found = [Access(action, one, {}) for one in resources or ["*"]]
    if p.get("Tags") and call.operation.startswith("Create"):
        found += [Access("fsx:TagResource", one, {}) for one in tagged]
    return found


def dlm_accesses(call: Call) -> list[Access]:
    """Return a Data Lifecycle Manager call's action on its policy, plus iam:PassRole for the execution role."""
    p = call.parameters
    action = f"dlm:{call.operation}"
    prefix = f"arn:aws:dlm:{call.region}:{call.account}:policy/"
    resource = str(p.get("ResourceArn") or (f"{prefix}{p['PolicyId']}" if p.get("PolicyId") else "*"))
    found = [Access(action, resource, {})]
    if call.operation == "CreateLifecyclePolicy" and p.get("Tags"):
        found.append(Access("dlm:TagResource", f"{prefix}*", {}))
    if p.get("ExecutionRoleArn"):
        passed = {"iam:passedtoservice": ["dlm.amazonaws.com"]}
        found.append(Access("iam:PassRole", str(p["ExecutionRoleArn"]), passed))
    return found


def resource_groups_accesses(call: Call) -> list[Access]:
    """Return the action that a Resource Groups call requires on its group."""
    p = call.parameters
    action = f"resource-groups:{call.operation}"
    named = str(p.get("Arn") or p.get("Group") or p.get("GroupName") or "")
    if not named:
        return [Access(action, "*", {})]
    arn = f"arn:aws:resource-groups:{call.region}:{call.account}:group/{named}"
    return [Access(action, named if named.startswith("arn:") else arn, {})]
