"""Figure 4: scaling curves, what the estimator's fit misses on points left out, profiling time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spindle_sim.estimate import Estimator
from spindle_sim.estimate.curve import fit
from spindle_sim.plan import Backward
from spindle_sim.planner.contract import contract
from spindle_sim.planner.metagraph import MetaGraph
from spindle_sim.planner.probes import probes
from spindle_sim.reproduce.batches import evaluated_workload
from spindle_sim.reproduce.cases import UNCHANGED, Change
from spindle_sim.reproduce.evaluate import the_estimator

__all__ = ["CurveStudy", "FitError", "StudiedCurve", "study_curves"]

DRAWN = ("multitask-clip", 4)
_FITTED = (("multitask-clip", 10), ("ofasys", 7), ("qwen-val", 3))
_GPUS = 32
# A point is warmed up and then run until its median is stable: this often in all.
_RUNS = 3 + 20
_LEAST_POINTS = 3
_FULL = Backward.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedCurve:
    """T_m(n) of one operator, forward and backward, at every valid n."""

    metaop: str
    points: tuple[tuple[int, float], ...]

    def speedup(self, n: int) -> float:
        """Give T(1) / T(n)."""
        times = dict(self.points)
        return times[1] / times[n]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Relative errors on points left out one by one, over all MetaOps of a workload.

    `piecewise_...` are of the piecewise alpha-beta function through the other points, `single_...`
    of one alpha-beta function (alpha + beta / n) fitted to them.
    """

    workload: str
    points: int
    piecewise_mean: float
    piecewise_max: float
    single_mean: float
    single_max: float
    profiling_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStudy:
    """The curves drawn, and the errors of all workloads."""

    curves: tuple[StudiedCurve, ...]
    errors: tuple[FitError, ...]

    def curve(self, metaop: str) -> StudiedCurve:
        """Give a curve by its MetaOp."""
        return next(one for one in self.curves if one.metaop == metaop)


def study_curves(batch_scale: float, change: Change = UNCHANGED) -> CurveStudy:
    """Give the curves of Multitask-CLIP's four tasks and the fit errors of all workloads."""
    setup = _Setup(batch_scale=batch_scale, change=change, estimator=the_estimator(_GPUS, change))
    return CurveStudy(
        curves=_curves(*DRAWN, setup),
        errors=tuple(_fit_error(name, tasks, setup) for name, tasks in _FITTED),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """What all curves of a study share."""

    batch_scale: float
    change: Change
    estimator: Estimator

    def graph(self, name: str, tasks: int) -> MetaGraph:
        """Give the MetaOps of a workload."""
        return contract(evaluated_workload(name, tasks, self.batch_scale, self.change))


def _curves(name: str, tasks: int, setup: _Setup) -> tuple[StudiedCurve, ...]:
    graph = setup.graph(name, tasks)
    estimator = setup.estimator
    found = []
    for node in graph.nodes.values():
        curve = estimator.curve(node.operator, node.metaop.backward)
        points = tuple((n, curve.time_s(n)) for n in curve.allocations)
        if points and points[0][1] > 0:
            found.append(StudiedCurve(metaop=node.metaop.id, points=points))
    return tuple(found)


def _fit_error(name: str, tasks: int, setup: _Setup) -> FitError:
    piecewise: list[float] = []
    single: list[float] = []
    for curve in _curves(name, tasks, setup):
        for index in range(1, len(curve.points) - 1):
            n, time_s = curve.points[index]
            others = curve.points[:index] + curve.points[index + 1 :]
            piecewise.append(abs(fit(others)(n) / time_s - 1))
            if len(others) >= _LEAST_POINTS:
                single.append(abs(_one_piece(others, n) / time_s - 1))
    return FitError(
        workload=name,
        points=len(piecewise),
        piecewise_mean=float(np.mean(piecewise)),
        piecewise_max=max(piecewise),
        single_mean=float(np.mean(single)),
        single_max=max(single),
        profiling_s=_profiling_s(setup.graph(name, tasks), setup.estimator),
    )


def _one_piece(points: Sequence[tuple[int, float]], n: int) -> float:
    """Give alpha + beta / n, fitted to the points by relative least squares."""
    times = np.array([time_s for _, time_s in points])
    basis = np.array([[1.0, 1.0 / count] for count, _ in points]) / times[:, None]
    alpha, beta = np.linalg.lstsq(basis, np.ones(len(points)), rcond=None)[0]
    return float(alpha + beta / n)


def _profiling_s(graph: MetaGraph, estimator: Estimator) -> float:
    """Give the GPU time of measuring every distinct operator at every batch of a device."""
    total_s = 0.0
    for probe in probes(graph, estimator):
        cost, compute = probe.cost, estimator.compute
        total_s += compute.forward_s(cost, probe.samples, probe.tp)
        total_s += compute.backward_s(cost, probe.samples, _FULL, probe.tp)
    return _RUNS * total_s
