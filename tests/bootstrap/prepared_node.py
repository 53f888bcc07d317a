"""A node that needs prepared data, as a process: `python -m tests.bootstrap.prepared_node ROOT INSTANCE_ID`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bootstrap.aws import Aws
from bootstrap.boot_steps.code import fetch_code
from bootstrap.boot_steps.staging import stage_dataset
from bootstrap.context import Context
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.events.log import EventLog
from bootstrap.imds import InstanceIdentity, InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.prepare.dataset import prepare_data
from bootstrap.system import System


def node_context(root: Path, instance_id: str, node: NodeDocument, run: RunDocument) -> Context:
    system, layout = System(), Layout(root)
    events = EventLog(system, layout.events)
    events.set_instance(instance_id)
    context = Context(system, layout, node, Aws(node.region), InstanceMetadata(system), events)
    context.run = run
    context.identity = InstanceIdentity(instance_id, "c7i.large", "us-east-1a", "127.0.0.1", "on-demand", None)
    return context


def main(root: Path, instance_id: str) -> None:
    node = NodeDocument.from_json(json.loads((root / "node.json").read_text()))
    run = RunDocument.from_json(json.loads((root / "run.json").read_text()))
    context = node_context(root, instance_id, node, run)
    fetch_code(context, run)
    stage_dataset(context, run, prepare_data(context, run, lambda: False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
