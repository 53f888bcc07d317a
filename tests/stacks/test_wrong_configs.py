"""Invalid deployment files: one per case in wrong_configs/, with parts of the expected message after `# expect:`."""

from __future__ import annotations

import ast
import contextlib
import inspect
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stacks.errors import ConfigError
from stacks.loading import load, read
from stacks.loading.resolution import resolve
from stacks.validators import RULES

from .conftest import CONFIGS, ROOT

CASES = sorted((Path(__file__).parent / "wrong_configs").glob("*.yaml"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_reports_each_problem(case: Path) -> None:
    expected = [line.removeprefix("# expect: ") for line in case.read_text().splitlines() if line.startswith("# exp")]
    assert expected
    with pytest.raises(ConfigError) as caught:
        load(case)
    for part in expected:
        assert part in str(caught.value)


def test_each_rule_rejects_a_case() -> None:
    configs = []
    for case in CASES:
        with contextlib.suppress(ConfigError):  # wrong keys or types
            configs.append(resolve(read(case), case)[0])
    rejecting = {rule for rule in RULES if any(one.severity == "error" for config in configs for one in rule(config))}
    untested = {rule.__name__ for rule in RULES if _rejects(rule)} - {rule.__name__ for rule in rejecting}
    assert untested <= {"ebs_optimized"}, "no type of the catalogue violates that one"


def _rejects(rule: Callable[..., object]) -> bool:
    """True unless each problem that a rule reports is a warning."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(rule))) if isinstance(node, ast.Call)]
    problems = [ast.unparse(call) for call in calls if ast.unparse(call.func) == "Problem"]
    return not problems or any("'warning'" not in problem for problem in problems)


def test_spread_placement_allows_7_nodes_per_zone(tmp_path: Path) -> None:
    text = (Path(__file__).parent / "wrong_configs" / "spread-too-many-nodes.yaml").read_text()
    path = tmp_path / "x.yaml"
    path.write_text(text.replace("nodes: 15", "nodes: 14"))
    assert load(path).capacity.nodes == 14


@pytest.mark.parametrize("name", CONFIGS)
def test_examples_load(name: str) -> None:
    assert load(ROOT / "config" / f"{name}.yaml").name


def test_rejects_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("name: x\n" + "# padding\n" * 200_000)
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        load(path)


def test_rejects_binary_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="must be UTF-8 text"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "absent.yaml")


def test_rejects_aliases(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    names = "abcdefghij"
    lines += [f"{new}: &{new} [{', '.join(['*' + old] * 9)}]" for old, new in zip(names, names[1:], strict=False)]
    path.write_text("\n".join(lines))
    started = time.monotonic()
    with pytest.raises(ConfigError, match="alias"):
        load(path)
    assert time.monotonic() - started < 5


def test_exponents_without_a_dot_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    rate = "config: {optimizer: {learning_rate: 3e-4}}"
    path.write_text(f"name: x\ncapacity: {{instance_types: [g6.xlarge]}}\ntraining: {{dataset: d, {rate}}}\n")
    assert load(path).training.config.optimizer.learning_rate == 3e-4


def test_check_command_imports_neither_cdk_nor_torch() -> None:
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
