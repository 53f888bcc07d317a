"""Everything that is installed has a hash: Python packages, npm packages, and the actions of workflows."""

from __future__ import annotations

import json
import re

import pytest

from .import_graph import ROOT

INSTALLED = (
    "requirements.lock", "requirements-cpu.lock", "requirements-cuda.lock", "policy/requirements-checkov.lock",
    "policy/requirements-image.lock", "policy/requirements-kubernetes.lock", "policy/requirements-parity.lock",
    "policy/requirements-trackers.lock", "policy/requirements-parallelcluster.lock",
    "policy/requirements-lock.txt", "policy/requirements-proselint.txt", "policy/requirements-reference.txt",
)  # fmt: skip
LOCKED = tuple(name for name in INSTALLED if name.endswith(".lock") and name != "requirements-cpu.lock")
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(text: str) -> dict[str, str]:
    """Return the version of each requirement, by normalized name."""
    found = (PIN.match(line) for line in text.splitlines())
    return {re.sub(r"[-_.]+", "-", one[1]).lower(): one[2] for one in found if one}


@pytest.mark.parametrize("name", INSTALLED)
def test_each_requirement_has_a_version_and_hashes(name: str) -> None:
    text = re.sub(r"\\\n\s*", "", (ROOT / name).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if not PIN.match(line) or not HASH.search(line)] == []


@pytest.mark.parametrize("name", LOCKED)
def test_lock_has_the_versions_of_its_list(name: str) -> None:
    listed, locked = (pins((ROOT / path).read_text()) for path in (name.replace(".lock", ".txt"), name))
    assert {key: locked.get(key) for key in listed} == listed, "run `make lock`"


def test_builds_of_torch_have_one_version() -> None:
    locks = [pins((ROOT / name).read_text())["torch"] for name in ("requirements.lock", "requirements-cpu.lock")]
    assert [each.partition("+")[0] for each in locks] == [locks[0]] * 2


def test_make_installs_only_files_with_hashes() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert "--require-hashes --no-deps" in next(line for line in text.splitlines() if line.startswith("PIP := "))
    commands = [line.strip() for line in text.splitlines() if re.search(r"pip install|\$\(PIP\)", line)]
    project = [line for line in commands if "--editable ." in line]
    assert len(project) == 1 and "--no-deps --no-build-isolation" in project[0]
    others = [line for line in commands if line not in project and not line.startswith(("PIP :=", "LOCK :="))]
    assert others and all("-m $(PIP) " in line and "--requirement " in line for line in others)
    installed = {word for line in others for word in line.split() if word.endswith((".lock", ".txt"))}
    assert installed <= set(INSTALLED)
    assert re.findall(r"(?:^\t|; |\|\| )npm (\w+)", text, re.MULTILINE) == ["ci"]


def test_npm_packages_have_hashes() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    without = [name for name, one in packages.items() if name and not one.get("integrity", "").startswith("sha512-")]
    assert packages and without == []


def test_workflows_install_with_make_and_pin_actions() -> None:
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(pip3?|npm|npx|pipx|uv|curl|wget)\b", text), path.name
        actions = re.findall(r"uses: (\S+)", text)
        assert actions and all(re.search(r"@[0-9a-f]{40}$", one) for one in actions), path.name
