"""From flags to the points of a sweep: every combination of the values given."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from spindle_sim.cli.inputs import read_workload
from spindle_sim.cli.options import integer_parser, number_parser
from spindle_sim.errors import UsageError, suggestion

if TYPE_CHECKING:
    from spindle_sim.cluster import Cluster
    from spindle_sim.estimate import Profile
    from spindle_sim.whatif import Point

__all__ = ["Axes", "PointOptions", "read_axes", "read_points"]

_SETTINGS = ("nics-per-node", "nic-bandwidth", "oversubscription")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The values to combine, as the user wrote them; `tasks` may be "all"."""

    tasks: tuple[str, ...]
    clusters: tuple[str, ...]
    batch_scales: tuple[str, ...]
    settings: tuple[tuple[str, tuple[str, ...]], ...]
    strategies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOptions:
    """What all points share."""

    profile: "Profile | None" = None
    placement: str = "spindle"
    overlap_sync: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Combination:
    """One value of each axis."""

    tasks: str
    cluster: str
    batch_scale: str
    strategy: str
    settings: tuple[tuple[str, str], ...]

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """The axes' names and values, strategy last."""
        return (
            ("tasks", self.tasks),
            ("cluster", self.cluster),
            ("batch_scale", self.batch_scale),
            *((name.replace("-", "_"), value) for name, value in self.settings),
            ("strategy", self.strategy),
        )


def read_axes(
    *,
    tasks: str | None,
    clusters: str,
    batch_scales: str,
    settings: Sequence[str],
    strategies: tuple[str, ...],
) -> Axes:
    """Give the axes.

    Raises:
        UsageError: a list is malformed, has a value twice, or names no setting.
    """
    read: dict[str, tuple[str, ...]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        option = f"--set {name}"
        if not equals:
            raise UsageError(f"--set {setting}: expected NAME=VALUE,VALUE")
        if name not in _SETTINGS:
            raise UsageError(f"{option}: {suggestion(name, _SETTINGS)}")
        if name in read:
            raise UsageError(f"{option}: given twice; list all values after one {option}=")
        read[name] = _values(text, option)
    return Axes(
        tasks=("all",) if tasks is None else _values(tasks, "--tasks"),
        clusters=_values(clusters, "--cluster"),
        batch_scales=_values(batch_scales, "--batch-scale"),
        settings=tuple(read.items()),
        strategies=strategies,
    )


def read_points(workload: str, axes: Axes, options: PointOptions) -> "tuple[Point, ...]":
    """Give the points; every workload and cluster is read before the first is planned.

    Raises:
        UsageError: a value is wrong.
        InputError: a file is.
    """
    from spindle_sim.planner import STRATEGIES
    from spindle_sim.whatif import Point

    # What one strategy does all do, as in `spindle compare`.
    overlaps = any(STRATEGIES[name].overlaps for name in axes.strategies)
    workloads = {
        (tasks, scale): read_workload(
            workload,
            None if tasks == "all" else f"{_count(tasks)}",
            number_parser("--batch-scale", above=0.0)(scale),
        )
        for tasks in axes.tasks
        for scale in axes.batch_scales
    }
    return tuple(
        Point(
            labels=one.labels,
            workload=workloads[one.tasks, one.batch_scale],
            cluster=_cluster(one.cluster, dict(one.settings)),
            strategy=one.strategy,
            profile=options.profile,
            placement=options.placement,
            overlap_sync=options.overlap_sync or overlaps,
            seed=options.seed,
        )
        for one in _combinations(axes)
    )


def _combinations(axes: Axes) -> tuple[_Combination, ...]:
    """Give every combination; strategies change fastest: rows to compare lie together."""
    names = [name for name, _ in axes.settings]
    return tuple(
        _Combination(tasks, cluster, batch_scale, strategy, tuple(zip(names, values, strict=True)))
        for tasks, cluster, batch_scale, *values, strategy in product(
            axes.tasks,
            axes.clusters,
            axes.batch_scales,
            *(values for _, values in axes.settings),
            axes.strategies,
        )
    )


def _count(text: str) -> int:
    return integer_parser("--tasks", least=1)(text)


def _cluster(name: str, settings: dict[str, str]) -> "Cluster":
    from spindle_sim.cluster import parse_cluster

    nics, factor = settings.get("nics-per-node"), settings.get("oversubscription")
    return parse_cluster(
        name,
        nics_per_node=(
            None if nics is None else integer_parser("--set nics-per-node", least=1)(nics)
        ),
        nic_bandwidth=settings.get("nic-bandwidth"),
        oversubscription=(
            None if factor is None else number_parser("--set oversubscription", least=1.0)(factor)
        ),
    )


def _values(text: str, option: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(","))
    if "" in values:
        raise UsageError(f"{option} {text!r}: expected values with commas between them")
    if len(set(values)) < len(values):
        raise UsageError(f"{option} {text}: a value is given twice")
    return values
