"""The ConfigMap and the pods of a run, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bootstrap.account import Account
from tests.kubernetes.kubelet import Kubelet

LONG = {"steps": 400, "step_seconds": 0.01, "save_every": 100_000}


class Cluster:
    """The ConfigMap and the pods of one run."""

    def __init__(self, account: Account, directory: Path, code: dict[str, str]) -> None:
        self.account, self._code, self._shared = account, code, directory / "shared"
        self.documents = directory / "documents"
        for folder in (self._shared, self.documents):
            folder.mkdir()
        node = account.node(role_id="kubernetes", log_group="kubectl logs", run_parameter="run.json")
        node["supervise"]["heartbeat_timeout_seconds"] = 10  # a busy machine must not look like a lost pod
        (self.documents / "node.json").write_text(json.dumps(node))
        variables = {
            "TRAINSTACK_DOCUMENTS": str(self.documents),
            "TRAINSTACK_GRACE_SECONDS": "60",
            "STANDIN_SHARED": str(self._shared),
        }
        self.kubelet = Kubelet(directory, variables)

    def run(self, **changes: Any) -> None:
        (self.documents / "run.json").write_text(json.dumps(self.account.run(**{"code": self._code, **changes})))

    @property
    def saved_step(self) -> int:
        return int((self._shared / "checkpoint").read_text())

    def steps_done(self) -> int:
        """Return the newest step of any pod."""
        return max((each["step"] for pod in self.kubelet.pods for each in pod.trainer("step")), default=0)

    def outcome(self) -> Any:
        return self.account.control("outcome.json")
