"""The nodes prepare raw text from the bucket, on the embedded cloud with enforced permissions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcloud.demo.driver import CDK, Demo
from localcloud.demo.watch import EventLog
from tests.localcloud.core.command_line import ROOT
from tests.training.conftest import write_text

STEPS = 40
CHANGES: dict[str, Any] = {
    "name": "prepared",
    "network": {"cidr": "127.95.0.0/16", "zones": ["a", "b"]},
}

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (ROOT / CDK).exists(), reason="node_modules is absent: npm ci"),
]


class FromRawText(Demo):
    """The demo with raw text instead of a dataset."""

    events: list[dict[str, Any]]

    def _train(self, environment: Mapping[str, str]) -> EventLog:
        log = super()._train(environment)
        self.events = log.events
        return log

    def _tokenize_options(self) -> list[str]:
        # Unused; the demo waits for the tokenization.
        return ["--output", str(self.build / "unused"), "--name", "unused", "--vocabulary-size", "300"]

    def _upload(self, environment: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        assert self.data is not None
        upload = {**environment, "S3_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"]}
        self._command("upload", ["s5cmd", "cp", f"{self.data}/", f"s3://{outputs['DatasetBucket']}/raw/text/"], upload)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    document = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text(encoding="utf-8"))
    document.update(CHANGES)
    document["training"]["dataset"] = "text"
    document["training"]["prepare"] = {
        "function": "training.data.prepare:tokenize",
        "source": "raw/text",
        "options": {"vocabulary_size": 300},
    }
    document["training"]["config"]["steps"] = STEPS
    document["training"]["config"]["model"] = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 64,
        "sequence_length": 64,
    }
    path = tmp_path / "prepared.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_one_node_prepares_the_data_for_both_without_denied_calls(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = tmp_path / "text"
    write_text(text)
    demo = FromRawText(config, tmp_path / "build", text, "none", lambda unix_seconds, source, line: None)
    report = demo.run()
    assert report["iam_denied_calls"] == []
    assert report["series"]["train"][-1]["step"] == STEPS
    prepared = [event for event in demo.events if event["event"] == "data_preparation"]
    assert [event["state"] for event in prepared].count("finished") == 1, prepared
    assert {event["state"] for event in prepared} & {"waiting", "found"}, "the other node also prepared the data"
