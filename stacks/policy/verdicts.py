"""A checker's findings and counts for one template."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """A rule that a resource does not meet and that is not suppressed."""

    tool: str
    template: str
    rule: str
    resource: str
    message: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.template}: {self.resource}: {self.rule} ({self.tool}): {self.message}"


@dataclass
class Verdict:
    """One tool's counts and findings for one template.

    As in the tools' own reports, cdk-nag and cfn-lint rules are counted once per template, and checkov rules once per
    resource.
    """

    tool: str
    template: str
    run: int = 0
    suppressed: int = 0
    findings: list[Finding] = field(default_factory=list)
    unmet: set[str] = field(default_factory=set)

    @property
    def failed(self) -> int:
        """The number of rules that the template neither meets nor suppresses."""
        return len({finding.rule for finding in self.findings}) if self.tool != "checkov" else len(self.findings)

    @property
    def passed(self) -> int:
        """The number of rules that the template meets."""
        return self.run - self.suppressed - self.failed
