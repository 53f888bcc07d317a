"""The commands `image lock`, `image build` and `image lint`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainstack.operate.deploying import load
from trainstack.session import FAILED, INVALID, CommandError, Json

if TYPE_CHECKING:  # importing the configuration would double the start of commands such as `status`
    from trainstack.image.recipe import Recipe

FOLDER = Path("build/image")
File = Annotated[Path, typer.Argument(help="Deployment file with the section image.")]


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    group = typer.Typer(help="Make a container image for a deployment file.", no_args_is_help=True)
    for name, command in (("lock", lock), ("build", build), ("lint", lint)):
        group.command(name)(command)
    app.add_typer(group, name="image", rich_help_panel="Programs")


def lock(
    file: File,
    base: Annotated[
        str, typer.Option(metavar="NAME@DIGEST", help="Base with its digest; default: looked up for image.base.")
    ] = "",
) -> None:
    """Pin the digest of the base image and the wheels in image.lock.json next to the file; commit it."""
    from trainstack.image.builder import DIGEST, find_builder
    from trainstack.image.lock import LOCK_NAME, make_lock, section_of, write_lock

    config = load(file, warn=False)
    section = section_of(config, file)
    name = section.base.partition("@")[0]
    if base and (base.partition("@")[0] != name or not DIGEST.match(base.partition("@")[2])):
        raise CommandError(INVALID, f"--base: {base!r}: must be {name}@sha256:DIGEST; correct it")
    pinned = base or (section.base if "@" in section.base else f"{name}@{find_builder().digest(section.base)}")
    made = make_lock(config, section, pinned)
    changed = write_lock(file, made)
    print(f"{file.with_name(LOCK_NAME)}: {'written; commit it' if changed else 'unchanged'}")
    print(f"base {pinned}, {len(made.wheels)} wheels for Python {section.python}")


def build(
    file: File,
    target: Annotated[
        str, typer.Option(help="environment: base, wheels and node program; run: also the trainer and your code.")
    ] = "environment",
    pip_config: Annotated[
        Path | None, typer.Option(help="pip's configuration for the build, such as an index; not part of the image.")
    ] = None,
    push: Annotated[bool, typer.Option("--push", help="Push the image to image.repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the Dockerfile and the commands.")] = False,
    as_json: Json = False,
) -> None:
    """Build the locked image with docker buildx or buildah. Equal inputs make an image with an equal digest."""
    from trainstack.image.builder import Build, Builder, find_builder
    from trainstack.image.lock import section_of
    from trainstack.image.recipe import TARGETS, recipe_of

    if target not in TARGETS:
        raise CommandError(INVALID, f"--target: {target!r}: must be {' or '.join(TARGETS)}; correct it")
    if pip_config is not None and not pip_config.is_file():
        raise CommandError(INVALID, f"--pip-config: {str(pip_config)!r}: does not exist; correct it")
    config = load(file, warn=False)
    section, recipe = section_of(config, file), recipe_of(config, file)
    if push and section.repository is None:
        raise CommandError(INVALID, f"{file}: image.repository: None: --push needs a repository; set it")
    _refuse_secrets(recipe, file)
    folder = FOLDER / config.name
    run = recipe.reference("run") if target == "run" else None
    made = Build(folder, recipe.reference("environment"), run, pip_config, push)
    if dry_run:
        try:
            builder = find_builder()
        except CommandError as error:
            print(f"{error}; the command for docker follows", file=sys.stderr)
            builder = Builder("docker")
        print(recipe.dockerfile)
        print("\n".join(f"# {shlex.join(command)}" for command in builder.commands(made)))
        return
    builder = find_builder()
    _prepare(recipe, folder, section.python)
    image_id = builder.run(made)
    answer = {"reference": made.reference, "image_id": image_id, "sbom": str(folder / "sbom.cdx.json")}
    print(json.dumps(answer) if as_json else f"{made.reference}: built{' and pushed' if push else ''}  {image_id}")


def lint(
    file: Annotated[Path, typer.Argument(help="Deployment file with the section image, or a Dockerfile.")],
    as_json: Json = False,
) -> None:
    """Check a Dockerfile with hadolint and the rules for digests, users, downloads and secrets."""
    from trainstack.image.lint import problems
    from trainstack.image.recipe import recipe_of
    from trainstack.image.tools import hadolint

    if file.suffix in (".yaml", ".yml"):
        recipe = recipe_of(load(file, warn=False), file)
        _refuse_secrets(recipe, file)
        path = FOLDER / recipe.name / "Dockerfile"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(recipe.dockerfile, encoding="utf-8")
    elif file.is_file():
        path = file
    else:
        raise CommandError(INVALID, f"{file}: does not exist; name a deployment file or a Dockerfile")
    own = problems(path.read_text(encoding="utf-8"), str(path))
    found = [*map(str, own), *hadolint(path)]
    print(json.dumps(found) if as_json else "\n".join(found or [f"{path}: no findings"]))
    if found:
        raise CommandError(FAILED, f"{path}: {len(found)} findings")


def _refuse_secrets(recipe: Recipe, file: Path) -> None:
    from trainstack.image.lint import secrets_in

    code = {path: content for path, content in recipe.files.items() if path.startswith("code/")}
    if found := secrets_in(code):
        raise CommandError(INVALID, "\n".join(f"{file}: {problem}" for problem in found))


def _prepare(recipe: Recipe, folder: Path, python: str) -> None:
    """Write the build context. Downloads pip's wheel, with which the build installs the others."""
    from stacks.artifacts.wheelhouse import DIRECTORY
    from stacks.artifacts.wheelhouse.building import fetch
    from stacks.artifacts.wheelhouse.resolving import WheelhouseError
    from trainstack.image.recipe import write_context
    from trainstack.image.tools import sbom

    wheel, cache = recipe.lock.wheels["pip"], DIRECTORY / "wheels"
    try:
        fetch({"pip": wheel}, python, cache, lambda text: print(text, file=sys.stderr))
    except WheelhouseError as error:
        raise CommandError(FAILED, str(error)) from error
    write_context(recipe, folder, sbom(recipe.lock.requirements()), cache / wheel.sha256 / wheel.file)
