"""Counts results and violations by fault."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

COLUMNS = ("cycles", "kills", "hangs", "unreadable", "wrong", "stale", "lost", "bound", "excess", "unequal")


@dataclass
class Tally:
    """Counts for one fault.

    Attributes:
        cycles: number of times it was injected.
        kills: number of processes that it killed.
        hangs: gangs that did not end in time.
        unreadable: newest checkpoints that could not be read, without deliberate damage.
        wrong: resumes from a step other than the newest complete checkpoint's, losses whose bits differ from the
            uninterrupted run's, and other violations.
        stale: commits by a superseded generation.
        lost: maximum number of steps to repeat.
        bound: maximum allowed number of such steps.
        excess: number of times that the bound was exceeded.
        unequal: runs whose final state differs in any bit from the uninterrupted run's.
    """

    cycles: int = 0
    kills: int = 0
    hangs: int = 0
    unreadable: int = 0
    wrong: int = 0
    stale: int = 0
    lost: int = 0
    bound: int = 0
    excess: int = 0
    unequal: int = 0

    @property
    def violations(self) -> int:
        """Number of violations."""
        return self.hangs + self.unreadable + self.wrong + self.stale + self.excess + self.unequal


@dataclass
class Report:
    """All tallies, and the descriptions of the violations.

    Attributes:
        tallies: tallies by fault.
        problems: descriptions of the violations.
        runs_compared: finished runs that were compared with an uninterrupted run.
        local_resumes: starts from a save that was only in the local tier.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    runs_compared: int = 0
    local_resumes: int = 0

    def of(self, fault: str) -> Tally:
        """Return a fault's tally; create it if necessary."""
        return self.tallies.setdefault(fault, Tally())

    def note(self, fault: str, kind: str, description: str) -> None:
        """Count one violation, keep its description, and print it."""
        tally = self.of(fault)
        setattr(tally, kind, getattr(tally, kind) + 1)
        self.problems.append(f"{fault}: {kind}: {description}")
        sys.stderr.write(f"VIOLATION {self.problems[-1]}\n")

    def note_lost(self, fault: str, steps: int, bound: int, where: str) -> None:
        """Record the number of steps that a fault cost."""
        tally = self.of(fault)
        tally.lost, tally.bound = max(tally.lost, steps), max(tally.bound, bound)
        if steps > bound:
            self.note(fault, "excess", f"{steps} steps lost, at most {bound} are allowed; {where}")

    @property
    def kills(self) -> int:
        """Number of killed processes."""
        return sum(tally.kills for tally in self.tallies.values())

    @property
    def cycles(self) -> int:
        """Number of injected faults."""
        return sum(tally.cycles for tally in self.tallies.values())

    @property
    def violations(self) -> int:
        """Number of violations."""
        return sum(tally.violations for tally in self.tallies.values())

    def table(self) -> str:
        """Return a table by fault."""
        width = max(len(fault) for fault in [*self.tallies, "fault"])
        lines = [f"{'fault':{width}}  " + "  ".join(f"{column:>10}" for column in COLUMNS)]
        for fault, tally in self.tallies.items():
            values = asdict(tally)
            lines.append(f"{fault:{width}}  " + "  ".join(f"{values[column]:>10}" for column in COLUMNS))
        return "\n".join(lines)

    def document(self) -> Mapping[str, object]:
        """Return the JSON report's content."""
        return {
            "faults": {fault: asdict(tally) for fault, tally in self.tallies.items()},
            "cycles": self.cycles,
            "kills": self.kills,
            "runs_compared": self.runs_compared,
            "local_resumes": self.local_resumes,
            "violations": self.violations,
            "problems": self.problems,
        }
