"""A machine for tests: scripted programs, a clock that advances with `sleep`, files on the real disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bootstrap.errors import CommandError
from bootstrap.system import HttpAnswer, System


class FakeSystem(System):
    """`programs` maps a program name to its output, or to an exception to raise."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.variables = dict(environment or {})
        self.programs: dict[str, str | CommandError | Callable[[Sequence[str]], str]] = {}
        self.commands: list[list[str]] = []
        self.files: dict[str, str] = {}
        self.directories: dict[str, list[str]] = {}
        self.edges: dict[str, bytes] = {}
        self.free = 10**12
        self.answers: list[HttpAnswer | OSError] = []
        self.requests: list[tuple[str, str]] = []
        self.now = 1000.0
        self.slept = 0.0
        self.was_shut_down = False
        self.on_sleep: Callable[[], None] = lambda: None

    def environment(self) -> Mapping[str, str]:
        return self.variables

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> str:
        self.commands.append(list(command))
        answer = self.programs.get(Path(command[0]).name)
        if answer is None:
            raise CommandError(command, None, "", "cannot be started (no such program)")
        if isinstance(answer, CommandError):
            raise answer
        return answer if isinstance(answer, str) else answer(command)

    def find_program(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.programs else None

    def read(self, path: Path) -> str | None:
        return self.files[str(path)] if str(path) in self.files else super().read(path)

    def list_directory(self, path: Path) -> list[str]:
        return self.directories.get(str(path), [])

    def read_edges(self, path: Path, count: int) -> bytes:
        return self.edges.get(str(path), bytes(count))

    def free_bytes(self, path: Path) -> int:
        return self.free

    def http(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, timeout_seconds: float
    ) -> HttpAnswer:
        self.requests.append((method, url))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def monotonic_seconds(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        self.on_sleep()

    def shut_down(self) -> None:
        self.was_shut_down = True
