"""What a rule says about a plan that breaks it."""

from dataclasses import dataclass

__all__ = ["Violation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule: its name, the ids of what breaks it, and one line that says how."""

    rule: str
    ids: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"
