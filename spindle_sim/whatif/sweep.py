"""All points of a sweep in processes of their own."""

from collections.abc import Callable, Sequence

from spindle_sim.whatif.point import Point, PointResult, evaluate
from spindle_sim.whatif.processes import in_processes

__all__ = ["sweep"]


def sweep(
    points: Sequence[Point], workers: int, done: Callable[[Point], None]
) -> tuple[PointResult, ...]:
    """Evaluate all points in `workers` processes; results come in the order of the points.

    `done` is called as each is done, in whatever order that is. With one worker or one point
    everything happens in this process.
    """
    return in_processes(evaluate, points, workers, done)
