"""What was seen, fault by fault, and whether any of it breaks the promise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

COLUMNS = ("cycles", "kills", "hangs", "unreadable", "wrong", "stale", "lost", "bound", "excess", "unequal")


@dataclass
class Tally:
    """Counts of one fault.

    Attributes:
        cycles: times that it was done.
        kills: processes killed by it.
        hangs: gangs that did not end in time.
        unreadable: newest checkpoints that could not be read, though nobody had damaged them.
        wrong: resumes from another step than the newest whole checkpoint's, losses with other bits than those of the
            unbroken run, and other breaches.
        stale: commits of a superseded generation.
        lost: most steps that had to be done again.
        bound: most that are allowed.
        excess: times that more were lost.
        unequal: runs whose final state had other bits than the unbroken run's.
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
        """Breaches of the promise."""
        return self.hangs + self.unreadable + self.wrong + self.stale + self.excess + self.unequal


@dataclass
class Report:
    """All tallies, and what the violations were, in words.

    Attributes:
        tallies: by fault.
        problems: the violations.
        runs_compared: runs that came to their end, and were held against an unbroken one.
        near_resumes: starts from a save that was in the fast tier only.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    runs_compared: int = 0
    near_resumes: int = 0

    def of(self, fault: str) -> Tally:
        """The tally of a fault, a new one if need be."""
        return self.tallies.setdefault(fault, Tally())

    def note(self, fault: str, kind: str, told: str) -> None:
        """Count one violation, keep its words, and say it at once."""
        tally = self.of(fault)
        setattr(tally, kind, getattr(tally, kind) + 1)
        self.problems.append(f"{fault}: {kind}: {told}")
        sys.stderr.write(f"VIOLATION {self.problems[-1]}\n")

    def note_lost(self, fault: str, steps: int, bound: int, told: str) -> None:
        """Take in how many steps a fault cost."""
        tally = self.of(fault)
        tally.lost, tally.bound = max(tally.lost, steps), max(tally.bound, bound)
        if steps > bound:
            self.note(fault, "excess", f"{steps} steps lost, at most {bound} are allowed; {told}")

    @property
    def kills(self) -> int:
        """Processes killed."""
        return sum(tally.kills for tally in self.tallies.values())

    @property
    def cycles(self) -> int:
        """Faults done."""
        return sum(tally.cycles for tally in self.tallies.values())

    @property
    def violations(self) -> int:
        """Breaches of the promise."""
        return sum(tally.violations for tally in self.tallies.values())

    def table(self) -> str:
        """By fault, for people."""
        width = max(len(fault) for fault in [*self.tallies, "fault"])
        lines = [f"{'fault':{width}}  " + "  ".join(f"{column:>10}" for column in COLUMNS)]
        for fault, tally in self.tallies.items():
            values = asdict(tally)
            lines.append(f"{fault:{width}}  " + "  ".join(f"{values[column]:>10}" for column in COLUMNS))
        return "\n".join(lines)

    def document(self) -> Mapping[str, object]:
        """For the JSON."""
        return {
            "faults": {fault: asdict(tally) for fault, tally in self.tallies.items()},
            "cycles": self.cycles,
            "kills": self.kills,
            "runs_compared": self.runs_compared,
            "near_resumes": self.near_resumes,
            "violations": self.violations,
            "problems": self.problems,
        }
