"""The section of docs/reproduction.md that a finished run is put into."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reproduction import PAGE, outcome, replaced
from spindle_sim.reproduce.statements import STATEMENTS


def row(name: str, met: bool | None, **more: object) -> dict[str, Any]:
    known = {"id": name, "section": "5.2", "paper": 1.67, "ours": 1.5, "met": met}
    return {**known, "explanation": "", **more}


def found(**more: object) -> dict[str, Any]:
    return {
        "met": 1,
        "judged": 3,
        "provenance": {"tool": "spindle-sim 9", "profile": "analytic"},
        "statements": [
            row("a-max", met=True),
            row("three", met=True, ours=[1.0, 2.0, 3.0]),
            row("b-range", met=False, paper=[1.3, 1.6], ours=[1.0, 1.1], explanation="met under x"),
            row("slow", met=False, paper=3.0, ours=None, explanation="see wall_clock"),
            row("c-holds", met=None, paper=True, ours=None),
        ],
        "experiments": [
            {"statement": "b-range", "change": "y", "ours": [1.0, 1.2], "met": False},
            {"statement": "b-range", "change": "x", "ours": [1.3, 1.6], "met": True},
        ],
        "parts": {"batches": {"rows": [{"workload": "w", "over": "seq", "x0.5": [1.1, 1.25]}]}},
        "wall_clock": {
            "statements": {"slow": 4.0},
            "experiments": {"slow": {"planned alone": 2.5}},
        },
        **more,
    }


def test_a_row_has_ours_beside_the_papers_and_what_the_experiments_showed() -> None:
    text = outcome(found())
    assert "1 of 3 statements" in text
    assert "| `a-max` | 5.2 | 1.67 | 1.5 | met |" in text
    assert "| `three` | 5.2 | 1.67 | 1, 2, 3 | met |" in text
    assert "| `b-range` | 5.2 | 1.3 to 1.6 | 1 to 1.1 | met under x |" in text
    assert "| `slow` | 5.2 | 3 | 4 | planned alone: 2.5 |" in text
    assert "| `c-holds` | 5.2 | yes | - | not evaluated |" in text
    assert text.index("| x | 1 | 1 |") < text.index("| y | 0 | 1 |")
    assert "| w | seq | 1.1 to 1.25 |" in text


def test_without_experiments_there_is_no_table_of_them() -> None:
    text = outcome(found(experiments=[], parts={}))
    assert "Tried" not in text
    assert "halved" not in text


def test_the_section_is_put_between_the_marks_and_nowhere_else() -> None:
    page = "before\n<!-- benchmarks:reproduction BEGIN: x -->\nold\n"
    page += "<!-- benchmarks:reproduction END -->\nafter\n"
    once = replaced(page, "new\n")
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert replaced(once, "new\n") == once
    with pytest.raises(ValueError, match="marks"):
        replaced("no marks", "new")


def test_the_page_has_a_row_for_every_statement() -> None:
    page = Path(PAGE).read_text(encoding="utf-8")
    text = page[page.index("BEGIN: python -m benchmarks.reproduction") :]
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE) == [
        statement.id for statement in STATEMENTS
    ]
