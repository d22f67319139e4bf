"""What the doctor found, as plain values, and how people read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["problem", "notice"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is missing or odd.

    Attributes:
        severity: `problem` if serving a model here cannot work, else `notice`.
        subject: What it is about.
        meaning: What follows from it, and what to do.
    """

    severity: Severity
    subject: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """Facts about one subject.

    Attributes:
        title: The subject.
        facts: Name and value, in order.
    """

    title: str
    facts: dict[str, str]


@dataclass(slots=True)
class Report:
    """All of it."""

    sections: list[Section] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, title: str, facts: dict[str, str], findings: Iterable[Finding] = ()) -> None:
        """Adds one subject."""
        self.sections.append(Section(title, facts))
        self.findings.extend(findings)

    @property
    def is_healthy(self) -> bool:
        """True if nothing stands in the way of serving."""
        return not any(finding.severity == "problem" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        return {
            **{section.title: section.facts for section in self.sections},
            "findings": [asdict(finding) for finding in self.findings],
            "healthy": self.is_healthy,
        }

    def as_text(self) -> str:
        """Plain text for people."""
        lines: list[str] = []
        for section in self.sections:
            width = max((len(name) for name in section.facts), default=0)
            lines += [section.title, *(f"  {name:<{width}}  {value}" for name, value in section.facts.items()), ""]
        lines += ["findings", *(f"  {item.severity}: {item.subject}: {item.meaning}" for item in self.findings)]
        lines.append("  everything needed to serve is here" if self.is_healthy else "  serving will not work like this")
        return "\n".join(lines)
