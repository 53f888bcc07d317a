"""What counts as more than the hash of a provided function, when the CDK is upgraded."""

from __future__ import annotations

from typing import Any

from benchmarks.cdk_upgrade import unexpected


def changed(path: str, action: str = "changed in place") -> dict[str, Any]:
    differences = [{"path": path.split("/")}]
    kind = "AWS::Lambda::Function"
    return {"stack": "S", "logical_id": "F", "type": kind, "action": action, "differences": differences}


def told(*resources: dict[str, Any], outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"resources": list(resources), "would_be_refused": [], "outputs_differ": list(outputs)}


def test_hashes_pass_and_all_else_is_named() -> None:
    assert unexpected(told(changed("Code/S3Key"))) == []
    assert unexpected(told(changed("Code/S3Key"), changed("Runtime"))) == [
        "S/F (AWS::Lambda::Function) changed in place: Runtime"
    ]
    assert unexpected(told(changed("Code/S3Key", "replaced")))
    assert unexpected(told(outputs=("S",))) == ["parameters or outputs of S"]
