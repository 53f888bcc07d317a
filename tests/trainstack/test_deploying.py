"""`init`, and the order and the prompts of `up` and `down`, without the programs that they start."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.policy import ControllerState
from stacks.loading import load
from tests.trainstack.test_status import RUN, status
from trainstack import programs
from trainstack.commands import main
from trainstack.operate import deploying, new_file, waiting

VALUES = {"--instance-type": "g6.2xlarge", "--nodes": "2", "--market": "on_demand", "--preset": "llama-160m"}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_init_writes_a_commented_file_that_check_accepts(tmp_path: Path) -> None:
    file = tmp_path / "config" / "my first run.yaml"
    assert call("init", str(file), *(part for pair in VALUES.items() for part in pair)) == 0
    config = load(file)
    assert (config.name, config.capacity.nodes, config.capacity.market) == ("my-first-run", 2, "on_demand")
    assert list(config.capacity.instance_types) == ["g6.2xlarge"]
    text = file.read_text()
    assert max(map(len, text.splitlines())) <= 120
    lines = text.splitlines()
    for key in ("name", "region", "instance_types", "nodes", "market", "deletion", "run", "dataset", "steps"):
        (number,) = (index for index, line in enumerate(lines) if line.strip().startswith(f"{key}: "))
        assert lines[number - 1].strip().startswith("# "), key
    schema = file.parent / text.splitlines()[0].partition("$schema=")[2]
    assert schema.resolve() == new_file.SCHEMA and new_file.SCHEMA.exists()


def test_init_keeps_an_existing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("mine")
    assert call("init", str(file)) == 2
    assert file.read_text() == "mine" and "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--nodes", "0", "capacity.nodes"),
        ("--instance-type", "zz.large", "is not in the catalogue"),
        ("--market", "cheap", "capacity.market"),
        ("--preset", "gpt9}\nname: other", "training.config.model.preset"),
        ("--name", "a\nregion: eu-west-1", "name"),
        ("--region", "nowhere", "region"),
        ("--batch", "0", "global_batch_size"),
    ],
)
def test_init_does_not_write_an_invalid_file(
    tmp_path: Path, option: str, value: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    assert call("init", str(file), option, value) == 2
    errors = capsys.readouterr().err
    assert text in errors and "Traceback" not in errors
    assert not file.exists()


def test_init_asks_for_what_no_option_sets(tmp_path: Path) -> None:
    answers = {"Instance types": "g6.xlarge, g6.2xlarge", "Number": "3", "Name": "web", "Optimizer": ""}
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return next((answer for start, answer in answers.items() if question.startswith(start)), "")

    config = new_file.write(tmp_path / "a.yaml", {"name": "a", "region": "us-west-2"}, ask)
    assert len(asked) == len(new_file.QUESTIONS) - 1 and not any("region" in each for each in asked)
    assert (config.region, config.capacity.nodes, config.training.dataset) == ("us-west-2", 3, "web")
    assert list(config.capacity.instance_types) == ["g6.xlarge", "g6.2xlarge"]
    assert config.training.config.steps == 20000


@pytest.mark.parametrize(
    ("name", "expected"), [("A b.yaml", "a-b"), ("7b.yaml", "run-7b"), (f"{'x' * 40}.yaml", "x" * 24)]
)
def test_names_are_derived_from_files(name: str, expected: str) -> None:
    assert new_file.name_of(Path(name)) == expected


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    new_file.write(path, {"name": "demo"}, None)
    return path


class Programs:
    """Records the programs that a command starts. The review ends with `code`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
        self.started: list[list[str]] = []
        self._code = code
        monkeypatch.setattr(deploying.programs, "run", self.run)
        monkeypatch.setattr(deploying, "observing", lambda region: SimpleNamespace(client=None))
        monkeypatch.setattr(deploying.account, "find", lambda client, name: None)
        monkeypatch.setattr(deploying, "status_of", lambda *_: SimpleNamespace(desired="stopped"))
        monkeypatch.setattr(deploying.desired, "forget", lambda client, name: self.started.append(["forget", name]))
        monkeypatch.setattr(deploying.account, "slots", lambda client, name: [])  # test_running.py covers slots
        monkeypatch.setattr(deploying, "_report", lambda status, *, as_json: None)

    def run(self, command: list[str], what: str) -> int:
        self.started.append(command[3:])
        return self._code if command[3] == "diff" else 0

    @property
    def verbs(self) -> list[str]:
        return [each[0] for each in self.started]


