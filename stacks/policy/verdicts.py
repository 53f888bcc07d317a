"""What a checker says of one template."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """A rule that a resource does not meet, with nobody having accepted that."""

    tool: str
    template: str
    rule: str
    resource: str
    message: str

    def __str__(self) -> str:
        """Return it as a line."""
        return f"{self.template}: {self.resource}: {self.rule} ({self.tool}): {self.message}"


@dataclass
class Verdict:
    """Counts and findings of one tool for one template.

    For cdk-nag and cfn-lint a rule counts once a template, for checkov once a resource: that is how they report.
    """

    tool: str
    template: str
    run: int = 0
    suppressed: int = 0
    findings: list[Finding] = field(default_factory=list)
    unmet: set[str] = field(default_factory=set)

    @property
    def failed(self) -> int:
        """How many rules are not met and not accepted."""
        return len({finding.rule for finding in self.findings}) if self.tool != "checkov" else len(self.findings)

    @property
    def passed(self) -> int:
        """How many rules are met."""
        return self.run - self.suppressed - self.failed
