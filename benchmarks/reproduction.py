"""Puts the outcome of `spindle reproduce --json` into docs/reproduction.md, as Markdown tables.

spindle reproduce --json > outcome.json
python -m benchmarks.reproduction outcome.json [--print]
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["outcome", "replaced"]

PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"
_MARKS = re.compile(
    r"(<!-- benchmarks:reproduction BEGIN[^>]*-->\n).*?(<!-- benchmarks:reproduction END -->)",
    re.DOTALL,
)
_ENDS = 2  # of a range
_SCALES = {"x0.5": "halved", "x1": "as they are", "x2": "doubled"}


def outcome(found: dict[str, Any]) -> str:
    """Give the section: what is met, what the experiments showed, how other batches move it."""
    return "\n".join(
        [
            f"`spindle reproduce` prints {found['met']} of {found['judged']} statements as met"
            f" ({found['provenance']['tool']}; times: {found['provenance']['profile']}).",
            "",
            *_statements(found),
            *_experiments(found),
            *_batches(found),
        ]
    )


def replaced(page: str, section: str) -> str:
    """Give the page with the section between its marks.

    Raises:
        ValueError: the page has no marks.
    """
    text, count = _MARKS.subn(lambda marks: f"{marks[1]}\n{section}\n{marks[2]}", page)
    if count != 1:
        raise ValueError(f"expected one section between marks, found {count}")
    return text


def _statements(found: dict[str, Any]) -> Iterator[str]:
    walls = found["wall_clock"]
    rows = []
    for row in found["statements"]:
        ours = walls["statements"].get(row["id"], row["ours"])
        rows.append(
            [
                f"`{row['id']}`",
                row["section"],
                _shown(row["paper"]),
                _shown(ours),
                {True: "met", False: _explained(row, walls), None: "not evaluated"}[row["met"]],
            ]
        )
    yield from _table(
        ["Statement", "Section", "Paper", "Ours", "Met, or what the experiments showed"],
        "llrrl",
        rows,
    )


def _explained(row: dict[str, Any], walls: dict[str, Any]) -> str:
    alone = walls.get("experiments", {}).get(row["id"])
    if alone:
        return "; ".join(f"{name}: {_shown(value)}" for name, value in alone.items())
    return str(row["explanation"]) or "not tried"


def _experiments(found: dict[str, Any]) -> Iterator[str]:
    rows = found["experiments"]
    if not rows:
        return
    tried: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for row in rows:
        tried[row["change"]] += 1
        met[row["change"]] += row["met"]
    yield "What each change meets of the statements that aren't met, and that it can reach:"
    yield ""
    changes = sorted(tried, key=lambda name: -met[name])
    cells = [[name, str(met[name]), str(tried[name])] for name in changes]
    yield from _table(["Change", "Met", "Tried"], "lrr", cells)


def _batches(found: dict[str, Any]) -> Iterator[str]:
    rows = found["parts"].get("batches", {}).get("rows", [])
    if not rows:
        return
    yield "Spindle's speed-ups, least to most, with all batches halved and doubled:"
    yield ""
    scales = [key for key in rows[0] if key.startswith("x")]
    cells = [
        [row["workload"], row["over"], *(_shown(row[scale]) for scale in scales)] for row in rows
    ]
    heads = ["Workload", "Over", *(_SCALES.get(scale, scale) for scale in scales)]
    yield from _table(heads, "ll" + "r" * len(scales), cells)


def _table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Give a Markdown table and an empty line; `sides` has an r for each column of figures."""
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---:' if side == 'r' else '---' for side in sides)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
    yield ""


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return (" to " if len(value) == _ENDS else ", ").join(_shown(one) for one in value)
    return f"{value:.3g}" if isinstance(value, float | int) else str(value or "-")


def main() -> None:
    """Rewrite the page's section from a file, or print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="what `spindle reproduce --json` printed")
    parser.add_argument("--print", action="store_true", help="print, and leave the page as it is")
    arguments = parser.parse_args()
    section = outcome(json.loads(arguments.file.read_text(encoding="utf-8")))
    if arguments.print:
        sys.stdout.write(section)
        return
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), section), encoding="utf-8")


if __name__ == "__main__":
    main()