@pytest.mark.parametrize(
    ("code", "options", "deploys"),
    [
        (0, [], None),
        (10, [], True),
        (20, [], False),
        (20, ["--approved", "20"], True),
        (30, ["--approved", "20"], False),
        (30, ["--approved", "30"], True),
        (40, ["--approved", "30"], False),
    ],
)
def test_up_deploys_only_what_is_approved(
    file: Path, monkeypatch: pytest.MonkeyPatch, code: int, options: list[str], deploys: bool | None
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    started = Programs(monkeypatch, code)
    ended = call("up", str(file), *options)
    expected = ["bundle", "diff", "deploy"] if deploys else ["bundle", "diff"]
    assert (started.verbs, ended) == (expected, 4 if deploys is False else 0)
    if deploys:
        assert started.started[-1] == ["deploy", str(file), "--yes"]


@pytest.mark.parametrize("answer", ["y", "no", ""])
def test_up_asks_on_a_terminal(file: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    started = Programs(monkeypatch, 30)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    ended = call("up", str(file), "TrainingStack")
    assert ended == (0 if answer == "y" else 4)
    assert ("deploy" in started.verbs) == (answer == "y")


@pytest.mark.parametrize("code", [1, 2, 3])
def test_up_ends_if_the_review_fails(file: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    started = Programs(monkeypatch, code)
    assert call("up", str(file), "--approved", "40") == (2 if code == 2 else 1)
    assert started.verbs == ["bundle", "diff"]


def test_up_builds_the_locked_wheels(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Programs(monkeypatch, 3)
    file.with_name("wheelhouse.lock.json").write_text("{}")
    call("up", str(file))
    assert started.started[0] == ["bundle", str(file), "--locked"]


def test_an_invalid_file_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Programs(monkeypatch)
    path = tmp_path / "a.yaml"
    path.write_text("name: 3\n")
    assert (call("up", str(path)), call("down", str(path), "--yes")) == (2, 2)
    assert started.started == []


@pytest.mark.parametrize(
    ("deletion", "options", "code", "arguments"),
    [
        ("retain", [], 4, None),
        ("retain", ["--yes"], 0, ["--force"]),
        ("retain", ["--yes", "--data", "--allow-destroy"], 4, None),
        ("destroy", ["--yes", "--data"], 4, None),
        ("destroy", ["--data", "--allow-destroy"], 4, None),
        (
            "destroy",
            ["--yes", "--data", "--allow-destroy"],
            0,
            ["--force", "--data", "--context", "allow-destroy=true"],
        ),
    ],
)
def test_down_deletes_data_only_with_both_keys(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    deletion: str,
    options: list[str],
    code: int,
    arguments: list[str] | None,
) -> None:
    document = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**document, "storage": {"deletion": deletion}}))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    started = Programs(monkeypatch)
    assert call("down", str(file), *options) == code
    assert started.started == ([] if arguments is None else [["destroy", str(file), *arguments], ["forget", "demo"]])


@pytest.mark.parametrize(
    ("phase", "cause", "code", "text"),
    [
        ("ended", Cause.FINISHED, 0, ""),
        ("ended", Cause.TRAINING_FAILED, 1, "the run failed"),
        ("limited", Cause.SPEND_LIMIT, 1, "limits.usd is 10"),
    ],
)
def test_up_follows_until_the_run_ends_or_reaches_a_limit(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    phase: str,
    cause: Cause,
    code: int,
    text: str,
) -> None:
    """At a limit, the command waits until the nodes have saved."""
    report = deploying._report
    Programs(monkeypatch)
    reason = "saved and stopped: limits.usd is 10"
    last = status(controller=ControllerState(run_digest=RUN.digest(), phase=phase, cause=cause, reason=reason))
    if phase == "limited":
        statuses = iter([status(), status(), last, dataclasses.replace(last, nodes=())])
    else:
        statuses = iter([status(), status(), last])
    monkeypatch.setattr(deploying, "status_of", lambda *_: next(statuses))
    monkeypatch.setattr(deploying, "_report", report)
    monkeypatch.setattr(waiting.wait, "__kwdefaults__", {"sleep": lambda seconds: None, "clock": lambda: 0.0})
    assert call("up", str(file)) == code
    assert text in capsys.readouterr().err
    assert list(statuses) == []


def test_a_silent_program_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(programs, "SILENT_SECONDS", 0.01)
    wait = "import sys; sys.stdin.read(); print('ready', flush=True); import time; time.sleep(0.5); sys.exit(3)"
    assert programs.run([sys.executable, "-c", wait], "deploying") == 3
    errors = capsys.readouterr().err
    assert "ready\n" in errors and "deploying ... (" in errors
