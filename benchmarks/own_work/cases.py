"""The scripts of `python -m benchmarks.own_work`, and the lines that make them resumable.

An edit names a line of the script and the lines that replace it. nanoGPT's script is read from a clone, which is never
part of this repository. Source: https://github.com/karpathy/nanoGPT at 3adf61e (2025-11), train.py.
"""

from __future__ import annotations

import difflib
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.parity.nanogpt import copy_sources

SCRIPTS = Path(__file__).with_name("scripts")
NANOGPT = "nanoGPT"
VOCABULARY_SIZE = 65


@dataclass(frozen=True)
class Case:
    """A script.

    Attributes:
        script: name of the script.
        edits: for each line to replace, the lines that replace it.
        model: class of the model, whose batches are recorded.
        arguments: the script's arguments.
        for_cpus: further replacements that the script needs for several processes without GPUs. They are not counted.
        prepare: function that writes the script and its data to a folder; by default, the script is in `scripts/`.
    """

    script: str
    edits: dict[str, list[str]]
    model: str
    arguments: tuple[str, ...] = ()
    for_cpus: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Path, Path], None] | None = None

    def write(self, folder: Path, source: Path | None, processes: int) -> tuple[int, int]:
        """Write the edited script to a folder; return the numbers of added and of changed lines.

        Raises:
            SystemExit: The script does not have a line that an edit replaces.
        """
        if self.prepare is not None and source is not None:
            self.prepare(source, folder)
        else:
            shutil.copyfile(SCRIPTS / self.script, folder / self.script)
        path = folder / self.script
        text = path.read_text(encoding="utf-8")
        if processes > 1:
            for old, new in self.for_cpus.items():
                text = _replace(text, old, new, self.script)
        before = text
        for old, lines in self.edits.items():
            text = _replace(text, old, "\n".join(lines), self.script)
        path.write_text(text, encoding="utf-8")
        return _count(before.splitlines(), text.splitlines())


def _replace(text: str, old: str, new: str, name: str) -> str:
    lines = text.splitlines()
    if lines.count(old) != 1:
        raise SystemExit(f"{name}: must have the line {old!r} exactly once; this comparison supports another version")
    position = lines.index(old)
    return "\n".join([*lines[:position], new, *lines[position + 1 :]]) + "\n"


def _count(before: list[str], after: list[str]) -> tuple[int, int]:
    """Return the numbers of added and of changed lines."""
    added = changed = 0
    for _, first, last, new_first, new_last in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        if before[first:last] != after[new_first:new_last]:
            replaced = min(last - first, new_last - new_first)
            changed += replaced
            added += new_last - new_first - replaced
    return added, changed


def _prepare_nanogpt(source: Path, folder: Path) -> None:
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    copy_sources(source, folder)
    characters = np.minimum(np.random.default_rng(5).zipf(1.3, 20_000), VOCABULARY_SIZE) - 1
    for split in ("train", "val"):
        characters.astype(np.uint16).tofile(data / f"{split}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY_SIZE}))


_NANOGPT_SETTINGS = {
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "eval_iters": 2,
    "eval_interval": 5,
    "block_size": 32,
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "dropout": 0.1,
    "max_iters": 29,
    "lr_decay_iters": 30,
    "warmup_iters": 3,
}

CASES = {
    "HF Trainer": Case(
        script="hf_trainer.py",
        edits={
            "import torch": ["import torch", "from training.integrations.hugging_face import resume_folder"],
            "trainer.train()": ["trainer.train(resume_from_checkpoint=resume_folder(trainer))"],
        },
        model="GPT2LMHeadModel",
    ),
    "Lightning": Case(
        script="lightning_module.py",
        edits={
            "import torch": ["import torch", "from training.integrations.lightning import CheckpointCallback"],
            '        accelerator="cpu",': [
                '        accelerator="cpu",',
                "        callbacks=[CheckpointCallback(save_every=4)],",
            ],
        },
        model="Classifier",
    ),
    NANOGPT: Case(
        script="train.py",
        edits={
            "import torch": ["import torch", "from training.integrations.loop import Loop"],
            "running_mfu = -1.0": [
                "running_mfu = -1.0",
                "iter_num, X, Y, best_val_loss = (loop := Loop(model, optimizer, scaler, steps=max_iters + 1, "
                "save_every=4)).resume(iter_num, X, Y, best_val_loss)",
            ],
            "    iter_num += 1": ["    iter_num += 1", "    loop.after_step(iter_num, X, Y, best_val_loss)"],
        },
        model="GPT",
        arguments=("config/train_shakespeare_char.py", *(f"--{key}={each}" for key, each in _NANOGPT_SETTINGS.items())),
        for_cpus={
            "    init_process_group(backend=backend)": "    init_process_group(backend='gloo')",
            "    device = f'cuda:{ddp_local_rank}'": "    device = 'cpu'",
            "    torch.cuda.set_device(device)": "    ",
            "    model = DDP(model, device_ids=[ddp_local_rank])": "    model = DDP(model)",
        },
        prepare=_prepare_nanogpt,
    ),
    "CNN": Case(
        script="cnn.py",
        edits={
            "import torch": ["import torch", "from training.integrations.loop import Loop"],
            "for epoch in range(4):": [
                "loop = Loop(model, optimizer, state=[scheduler], save_every=4)",
                "for epoch in loop.epochs(4):",
            ],
            "    for images, labels in loader:": ["    for images, labels in loop.batches(loader):"],
        },
        model="Network",
    ),
}
