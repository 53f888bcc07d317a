"""What calls to FSx, Data Lifecycle Manager and Resource Groups need.

Source: https://docs.aws.amazon.com/service-authorization/latest/reference/ (list_amazonfsx,
list_amazondatalifecyclemanager, list_awsresourcegroups; 2026-11).
"""

from __future__ import annotations

from localcloud.api import Call
from localcloud.iam.policy import Access


def fsx_accesses(call: Call) -> list[Access]:
    """Return what an FSx call needs: the file system or association that it names or makes, and the tags it sets."""
    p = call.parameters
    action = f"fsx:{call.operation}"
    prefix = f"arn:aws:fsx:{call.region}:{call.account}"
    if call.operation.startswith("Describe"):
        return [Access(action, "*", {})]
    if p.get("ResourceARN"):
        return [Access(action, str(p["ResourceARN"]), {})]
    system = p.get("FileSystemId")
    resources = [f"{prefix}:file-system/{system or '*'}"] if system or call.operation == "CreateFileSystem" else []
    made = resources[:1]
    if "DataRepositoryAssociation" in call.operation:
        made = [f"{prefix}:association/{system or '*'}/{p.get('AssociationId', '*')}"]
        resources += made
    found = [Access(action, one, {}) for one in resources or ["*"]]
    if p.get("Tags") and call.operation.startswith("Create"):
        found += [Access("fsx:TagResource", one, {}) for one in made]
    return found


def dlm_accesses(call: Call) -> list[Access]:
    """Return what a lifecycle manager call needs: its policy, and the right to pass the role that snapshots."""
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
    """Return what a Resource Groups call needs: the group that it names."""
    p = call.parameters
    action = f"resource-groups:{call.operation}"
    named = str(p.get("Arn") or p.get("Group") or p.get("GroupName") or "")
    if not named:
        return [Access(action, "*", {})]
    arn = f"arn:aws:resource-groups:{call.region}:{call.account}:group/{named}"
    return [Access(action, named if named.startswith("arn:") else arn, {})]
