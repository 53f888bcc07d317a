"""Rules for Dockerfiles and build contexts that hadolint does not have: digests, users, downloads and secrets.

Sources (2026-11): https://docs.docker.com/reference/dockerfile/ (syntax),
https://docs.docker.com/build/building/secrets/ (ARG and ENV stay in the image) and
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html (prefixes of access keys)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from stacks.errors import Problem

SECRET_NAME = re.compile(r"(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_?KEY|CREDENTIAL|PRIVATE_?KEY)", re.IGNORECASE)
SECRET_FILES = frozenset(
    {".env", ".netrc", ".npmrc", ".pypirc", "credentials", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa", "pip.conf"}
)
SECRET_CONTENTS = {
    "an AWS access key": re.compile(rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    "a private key": re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    "a token of Hugging Face": re.compile(rb"\bhf_[A-Za-z]{34}\b"),
    "a token of GitHub": re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82})\b"),
}
CREDENTIALS_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@\"']+:[^/\s@\"']+@")
PINNED = re.compile(r"@sha256:[0-9a-f]{64}$")
REMOTE = re.compile(r"^(https?|ftp|git|ssh)://|^git@", re.IGNORECASE)


@dataclass(frozen=True)
class Instruction:
    """An instruction of a Dockerfile, with its continued lines joined.

    Attributes:
        line: Number of its first line, from 1.
        name: Name in capitals.
        text: Everything after the name, without the line breaks.
    """

    line: int
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The text's words without options such as `--from=x`."""
        return [word for word in self.text.split() if not word.startswith("--")]


def instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile. Comments are no instructions, also between continued lines."""
    found: list[Instruction] = []
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and not parts):
            continue
        first = first if parts else number
        parts.append(stripped.removesuffix("\\").strip())
        if not stripped.endswith("\\"):
            name, _, rest = " ".join(parts).strip().partition(" ")
            found.append(Instruction(first, name.upper(), rest.strip()))
            parts = []
    if parts:
        name, _, rest = " ".join(parts).partition(" ")
        found.append(Instruction(first, name.upper(), rest.strip()))
    return found


def problems(dockerfile: str, name: str) -> list[Problem]:
    """Return the violations of all rules in a Dockerfile. `name`: its path, for messages."""
    found = instructions(dockerfile)
    return [
        Problem(f"{name}:{each.line}", f"{each.name} {each.text}"[:100], rule, remedy)
        for check in (_bases, _downloads, _secrets)
        for each, rule, remedy in check(found)
    ] + list(_user(found, name))


Finding = tuple[Instruction, str, str]


def _bases(found: list[Instruction]) -> Iterator[Finding]:
    arguments = {}
    stages: set[str] = {"scratch"}
    for each in found:
        if each.name == "ARG" and not stages - {"scratch"}:
            key, _, value = each.text.partition("=")
            arguments[key.strip()] = value.strip().strip("\"'")
        if each.name == "FROM" and each.words:
            base = re.sub(r"\$\{?(\w+)[^}]*\}?", lambda match: arguments.get(match[1], ""), each.words[0])
            if base not in stages and not PINNED.search(base):
                yield each, "has no digest, so that the base changes without an edit", "add @sha256:DIGEST"
            stages.add(each.words[-1] if len(each.words) == 3 else base)
        if each.name == "COPY":
            source = re.search(r"--from=(\S+)", each.text)
            if source and source[1] not in stages and not source[1].isdecimal() and not PINNED.search(source[1]):
                yield each, "copies from an image without a digest", "add @sha256:DIGEST"


def _downloads(found: list[Instruction]) -> Iterator[Finding]:
    for each in found:
        remote = [word for word in each.words[:-1] if REMOTE.match(word.strip("[],\"'"))]
        if each.name == "ADD" and remote and "--checksum=" not in each.text:
            yield each, "downloads a file without a checksum", "use COPY, or add --checksum=sha256:DIGEST"
        if each.name == "RUN" and re.search(r"\b(curl|wget)\b[^|;&]*\|\s*(sudo\s+)?(ba|z|da)?sh\b", each.text):
            yield each, "executes a download that nothing verifies", "copy the file into the context, and verify it"


def _secrets(found: list[Instruction]) -> Iterator[Finding]:
    for each in found:
        if each.name in ("ENV", "ARG"):
            pairs = re.findall(r"([A-Za-z_]\w*)(?:=|\s+|$)", each.text)
            if any(SECRET_NAME.search(key) for key in pairs):
                yield each, "stores a secret in the image's history", "use RUN --mount=type=secret"
        if CREDENTIALS_IN_URL.search(each.text):
            yield each, "contains credentials in a URL", "use RUN --mount=type=secret"
        for kind, pattern in SECRET_CONTENTS.items():
            if pattern.search(each.text.encode()):
                yield each, f"contains {kind}", "revoke it, and use RUN --mount=type=secret"


def _user(found: list[Instruction], name: str) -> Iterator[Problem]:
    """The last stage's user, which it may inherit from an earlier stage, is not root."""
    users: dict[str, str] = {}
    stage, user, line = "", "", 0
    for each in found:
        if each.name == "FROM" and each.words:
            users[stage] = user
            user = users.get(each.words[0], "")
            stage, line = each.words[-1], each.line
        elif each.name == "USER":
            user, line = each.text, each.line
    if not user or user.partition(":")[0] in ("root", "0"):
        rule = "the last stage runs as root"
        yield Problem(f"{name}:{line}", user or None, rule, "add USER with a numeric id, such as USER 10001:10001")


def secrets_in(files: Mapping[str, bytes]) -> list[Problem]:
    """Return the files of a build context that contain secrets."""
    found = []
    for path, content in sorted(files.items()):
        remedy = "remove it from training.code, and pass it to the run by its role or environment"
        if PurePosixPath(path).name in SECRET_FILES:
            found.append(
                Problem(path, None, "is a file for credentials, which every user of the image can read", remedy)
            )
        for kind, pattern in SECRET_CONTENTS.items():
            if pattern.search(content):
                found.append(Problem(path, None, f"contains {kind}, which every user of the image can read", remedy))
    return found
