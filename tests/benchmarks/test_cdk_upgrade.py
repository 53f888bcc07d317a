"""Differences reported by the comparison of CDK releases."""

from __future__ import annotations

from typing import Any

from benchmarks.cdk_upgrade import unexpected


def changed(path: str, action: str = "changed in place") -> dict[str, Any]:
    differences = [{"path": path.split("/")}]
    kind = "AWS::Lambda::Function"
    return {"stack": "S", "logical_id": "F", "type": kind, "action": action, "differences": differences}


def diff(*resources: dict[str, Any], outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"resources": list(resources), "blockers": [], "outputs_differ": list(outputs)}


def test_reports_all_differences_except_content_hashes() -> None:
    assert unexpected(diff(changed("Code/S3Key"))) == []
    assert unexpected(diff(changed("Code/S3Key"), changed("Runtime"))) == [
        "S/F (AWS::Lambda::Function) changed in place: Runtime"
    ]
    assert unexpected(diff(changed("Code/S3Key", "replaced")))
    assert unexpected(diff(outputs=("S",))) == ["parameters or outputs of S"]
