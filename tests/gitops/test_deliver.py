"""`python -m stacks deliver` with a fake account and a fake CDK: gate, deploy, comment and error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stacks.__main__ import main
from stacks.delivery import actions
from stacks.delivery.review import Review, ReviewError, review
from stacks.delivery.sessions import AccountError
from stacks.errors import DeployError

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = (str(ROOT / "config" / f"{name}.yaml") for name in ("minimal", "demo"))


@dataclass
class Account:
    """A fake account. `codes` are the exit codes of the reviews by file."""

    codes: dict[str, int]
    text: str = "review"
    deployed: list[str] = field(default_factory=list)
    templates: Path | None = None
    stack: str | None = None
    asked_under: list[Mapping[str, str]] = field(default_factory=list)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    made = Account({FIRST: 0, SECOND: 0})

    def look(
        file: Path,
        *,
        against: str,
        form: str,
        environment: Mapping[str, str],
        templates: Path | None,
        stack: str | None,
    ) -> Review:
        made.templates, made.stack = templates, stack
        made.asked_under.append(environment)
        return Review(file, made.codes[str(file)], f"{made.text} of {file.stem}, {form}, against {against}")

    monkeypatch.setattr(actions, "review", look)
    monkeypatch.setattr(actions, "lookup_session", lambda config: f"reads {config.name}")
    monkeypatch.setattr(actions, "environment_of", lambda session: {"SESSION": session})
    monkeypatch.setattr(actions, "deploy", lambda config, file: made.deployed.append(config.name))
    return made


def test_gate_compares_the_highest_code_of_all_files_with_its_threshold(account: Account, tmp_path: Path) -> None:
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
    assert account.asked_under[0] == {"SESSION": "reads minimal"}  # not with the credentials of the caller


def test_gate_judges_templates_without_the_code_next_to_them(account: Account, tmp_path: Path) -> None:
    output = tmp_path / "gate"
    arguments = ["--templates", str(tmp_path), "--output", str(output)]
    assert main(["deliver", "gate", FIRST, *arguments]) == 0
    assert (account.templates, account.stack) == (tmp_path / "minimal.yaml", None)
    assert main(["deliver", "gate", FIRST, *arguments, "--stack", "PipelineStack"]) == 0
    assert account.stack == "PipelineStack"
    newer = tmp_path / "newer.yaml"
    newer.write_text(Path(FIRST).read_text() + "a_key_of_a_later_revision: 1\n")
    assert main(["deliver", "gate", str(newer), *arguments]) == 0
    assert output.read_text().splitlines()[-3:-1] == ["verdict=ask", "code=40"]
    assert main(["deliver", "gate", str(newer)]) == 2


def test_gate_appends_to_the_output_file(account: Account, tmp_path: Path) -> None:
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
def test_deploy_stops_at_an_unapproved_code(
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
    assert ("codes 30 and above need approval" in capsys.readouterr().err) is (exit_code == 3)


def test_comment_starts_with_its_mark_and_fits(account: Account, tmp_path: Path) -> None:
    comment = tmp_path / "diff.md"
    assert main(["deliver", "diff", FIRST, SECOND, "--output", str(comment)]) == 0
    lines = comment.read_text().splitlines()
    assert lines[0] == actions.MARK
    assert lines[1:] == ["review of minimal, markdown, against deployed", "review of demo, markdown, against deployed"]
    account.text = "x" * 70_000
    assert main(["deliver", "diff", FIRST, "--against", "main", "--output", str(comment)]) == 0
    assert len(comment.read_text()) == actions.COMMENT_CHARACTERS
    assert "truncated to fit in a comment" in comment.read_text()
    assert account.asked_under[-1] == {}  # a revision needs no account


@pytest.mark.parametrize("error", [AccountError("no role"), ReviewError("no diff"), DeployError("rolled back")])
def test_failures_print_their_message(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    account.codes[FIRST] = 10
    monkeypatch.setattr(actions, "deploy", fail)
    assert main(["deliver", "deploy", FIRST]) == 1
    assert capsys.readouterr().err == f"{error}\n"


def test_check_reports_the_problems_of_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ROOT / "tests" / "stacks" / "wrong_configs"
    assert main(["deliver", "check", FIRST, str(wrong / "invalid-name.yaml"), str(wrong / "invalid-cidr.yaml")]) == 2
    printed = capsys.readouterr()
    assert "minimal.yaml: valid" in printed.out
    assert "invalid-name.yaml: 1 problem" in printed.err and "invalid-cidr.yaml: " in printed.err


def test_failed_review_raises_with_its_message() -> None:
    wrong = ROOT / "tests" / "stacks" / "wrong_configs" / "invalid-name.yaml"
    with pytest.raises(ReviewError, match="My Run"):
        review(wrong, against="HEAD", form="text", environment={})


def test_unreachable_account_prints_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_MAX_ATTEMPTS", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert main(["deliver", "drift", FIRST]) == 1
    assert "minimal: cannot call AWS" in capsys.readouterr().err
