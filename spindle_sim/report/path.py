"""The critical path as the report shows it: points of a line in the Gantt chart, and a table."""

from collections.abc import Sequence

from spindle_sim.metrics import CriticalPath, PathKind, PathStep
from spindle_sim.report.figures import html_table, time_unit

__all__ = ["path_line", "path_table"]

_LEAST_SHARE = 0.001
_NUM_METAOPS = 10
_NAMES = {
    PathKind.TRANSFER: "transfers between slices",
    PathKind.SYNCHRONIZATION: "synchronization",
    PathKind.STEP: "optimizer step",
    PathKind.GAP: "gaps that no span explains",
}
# Rows of a device in the chart: computing above, communication below. A gap is in neither.
_BANDS = {
    PathKind.COMPUTE: 0,
    PathKind.STEP: 0,
    PathKind.TRANSFER: 1,
    PathKind.SYNCHRONIZATION: 1,
    PathKind.GAP: 2,
}


def path_line(path: CriticalPath) -> dict[str, list[float] | list[int]]:
    """Give device, band and end (ms) of each stretch of the path; each begins where one ends.

    Steps that follow one another in one row are one stretch.
    """
    found: list[PathStep] = []  # the last step of each stretch
    for step in path.steps:
        if found and _row(found[-1]) == _row(step):
            found.pop()
        found.append(step)
    return {
        "devices": [step.device for step in found],
        "bands": [_BANDS[step.kind] for step in found],
        "ends_ms": [float(f"{1e3 * step.end_s:.10g}") for step in found],
    }


def path_table(paths: Sequence[tuple[str, CriticalPath]]) -> str:
    """Give what the paths of strategies, each with its name, are made of."""
    unit, scale = time_unit([path.iteration_s for _, path in paths])
    rows = [
        [name, what, f"{scale * seconds:,.1f}", f"{100 * seconds / path.iteration_s:.1f}"]
        for name, path in paths
        for what, seconds in _parts(path)
        if seconds > _LEAST_SHARE * path.iteration_s
    ]
    head = ["Strategy", "What", f"Time ({unit})", "Share of the iteration (%)"]
    caption = (
        "The critical path: a chain of spans from the iteration's start to its end, each of which"
        " waits for the one before. What is shorter than a thousandth is left out."
    )
    if len(paths) == 1:
        return html_table(head[1:], [row[1:] for row in rows], caption=caption)
    return html_table(head, rows, caption=caption, num_texts=2)


def _parts(path: CriticalPath) -> list[tuple[str, float]]:
    """Give the MetaOps that it computes longest, then the rest by kind."""
    computed = sorted((-share.compute_s, share.name) for share in path.by_metaop() if share.name)
    parts = [(f"computing {name}", -seconds) for seconds, name in computed[:_NUM_METAOPS]]
    rest = -sum(seconds for seconds, _ in computed[_NUM_METAOPS:])
    parts.append((f"computing {len(computed) - _NUM_METAOPS} other MetaOps", rest))
    kinds = {share.name: share.seconds for share in path.by_kind()}
    return [*parts, *((name, kinds[kind]) for kind, name in _NAMES.items())]


def _row(step: PathStep) -> tuple[int, int]:
    return step.device, _BANDS[step.kind]
