"""Times from a profile at any per-device batch: between its points, and beyond them.

Between two points the time is linear in the samples of a device, which is a piece of the
alpha-beta function (samples = batch / dp). Beyond them the device model is scaled so that it meets
the nearest point.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.profile import (
    OperatorPoint,
    OptimizerPoint,
    Profile,
    ProfiledOperator,
)
from spindle_sim.plan import Backward
from spindle_sim.workload import OperatorCost, OperatorNode

__all__ = ["MeasuredTimes", "measured_step_s"]


def measured_step_s(points: Sequence[OptimizerPoint], parameters: float) -> float:
    """Give the time of an optimizer step: linear between points, and from the origin or the end."""
    known = sorted((point.parameters, point.time_s) for point in points)
    right = bisect_left(known, (parameters,))
    if right == len(known):
        return known[-1][1] * parameters / known[-1][0]
    before, after = known[right - 1] if right else (0.0, 0.0), known[right]
    share = (parameters - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """The operators of a profile by their signature."""

    compute: ComputeModel
    operators: dict[tuple[object, ...], ProfiledOperator]

    @classmethod
    def of(cls, profile: Profile, compute: ComputeModel) -> "MeasuredTimes":
        """Index a profile."""
        operators: dict[tuple[object, ...], ProfiledOperator] = {
            (item.operator, item.tokens, item.context_tokens, item.tp, item.batch_size): item
            for item in profile.operators
        }
        return cls(compute=compute, operators=operators)

    def find(self, node: OperatorNode, tp: int) -> ProfiledOperator | None:
        """Give the profiled operator of a node's signature, of its own batch size first."""
        signature = (node.operator, node.tokens, node.context_tokens, tp)
        found = self.operators.get((*signature, node.batch_size))
        if found is None and not node.cost.gathered_bytes:
            found = self.operators.get((*signature, None))
        return found

    def times_s(
        self, item: ProfiledOperator, cost: OperatorCost, backward: Backward, samples: float
    ) -> tuple[float, float]:
        """Give forward and backward seconds for `samples` items on one device."""
        points = sorted(item.points, key=lambda point: point.samples)
        forward_s = _at(
            [(point.samples, point.forward_s) for point in points],
            samples,
            lambda count: self.compute.forward_s(cost, count, item.tp),
        )
        if backward is Backward.NONE:
            return forward_s, 0.0
        backward_s = _at(
            [(p.samples, self._backward_s(p, item, cost, backward)) for p in points],
            samples,
            lambda count: self.compute.backward_s(cost, count, backward, item.tp),
        )
        return forward_s, backward_s

    def _backward_s(
        self, point: OperatorPoint, item: ProfiledOperator, cost: OperatorCost, backward: Backward
    ) -> float:
        known = {
            Backward.FULL: point.backward_s,
            Backward.INPUT_ONLY: point.input_backward_s,
            Backward.WEIGHT_ONLY: point.weight_backward_s,
        }[backward]
        if known is not None:
            return known
        share = self.compute.backward_s(
            cost, point.samples, backward, item.tp
        ) / self.compute.backward_s(cost, point.samples, Backward.FULL, item.tp)
        return point.backward_s * share


def _at(
    points: list[tuple[float, float]], samples: float, model: Callable[[float], float]
) -> float:
    right = bisect_left(points, (samples,))
    if right < len(points) and points[right][0] == samples:
        return points[right][1]
    if 0 < right < len(points):
        (x0, t0), (x1, t1) = points[right - 1], points[right]
        return t0 + (samples - x0) / (x1 - x0) * (t1 - t0)
    nearest_samples, nearest_s = points[0] if right == 0 else points[-1]
    return nearest_s * model(samples) / model(nearest_samples)
