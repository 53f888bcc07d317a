"""Boot step: install the wheels that the image does not contain, without network access."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.documents import Bundle
from bootstrap.errors import CommandError, StepError
from bootstrap.fetch.archives import fetch_archive
from bootstrap.interpreter import environment_python, image_interpreter, wheelhouse_of

logger = logging.getLogger(__name__)

PROBE_SECONDS = 60.0
INSTALL_SECONDS = 300.0
BUNDLE_REMEDY = "run `python -m stacks bundle FILE`, and deploy again"
# Isolated (-I) from the working directory and PYTHONPATH. A venv created from another venv sees only the base Python,
# without torch, so the script lists the image's package directories.
_IMAGE = """
import json, sys
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "directories": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
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
    """Install the wheels that the image does not contain in a separate environment, by hash and offline."""

    name = "wheelhouse"
    may_be_skipped = True

    def digest(self, context: Context) -> str:
        """Return the digest of the node document, which determines the bundle and the wheelhouse."""
        return context.node.digest()

    def is_done(self, context: Context) -> bool:
        """Return True if the environment exists or there is no wheelhouse."""
        wheelhouse = wheelhouse_of(context)
        return wheelhouse is None or environment_python(context, wheelhouse).exists()

    def intent(self, context: Context) -> list[str]:
        """Describe the installation."""
        wheelhouse = wheelhouse_of(context)
        if wheelhouse is None:
            return []
        return [f"s3://{wheelhouse.bucket}/{wheelhouse.key}: install to {environment_python(context, wheelhouse)}"]

    def act(self, context: Context) -> None:
        """Download the wheelhouse, create the environment, and install the wheels."""
        wheelhouse = wheelhouse_of(context)
        if wheelhouse is None:
            return
        directory = context.layout.wheelhouse(wheelhouse.sha256)
        fetch_archive(context, wheelhouse, directory, named_by="the node bundle")
        image = _inspect_image(context)
        requirements = _requirements(context, directory, image["version"])
        python = _create_environment(context, wheelhouse, image["directories"])
        offline = ["--no-index", "--find-links", str(directory / "wheels"), "--only-binary=:all:", "--no-cache-dir"]
        hashed = [*offline, "--no-compile", "--require-hashes", "--requirement", str(requirements)]
        # Install all wheels, even if the image has the same version, so that the environment matches the lock file
        # exactly.
        _install(context, [python, str(_pip(directory) / "pip")], [*hashed, "--no-deps", "--ignore-installed"])
        # This call does not install anything: pip checks that the wheels or the image satisfy the dependencies.
        _install(context, [python, "-m", "pip"], hashed)
        of_image = directory / "image-requirements.txt"
        if (context.system.read(of_image) or "").strip():
            _install(context, [python, "-m", "pip"], [*offline, "--no-deps", "--requirement", str(of_image)])

    def verify(self, context: Context) -> None:
        """Check the version of every wheel, and check that torch is still the image's build."""
        wheelhouse = wheelhouse_of(context)
        if wheelhouse is None:
            return
        python = str(environment_python(context, wheelhouse))
        directory = context.layout.wheelhouse(wheelhouse.sha256)
        requirements = _requirements(context, directory, _inspect_image(context)["version"])
        wrong = _probe(context, [python, "-I", "-c", _VERSIONS, str(requirements)])
        if wrong:
            raise StepError(f"{python}: {wrong}", remedy="boot again; if the problem persists, report it as a bug")
        before = _probe(context, [image_interpreter(context), "-I", "-c", _TORCH])
        after = _probe(context, [python, "-I", "-c", _TORCH])
        if before != after:
            raise StepError(
                f"{python}: found torch at {after}, expected {before}",
                remedy=f"remove torch from requirements.txt and training.dependencies; {BUNDLE_REMEDY}",
            )


def _inspect_image(context: Context) -> dict[str, object]:
    command = [image_interpreter(context), "-I", "-c", _IMAGE]
    output = _probe(context, command)
    try:
        found: dict[str, object] = json.loads(output)
    except ValueError as error:
        raise StepError(
            f"{command[0]}: its output is not JSON",
            remedy="set node.python.interpreter to a Python interpreter",
            command=command,
            output_tail=output,
        ) from error
    return found


def _requirements(context: Context, directory: Path, version: object) -> Path:
    path = directory / f"requirements-{version}.txt"
    if context.system.read(path) is None:
        prefix, suffix = "requirements-", ".txt"
        names = [name for name in context.system.list_directory(directory) if name.startswith(prefix)]
        others = ", ".join(name[len(prefix) : -len(suffix)] for name in names) or "no Python"
        raise StepError(
            f"the image has Python {version}, but the wheelhouse contains wheels for {others}",
            remedy=f'add "{version}" to node.python.versions; {BUNDLE_REMEDY}',
        )
    return path


def _create_environment(context: Context, wheelhouse: Bundle, directories: object) -> str:
    """Create an empty environment on top of the image's packages, and return its interpreter."""
    environment = context.layout.environment(wheelhouse.sha256)
    # --clear: an environment without the step's marker may be incomplete.
    command = [image_interpreter(context), "-m", "venv", "--without-pip", "--clear", str(environment)]
    try:
        context.system.run(command, timeout_seconds=PROBE_SECONDS)
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"{environment}: cannot create the virtual environment",
            remedy="use an image whose interpreter has the venv module, and check the free disk space",
        ) from error
    python = str(environment_python(context, wheelhouse))
    assert isinstance(directories, list)
    lines = "".join(f"import site; site.addsitedir({each!r})\n" for each in directories)
    context.system.write_atomic(Path(_probe(context, [python, "-I", "-c", _PURELIB])) / "image.pth", lines)
    return python


def _pip(directory: Path) -> Path:
    """Return pip's wheel, which runs without installation. The image may have no pip, or only an old version."""
    found = sorted((directory / "wheels").glob("pip-*.whl"))
    if not found:
        raise StepError(f"{directory}: pip's wheel is missing", remedy=BUNDLE_REMEDY)
    return found[-1]


def _install(context: Context, pip: list[str], options: list[str]) -> None:
    command = [*pip, "--isolated", "--disable-pip-version-check", "--no-input", "install", *options]
    try:
        # Configuration files are also ignored, because they could set an index.
        output = context.system.run(
            command, timeout_seconds=INSTALL_SECONDS, environment={"PIP_CONFIG_FILE": os.devnull}
        )
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=_reason(error.output_tail) or "cannot install the wheelhouse",
            remedy=f"a package is missing from the wheelhouse, or the image has a different version: {BUNDLE_REMEDY}",
        ) from error
    logger.info("%s", output.splitlines()[-1] if output else "")


def _reason(output: str) -> str:
    """Return the error lines of pip's output."""
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    return "cannot install the wheelhouse: " + " ".join(lines) if lines else ""


def _probe(context: Context, command: list[str]) -> str:
    try:
        return context.system.run(command, timeout_seconds=PROBE_SECONDS).strip()
    except CommandError as error:
        raise StepError.from_command(
            error,
            message=f"{command[0]}: failed",
            remedy="see its output; set node.python.interpreter to a Python interpreter",
        ) from error
