"""Boot step: the wheels that the image lacks, installed without a network beside what it has."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from bootstrap.documents import Bundle
from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.archives import fetch_archive
from bootstrap.steps.interpreter import environment_python, image_interpreter, wheelhouse_of

logger = logging.getLogger(__name__)

PROBE_SECONDS = 60.0
INSTALL_SECONDS = 300.0
BUNDLE_REMEDY = "`python -m stacks bundle FILE`, and deploy again"
# Isolated (-I), so that neither the working directory nor PYTHONPATH counts. What a venv of a venv would see is the
# Python behind both, without torch: therefore the image's own folders of packages are named.
_IMAGE = """
import json, sys
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "folders": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
}))
"""
_PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"
_TORCH = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else 'none')"
_VERSIONS = """
import importlib.metadata as m, sys
wrong = []
for line in open(sys.argv[1]):
    name, _, version = line.split()[0].partition("==")
    try:
        found = m.version(name)
    except m.PackageNotFoundError:
        found = "nothing"
    if found != version:
        wrong.append("%s: %s is installed, not %s" % (name, found, version))
print("; ".join(wrong))
"""


class Wheelhouse(Step):
    """Install the wheels that the image lacks into an environment of their own, by hash, without a network."""

    name = "wheelhouse"
    may_be_skipped = True

    def digest(self, context: Context) -> str:
        """Return the digest of the node document, whose bundle names the wheelhouse."""
        return context.node.digest()

    def look(self, context: Context) -> bool:
        """Return whether the environment is there; without a wheelhouse there is nothing to look for."""
        wheelhouse = wheelhouse_of(context)
        return wheelhouse is None or environment_python(context, wheelhouse).exists()

    def intent(self, context: Context) -> list[str]:
        """Say which wheelhouse would be installed."""
        wheelhouse = wheelhouse_of(context)
        if wheelhouse is None:
            return []
        return [f"s3://{wheelhouse.bucket}/{wheelhouse.key}: installed to {environment_python(context, wheelhouse)}"]

    def act(self, context: Context) -> None:
        """Fetch, make the environment, install."""
        wheelhouse = wheelhouse_of(context)
        if wheelhouse is None:
            return
        folder = context.layout.wheelhouse(wheelhouse.sha256)
        fetch_archive(context, wheelhouse, folder, named_by="the node bundle")
        image = _ask_image(context)
        requirements = _requirements(context, folder, image["version"])
        python = _make_environment(context, wheelhouse, image["folders"])
        offline = ["--no-index", "--find-links", str(folder / "wheels"), "--only-binary=:all:", "--no-cache-dir"]
        hashed = [*offline, "--no-compile", "--require-hashes", "--requirement", str(requirements)]
        # All of them, also what the image has in the same version: what is installed is what was locked.
        _install(context, [python, str(_pip(folder) / "pip")], [*hashed, "--no-deps", "--ignore-installed"])
        # Installs nothing: whatever the wheels require must be there now, among them or in the image.
        _install(context, [python, "-m", "pip"], hashed)
        of_image = folder / "image-requirements.txt"
        if (context.system.read(of_image) or "").strip():
            _install(context, [python, "-m", "pip"], [*offline, "--no-deps", "--requirement", str(of_image)])

    def verify(self, context: Context) -> None:
        """Every wheel is there in its version, and torch is the image's still."""
        wheelhouse = wheelhouse_of(context)
        if wheelhouse is None:
            return
        python = str(environment_python(context, wheelhouse))
        folder = context.layout.wheelhouse(wheelhouse.sha256)
        requirements = _requirements(context, folder, _ask_image(context)["version"])
        wrong = _probe(context, [python, "-I", "-c", _VERSIONS, str(requirements)])
        if wrong:
            raise StepError(f"{python}: {wrong}", remedy="boot again; if it stays so, this is a defect: report it")
        before = _probe(context, [image_interpreter(context), "-I", "-c", _TORCH])
        after = _probe(context, [python, "-I", "-c", _TORCH])
        if before != after:
            raise StepError(
                f"{python}: torch is {after}, the image's is {before}",
                remedy=f"leave torch out of requirements.txt and training.dependencies; {BUNDLE_REMEDY}",
            )


def _ask_image(context: Context) -> dict[str, object]:
    command = [image_interpreter(context), "-I", "-c", _IMAGE]
    answer = _probe(context, command)
    try:
        found: dict[str, object] = json.loads(answer)
    except ValueError as error:
        raise StepError(
            f"{command[0]}: answered with something else than JSON",
            remedy="give a Python 3 interpreter as node.python.interpreter",
            command=command,
            output_tail=answer,
        ) from error
    return found


def _requirements(context: Context, folder: Path, version: object) -> Path:
    path = folder / f"requirements-{version}.txt"
    if context.system.read(path) is None:
        prefix, suffix = "requirements-", ".txt"
        names = [name for name in context.system.list_directory(folder) if name.startswith(prefix)]
        others = ", ".join(name[len(prefix) : -len(suffix)] for name in names) or "no Python"
        raise StepError(
            f"the image's Python is {version}, and the wheelhouse has wheels for {others}",
            remedy=f'add "{version}" to node.python.versions; {BUNDLE_REMEDY}',
        )
    return path


def _make_environment(context: Context, wheelhouse: Bundle, folders: object) -> str:
    """Make an empty environment that sees the image's packages behind its own; return its interpreter."""
    environment = context.layout.environment(wheelhouse.sha256)
    # Cleared, because one that is there without the step's marker was left half made.
    command = [image_interpreter(context), "-m", "venv", "--without-pip", "--clear", str(environment)]
    try:
        context.system.run(command, timeout_seconds=PROBE_SECONDS)
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"{environment}: the environment cannot be made",
            remedy="use an image whose interpreter has the module venv, and room on its disk",
        ) from error
    python = str(environment_python(context, wheelhouse))
    assert isinstance(folders, list)
    lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)
    context.system.write_atomic(Path(_probe(context, [python, "-I", "-c", _PURELIB])) / "image.pth", lines)
    return python


def _pip(folder: Path) -> Path:
    """Return the wheelhouse's own pip, which runs as it is packed: the image may have none, or an old one."""
    found = sorted((folder / "wheels").glob("pip-*.whl"))
    if not found:
        raise StepError(f"{folder}: has no wheel of pip", remedy=BUNDLE_REMEDY)
    return found[-1]


def _install(context: Context, pip: list[str], options: list[str]) -> None:
    command = [*pip, "--isolated", "--disable-pip-version-check", "--no-input", "install", *options]
    try:
        # No file of settings either, which could name an index.
        written = context.system.run(
            command, timeout_seconds=INSTALL_SECONDS, environment={"PIP_CONFIG_FILE": os.devnull}
        )
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=_reason(error.output_tail) or "the wheelhouse cannot be installed",
            remedy=f"what pip misses is not in the wheelhouse, or the image's is another version: {BUNDLE_REMEDY}",
        ) from error
    logger.info("%s", written.splitlines()[-1] if written else "")


def _reason(output: str) -> str:
    """Return what pip says of the failure: its errors, without what it says of other things."""
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    return "the wheelhouse cannot be installed: " + " ".join(lines) if lines else ""


def _probe(context: Context, command: list[str]) -> str:
    try:
        return context.system.run(command, timeout_seconds=PROBE_SECONDS).strip()
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"{command[0]}: does not run",
            remedy="see the last lines of its output; give a Python 3 interpreter as node.python.interpreter",
        ) from error
