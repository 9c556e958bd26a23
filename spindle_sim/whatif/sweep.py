"""All points of a sweep in processes of their own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from spindle_sim.whatif.point import Point, PointResult, evaluate
from spindle_sim.whatif.processes import in_processes

__all__ = ["sweep"]


def sweep(
    points: Sequence[Point], workers: int, done: Callable[[Point], None]
) -> tuple[PointResult, ...]:
    """Evaluate all points in `workers` processes; results come in the order of the points.

    `done` is called as each is done, in whatever order that is. With one worker or one point
    everything happens in this process.

    Points that differ in their strategy alone are compared: where the plan of one shards optimizer
    states (ZeRO-1), all are planned so, as in `spindle compare`.
    """
    results = list(in_processes(evaluate, points, workers, done))
    sharing = {
        _compared(point) for point, result in zip(points, results, strict=True) if result.zero1
    }
    again = [
        index
        for index, (point, result) in enumerate(zip(points, results, strict=True))
        if _compared(point) in sharing and result.figures is not None and not result.zero1
    ]
    sharded = [replace(points[index], zero1=True) for index in again]
    for index, result in zip(
        again, in_processes(evaluate, sharded, workers, lambda _: None), strict=True
    ):
        results[index] = result
    return tuple(results)


def _compared(point: Point) -> tuple[tuple[str, str], ...]:
    """Give the labels that points have in common that are compared."""
    return tuple((axis, value) for axis, value in point.labels if axis != "strategy")
