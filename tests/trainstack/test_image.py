"""`trainstack image`: the lock, the recipe, the commands of the builders, and the rules for Dockerfiles."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.loading import load
from trainstack.commands import main
from trainstack.image.builder import Build, Builder, find_builder
from trainstack.image.lint import instructions, problems, secrets_in
from trainstack.image.lock import LOCK_NAME, inputs_digest, requirements_of
from trainstack.image.recipe import recipe_of, write_context
from trainstack.kubernetes.command import read_plan as kubernetes_plan
from trainstack.kubernetes.pod_template import SHIM, pod_template
from trainstack.session import CommandError
from trainstack.slurm.command import read_plan as slurm_plan
from trainstack.slurm.script import script_text

BASE = "debian:bookworm-slim"
DIGEST = "sha256:" + "4" * 64
REPOSITORY = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/trainer"
WHEELS = {
    name: {"version": "1.0", "file": f"{name}-1.0-py3-none-any.whl", "sha256": str(number) * 64}
    for number, name in enumerate(("pip", "torch", "boto3"))
}
PODS = {"engine": "kubernetes", "kubernetes": {"bucket": "my-bucket"}}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(image: dict[str, Any] | None = None, lock: bool = True, **sections: Any) -> Path:
        document = {
            "name": "x",
            "image": {"base": BASE, "repository": REPOSITORY, **(image or {})},
            "capacity": {"nodes": 1},
            "training": {"dataset": "text", "config": {"steps": 10, "global_batch_size": 8}},
            **(sections or PODS),
        }
        path = tmp_path / "x.yaml"
        path.write_text(yaml.safe_dump(document))
        if lock:
            config = load(path)
            assert config.image is not None
            entry = {"inputs": inputs_digest(config, config.image), "base": f"{BASE}@{DIGEST}", "wheels": WHEELS}
            path.with_name(LOCK_NAME).write_text(json.dumps({path.name: entry}))
        return path

    return file


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def code(**files: str) -> dict[str, Any]:
    """Write user code, and return the training section that names it."""
    Path("code").mkdir(exist_ok=True)
    for name, text in files.items():
        Path("code", f"{name}.py").write_text(text)
    return {"dataset": "text", "code": "code", "config": {"steps": 10, "global_batch_size": 8}}


def test_layers_are_in_the_order_of_their_changes(write: Write) -> None:
    file = write()
    found = instructions(recipe_of(load(file), file).dockerfile)
    assert [each.words[0] for each in found if each.name == "COPY"] == [
        "environment/", "/opt/pytorch", "sbom.cdx.json", "node/", "code/",
    ]  # fmt: skip
    assert next(each.text for each in found if each.name == "ARG") == f"BASE={BASE}@{DIGEST}"
    assert [each.text for each in found if each.name == "FROM"] == [
        "${BASE} AS wheels", "${BASE} AS environment", "environment AS run",
    ]  # fmt: skip
    assert [each.text for each in found if each.name == "USER"] == ["10001:10001"]


def test_an_edit_of_the_code_changes_only_the_last_layer(write: Write) -> None:
    file = write(**PODS, training=code(model="A = 1\n"))
    before = recipe_of(load(file), file)
    code(model="A = 2\n")
    after = recipe_of(load(file), file)
    assert after.dockerfile == before.dockerfile
    assert {path for path in before.files if before.files[path] != after.files[path]} == {"code/model.py"}
    assert before.tag("environment") == after.tag("environment")
    assert before.tag("run") != after.tag("run")


def test_a_context_depends_only_on_its_contents(write: Write, tmp_path: Path) -> None:
    file = write()
    recipe = recipe_of(load(file), file)
    wheel = tmp_path / "pip.whl"
    wheel.write_bytes(b"wheel")
    seen = []
    for name, mask in (("a", 0o022), ("b", 0o077)):
        previous = os.umask(mask)
        write_context(recipe, tmp_path / name, b"{}", wheel)
        os.umask(previous)
        paths = sorted((tmp_path / name).rglob("*"))
        stats = [path.stat() for path in paths]
        seen.append(
            [
                (str(path.relative_to(tmp_path / name)), each.st_mtime, stat.S_IMODE(each.st_mode))
                for path, each in zip(paths, stats, strict=True)
            ]
        )
    assert seen[0] == seen[1] and len(seen[0]) > 100


@pytest.mark.parametrize(
    "edit", [{"image": {"python": "3.12"}}, {"image": {"torch": "base"}}, {"training": {"dependencies": ["einops"]}}]
)
def test_an_outdated_lock_is_refused(write: Write, edit: dict[str, Any]) -> None:
    file = write()
    document = yaml.safe_load(file.read_text())
    for section, keys in edit.items():
        document[section] |= keys
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(CommandError, match="is outdated: .*; run `trainstack image lock"):
        recipe_of(load(file), file)


@pytest.mark.parametrize("text", ["[]", "{", '{"x.yaml": {"inputs": "", "base": "b", "wheels": {"a": 1}}}'])
def test_a_damaged_lock_is_refused(write: Write, text: str) -> None:
    file = write()
    file.with_name(LOCK_NAME).write_text(text)
    with pytest.raises(CommandError, match="is not a valid image lock"):
        recipe_of(load(file), file)


def test_an_unlocked_image_is_refused(write: Write) -> None:
    file = write(lock=False)
    with pytest.raises(CommandError, match="is not locked; run `trainstack image lock"):
        recipe_of(load(file), file)


def test_torch_is_the_tested_build_unless_the_base_contains_it(write: Write) -> None:
    def listed(torch: str) -> tuple[list[str], list[str]]:
        config = load(write({"torch": torch}, lock=False))
        assert config.image is not None
        return requirements_of(config, config.image)

    assert any(text.startswith("torch==2.13.0") and "+" not in text for text in listed("cuda")[0])
    assert any(text == "torch==2.13.0+cpu" for text in listed("cpu")[0])
    assert any(text.startswith("nvidia-nccl") for text in listed("cuda")[1])
    requirements, versions = listed("base")
    assert not [text for text in (*requirements, *versions) if text.startswith(("torch", "numpy"))]


def test_readers_of_a_model_folder_are_installed_if_a_run_starts_from_one(write: Write) -> None:
    def listed(**keys: Any) -> list[str]:
        config = {"steps": 10, "global_batch_size": 8, **keys}
        found = load(write(lock=False, **PODS, training={"dataset": "text", "config": config}))
        assert found.image is not None
        return [text.partition("==")[0] for text in requirements_of(found, found.image)[0]]

    readers = {"safetensors", "tokenizers"}
    assert readers <= set(listed(initial_weights="s3://my-bucket/models/gpt2"))
    assert not readers & set(listed())


def test_jobs_and_pods_run_the_environment(write: Write, tmp_path: Path) -> None:
    file = write()
    name = recipe_of(load(file), file).reference("environment")
    assert name.startswith(f"{REPOSITORY}:environment-")
    (container,) = pod_template(kubernetes_plan(file), None)["spec"]["containers"]
    assert container["image"] == name and container["command"][0] == "/opt/pytorch/bin/python3"
    for runtime, image in (("pyxis", name.replace("/", "#", 1)), ("apptainer", f"docker://{name}")):
        slurm = {"directory": str(tmp_path / "shared"), "gres": "gpu:2", "container": {"runtime": runtime}}
        assert image in script_text(slurm_plan(write(engine="slurm", slurm=slurm)))


def test_a_named_image_has_precedence(write: Write) -> None:
    file = write(lock=False, engine="kubernetes", kubernetes={"bucket": "my-bucket", "image": "other:1"})
    (container,) = pod_template(kubernetes_plan(file), None)["spec"]["containers"]
    assert container["image"] == "other:1"


def test_a_pod_uses_the_node_program_of_its_image(tmp_path: Path) -> None:
    package = tmp_path / "node" / "d1" / "bootstrap" / "kubernetes"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("print('from the image')\n")
    shim = SHIM.replace("/usr/lib/trainstack/node/", f"{tmp_path}/node/")
    assert shim != SHIM
    done = subprocess.run(
        [sys.executable, "-c", shim, "bucket", "key", "d1"],
        capture_output=True,
        text=True,
        env={"TRAINSTACK_ROOT": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    assert done.stdout == "from the image\n", done.stderr


def test_commands_of_the_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    build = Build(tmp_path, f"{REPOSITORY}:environment-1", f"{REPOSITORY}:run-1", Path("pip.conf"), push=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    built, run, pushed = Builder("buildah").commands(build)
    assert built[:2] == ["buildah", "build"] and built[-1] == str(tmp_path)
    assert built[built.index("--target") + 1] == "environment" and run[-2] == str(tmp_path / "Dockerfile.run")
    assert "--secret" not in run and run[run.index("--tag") + 1] == f"{REPOSITORY}:run-1"
    assert built[built.index("--timestamp") + 1] == "315532800"
    assert built[built.index("--secret") + 1] == "id=pip,src=pip.conf"
    assert pushed == ["buildah", "push", f"{REPOSITORY}:run-1", f"docker://{REPOSITORY}:run-1"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    (command,) = Builder("docker").commands(build)
    assert command[:3] == ["docker", "buildx", "build"] and "SOURCE_DATE_EPOCH=1700000000" in command
    output = command[command.index("--output") + 1]
    assert output == f"type=image,name={REPOSITORY}:run-1,push=true,rewrite-timestamp=true"


def test_an_existing_environment_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "buildah").write_text('#!/bin/sh\n[ "$4" = a:environment-1 ]\n')
    (tmp_path / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    known, unknown = (Build(tmp_path, f"a:environment-{number}", "a:run-1") for number in (1, 2))
    assert [command[-2] for command in Builder("buildah").commands(known)] == [str(tmp_path / "Dockerfile.run")]
    assert len(Builder("buildah").commands(unknown)) == 2


def test_source_date_epoch_is_a_number(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write()
    before = recipe_of(load(file), file).tag("environment")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert recipe_of(load(file), file).tag("environment") != before
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(CommandError, match="must be Unix seconds"):
        recipe_of(load(file), file)


def test_without_a_builder_the_error_names_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="neither `docker buildx` nor `buildah` is installed; install one"):
        find_builder()


def test_build_passes_the_context_to_the_builder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    script = 'if [ "$1" = inspect ]; then echo \'{"FromImageID": "ab"}\'; else echo "$@" > "$LOG"; for c; do :; done; '
    for name, text in {
        "buildah": script + 'cp "$c/Dockerfile" "$LOG.Dockerfile"; cp "$c/Dockerfile.run" "$LOG.run"; fi',
        "cyclonedx-py": 'echo "{}"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    wheel = tmp_path / "build/wheelhouse/wheels" / WHEELS["pip"]["sha256"] / WHEELS["pip"]["file"]
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"wheel")
    monkeypatch.setattr("stacks.artifacts.wheelhouse.building._is_cached", lambda cache, one: True)
    file = write()
    with pytest.raises(SystemExit) as ended:
        main(["image", "build", str(file), "--target", "run", "--json"])
    assert ended.value.code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["image_id"] == "sha256:ab" and answer["reference"] in (tmp_path / "log").read_text()
    recipe = recipe_of(load(file), file)
    assert (tmp_path / "log.Dockerfile").read_text() == recipe.dockerfile
    base = f"FROM {recipe.reference('environment')} AS run"
    assert (tmp_path / "log.run").read_text().splitlines()[1] == base


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model": "KEY = 'AKIAQQQQQQQQQQQQQQQQ'\n"}, "code/model.py: None: contains an AWS access key"),
        ({"model": "K = '''-----BEGIN RSA PRIVATE KEY-----'''\n"}, "contains a private key"),
    ],
)
def test_a_build_with_secrets_is_refused(
    write: Write, capsys: pytest.CaptureFixture[str], files: dict[str, str], message: str
) -> None:
    file = write(**PODS, training=code(**files))
    with pytest.raises(SystemExit) as ended:
        main(["image", "build", str(file), "--dry-run"])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_files_for_credentials_are_found() -> None:
    assert [each.path for each in secrets_in({"a/.netrc": b"", "a/model.py": b"", "id_rsa": b""})] == [
        "a/.netrc",
        "id_rsa",
    ]


PINNED = f"FROM debian@{DIGEST}\n"
USER = "USER 10001:10001\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"FROM debian:12\n{USER}", "has no digest"),
        (f"ARG BASE=debian:12\nFROM ${{BASE}}\n{USER}", "has no digest"),
        (f"{PINNED}COPY --from=other:1 /a /a\n{USER}", "copies from an image without a digest"),
        (f"{PINNED}ADD https://example.com/x /x\n{USER}", "downloads a file without a checksum"),
        (f"{PINNED}RUN curl -s https://example.com/x \\\n  | sh\n{USER}", "executes a download"),
        (f"{PINNED}ENV HF_TOKEN=x\n{USER}", "stores a secret"),
        (f"{PINNED}ARG PIP_PASSWORD\n{USER}", "stores a secret"),
        (f"{PINNED}RUN pip install --index-url https://me:pw@example.com/ x\n{USER}", "credentials in a URL"),
        (f"{PINNED}RUN true\n", "runs as root"),
        (f"{PINNED}USER root\n", "runs as root"),
        (f"{PINNED[:-1]} AS a\n{USER}FROM debian@{DIGEST}\n", "runs as root"),
    ],
)
def test_each_rule_finds_its_violation(text: str, rule: str) -> None:
    found = problems(text, "Dockerfile")
    assert len(found) == 1 and rule in found[0].rule, found


def test_valid_dockerfiles_have_no_findings(write: Write) -> None:
    file = write()
    assert problems(recipe_of(load(file), file).dockerfile, "Dockerfile") == []
    stages = f"{PINNED[:-1]} AS a\n{USER}FROM a AS b\nCOPY --from=a /x /x\nADD --checksum=sha256:1 https://e.com/x /x\n"
    assert problems(stages, "Dockerfile") == []


def test_lint_needs_hadolint(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("trainstack.image.tools.ROOT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["image", "lint", str(write())])
    assert ended.value.code == 1 and "run `make image-tools`" in capsys.readouterr().err
