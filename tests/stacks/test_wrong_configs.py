"""Wrong deployment files, one a case: a file in wrong_configs/ with the words of its answer after `# expect:`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stacks.config import load
from stacks.errors import ConfigError

from .conftest import CONFIGS, ROOT

CASES = sorted((Path(__file__).parent / "wrong_configs").glob("*.yaml"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_it_is_answered_in_words(case: Path) -> None:
    expected = [line.removeprefix("# expect: ") for line in case.read_text().splitlines() if line.startswith("# exp")]
    assert expected
    with pytest.raises(ConfigError) as caught:
        load(case)
    for words in expected:
        assert words in str(caught.value)


def test_the_bank_is_large_and_most_of_it_happened_to_somebody() -> None:
    origins = [line for case in CASES for line in case.read_text().splitlines() if line.startswith("# from: ")]
    assert len(CASES) >= 60
    assert len(origins) >= 30


@pytest.mark.parametrize("name", CONFIGS)
def test_right_ones_load(name: str) -> None:
    assert load(ROOT / "config" / f"{name}.yaml").name


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("name: x\n" + "# padding\n" * 200_000)
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        load(path)


def test_what_is_no_text_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "absent.yaml")


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    names = "abcdefghij"
    lines += [f"{new}: &{new} [{', '.join(['*' + old] * 9)}]" for old, new in zip(names, names[1:], strict=False)]
    path.write_text("\n".join(lines))
    started = time.monotonic()
    with pytest.raises(ConfigError, match="alias"):
        load(path)
    assert time.monotonic() - started < 5


def test_exponents_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    rate = "config: {optimizer: {learning_rate: 3e-4}}"
    path.write_text(f"name: x\ncapacity: {{instance_types: [g6.xlarge]}}\ntraining: {{dataset: d, {rate}}}\n")
    assert load(path).training.config.optimizer.learning_rate == 3e-4


def test_check_command_is_quick_and_needs_no_cdk() -> None:
    program = (
        "import sys\n"
        "from stacks.__main__ import main\n"
        "code = main(['check', sys.argv[1]])\n"
        "assert 'aws_cdk' not in sys.modules and 'torch' not in sys.modules\n"
        "sys.exit(code)\n"
    )

    def check(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(path)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    good = check(ROOT / "config" / "demo.yaml")
    assert good.returncode == 0, good.stderr
    assert all(line.startswith("warning: ") for line in good.stderr.splitlines())
    bad = check(CASES[0])
    assert bad.returncode == 2
    assert "remedy" not in bad.stderr
    assert bad.stderr
