"""Colours that colour-blind readers tell apart, and patterns on top where there are many tasks.

The first seven are Okabe and Ito's (2008). The next seven were picked for the largest smallest
distance (OKLab) to all before them, as seen with normal, protanopic and deuteranopic eyes; it is no
smaller than among the first seven. Greys are communication and the optimizer, idle is white.
"""

from dataclasses import dataclass

from spindle_sim.timeline import Kind

__all__ = ["KIND_STYLES", "Style", "backward_colour", "task_style"]

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_MORE_COLOURS = ("#3B0764", "#B3DDF5", "#552600", "#F8E2B2", "#605B1A", "#5B1A8B", "#DDCC77")
_PALE = 0.7  # brighter colours than this would pale to white
_PATTERNS = ("", "/", "x", "\\", ".", "+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one category is drawn; a heat map has no patterns, only the colours."""

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
    """Give the style of the task of that index: 42 differ, from the eighth on by patterns too."""
    colours = (*_COLOURS, *_MORE_COLOURS)
    turn, place = divmod(index, len(colours))
    # Every seven tasks another pattern; the second seven have colours of their own besides.
    pattern = 2 * turn + (place >= len(_COLOURS))
    return Style(colour=colours[place], pattern=_PATTERNS[pattern % len(_PATTERNS)])


def backward_colour(colour: str) -> str:
    """Give the shade for a task's backward: a paler one, of pale colours a darker one."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    is_pale = (0.3 * red + 0.59 * green + 0.11 * blue) / 255 > _PALE
    target, share = (0, 0.35) if is_pale else (255, 0.5)
    mixed = (round(value + share * (target - value)) for value in (red, green, blue))
    return "#" + "".join(f"{value:02X}" for value in mixed)
