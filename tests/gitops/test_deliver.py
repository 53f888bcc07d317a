"""What `python -m stacks deliver` lets pass, stops and says; the account and the CDK are stood in for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stacks.__main__ import main
from stacks.delivery import actions
from stacks.delivery.bootstrap_role import AccountError
from stacks.delivery.deploy import DeployError
from stacks.delivery.review import Review, ReviewError, review

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = (str(ROOT / "config" / f"{name}.yaml") for name in ("minimal", "demo"))


@dataclass
class Account:
    """An account in which deploys would do what `codes` says, by file."""

    codes: dict[str, int]
    text: str = "words"
    deployed: list[str] = field(default_factory=list)
    asked_under: list[Mapping[str, str]] = field(default_factory=list)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    made = Account({FIRST: 0, SECOND: 0})

    def look(file: Path, *, against: str, form: str, environment: Mapping[str, str]) -> Review:
        made.asked_under.append(environment)
        return Review(file, made.codes[str(file)], f"{made.text} of {file.stem}, {form}, against {against}")

    monkeypatch.setattr(actions, "review", look)
    monkeypatch.setattr(actions, "reading_session", lambda config: f"reads {config.name}")
    monkeypatch.setattr(actions, "environment_of", lambda session: {"SESSION": session})
    monkeypatch.setattr(actions, "deploy", lambda config, file: made.deployed.append(config.name))
    return made


def test_the_gate_asks_from_its_threshold_on_for_the_worst_of_all_files(account: Account, tmp_path: Path) -> None:
    output = tmp_path / "build" / "gate"
    for codes, threshold, expected in (
        ((0, 20), "30", ["verdict=pass", "code=20"]),
        ((30, 10), "30", ["verdict=ask", "code=30"]),
        ((10, 10), "10", ["verdict=ask", "code=10"]),
        ((30, 30), "40", ["verdict=pass", "code=30"]),
    ):
        output.unlink(missing_ok=True)
        account.codes = dict(zip((FIRST, SECOND), codes, strict=True))
        assert main(["deliver", "gate", FIRST, SECOND, "--approve-from", threshold, "--output", str(output)]) == 0
        lines = output.read_text().splitlines()
        assert lines[:2] == expected
        assert lines[2].startswith("summary=") and not set(lines[2]) & set("'\"$`\\")
    assert account.deployed == []
    assert account.asked_under[0] == {"SESSION": "reads minimal"}  # not with the rights of who asks


def test_the_output_of_other_steps_is_kept(account: Account, tmp_path: Path) -> None:
    output = tmp_path / "github-output"
    output.write_text("earlier=1\n")
    assert main(["deliver", "gate", FIRST, "--output", str(output)]) == 0
    assert output.read_text().startswith("earlier=1\nverdict=pass\n")


@pytest.mark.parametrize(
    ("codes", "approved", "exit_code", "deployed"),
    [
        ((10, 20), "0", 0, ["minimal", "demo"]),
        ((0, 10), "0", 0, ["demo"]),
        ((10, 30), "0", 3, ["minimal"]),
        ((30, 10), "0", 3, []),
        ((30, 10), "30", 0, ["minimal", "demo"]),
        ((40, 10), "30", 3, []),
        ((40, 40), "40", 0, ["minimal", "demo"]),
    ],
)
def test_a_deploy_stops_at_what_nobody_agreed_to(
    account: Account,
    capsys: pytest.CaptureFixture[str],
    codes: tuple[int, int],
    approved: str,
    exit_code: int,
    deployed: list[str],
) -> None:
    account.codes = dict(zip((FIRST, SECOND), codes, strict=True))
    assert main(["deliver", "deploy", FIRST, SECOND, "--approved", approved]) == exit_code
    assert account.deployed == deployed
    assert ("a person must agree from 30 on" in capsys.readouterr().err) is (exit_code == 3)


def test_a_comment_is_found_again_by_its_first_line_and_fits(account: Account, tmp_path: Path) -> None:
    comment = tmp_path / "diff.md"
    assert main(["deliver", "diff", FIRST, SECOND, "--output", str(comment)]) == 0
    lines = comment.read_text().splitlines()
    assert lines[0] == actions.MARK
    assert lines[1:] == ["words of minimal, markdown, against deployed", "words of demo, markdown, against deployed"]
    account.text = "x" * 70_000
    assert main(["deliver", "diff", FIRST, "--against", "main", "--output", str(comment)]) == 0
    assert len(comment.read_text()) == actions.COMMENT_CHARACTERS
    assert "the rest does not fit" in comment.read_text()
    assert account.asked_under[-1] == {}  # a revision needs no account


@pytest.mark.parametrize("error", [AccountError("no role"), ReviewError("no diff"), DeployError("put back")])
def test_what_fails_is_said_in_words(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    account.codes[FIRST] = 10
    monkeypatch.setattr(actions, "deploy", fail)
    assert main(["deliver", "deploy", FIRST]) == 1
    assert capsys.readouterr().err == f"{error}\n"


def test_every_problem_of_all_files_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ROOT / "tests" / "stacks" / "wrong_configs"
    assert main(["deliver", "check", FIRST, str(wrong / "bad-name.yaml"), str(wrong / "bad-range.yaml")]) == 2
    answer = capsys.readouterr()
    assert "minimal.yaml: sound" in answer.out
    assert "bad-name.yaml: 1 problem" in answer.err and "bad-range.yaml: " in answer.err


def test_a_comparison_that_cannot_be_made_gives_its_own_words() -> None:
    wrong = ROOT / "tests" / "stacks" / "wrong_configs" / "bad-name.yaml"
    with pytest.raises(ReviewError, match="My Run"):
        review(wrong, against="HEAD", form="text", environment={})


def test_no_account_is_answered_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_MAX_ATTEMPTS", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert main(["deliver", "drift", FIRST]) == 1
    assert "minimal: AWS cannot be asked" in capsys.readouterr().err
