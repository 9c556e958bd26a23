"""Colours that colour-blind readers tell apart (Okabe and Ito, 2008), and patterns beyond seven.

Greys are communication and the optimizer; idle is white; black is left for errors.
"""

from dataclasses import dataclass

from spindle_sim.timeline import Kind

__all__ = ["KIND_STYLES", "Style", "task_style"]

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_PATTERNS = ("", "/", "x", "\\", ".", "+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one category is drawn; a heat map has no patterns, so `colour` alone must differ too."""

    colour: str
    pattern: str = ""


KIND_STYLES = {
    Kind.COMPUTE: Style(colour="#D9D9D9", pattern="|"),  # of no known task
    Kind.SEND: Style(colour="#999999", pattern="/"),
    Kind.RECEIVE: Style(colour="#B3B3B3", pattern="\\"),
    Kind.COPY: Style(colour="#CCCCCC"),
    Kind.SYNC: Style(colour="#4D4D4D", pattern="x"),
    Kind.OPTIMIZER: Style(colour="#777777", pattern="."),
}


def task_style(index: int) -> Style:
    """Give the style of the task of that index: from the eighth on, paler and with a pattern."""
    turn = index // len(_COLOURS)
    colour = _COLOURS[index % len(_COLOURS)]
    paleness = min(0.75, 0.45 * turn)
    mixed = "".join(
        f"{round(int(colour[at : at + 2], 16) * (1 - paleness) + 255 * paleness):02X}"
        for at in (1, 3, 5)
    )
    return Style(colour=f"#{mixed}", pattern=_PATTERNS[turn % len(_PATTERNS)])
