"""Which settings are drafted and placed at all: what can't pay isn't planned."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan
from spindle_sim.planner import STRATEGIES, drafted
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.drafted import Found
from spindle_sim.planner.settings import Choice
from spindle_sim.workload import builtin_workload


@dataclass(slots=True)
class Watched:
    """What is planned under which settings, of Spindle's own drafts: (micro-batches, rounds)."""

    tried: list[tuple[int, int]] = field(default_factory=list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Note all settings from here on."""
        planned = drafted._Tries._planned

        def noted(
            tries: drafted._Tries, context: Context, choice: Choice, found: Sequence[Found]
        ) -> list[Found]:
            if tries.job.strategy.chooses_rounds:
                self.tried.append((context.micro_batches, len(choice.settings.rounds)))
            return planned(tries, context, choice, found)

        patch.setattr(drafted._Tries, "_planned", noted)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Watch what is planned."""
    watched = Watched()
    watched.watch(monkeypatch)
    return watched


def drafted_plan(name: str, cluster: Cluster) -> Plan:
    """Give the best plan of Spindle's own drafts."""
    workload = builtin_workload(name)
    context = Context(
        workload=workload,
        cluster=cluster,
        graph=contract(workload),
        estimator=Estimator(cluster),
        settings=Settings(tp=()),
    )
    job = drafted.Job(
        name="spindle",
        strategy=STRATEGIES["spindle"],
        placement="spindle",
        zero1=None,
        overlap_sync=True,
    )
    found = drafted.best_drafted(context, job)
    assert found is not None
    return found.plan


def test_on_large_clusters_one_way_to_form_rounds_is_planned_where_all_fits(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = parse_cluster("a800:2x8", nic_bandwidth="25Gb/s")
    drafted_plan("ofasys", cluster)
    small = list(watched.tried)
    watched.tried.clear()
    monkeypatch.setattr(drafted, "LARGE", 0)
    drafted_plan("ofasys", cluster)

    assert small == [(1, 1), (1, 2)]
    assert watched.tried == [(1, 1)]


def test_where_micro_batches_lose_by_far_their_other_rounds_are_not_planned(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = parse_cluster("a800:8x8")
    plan = drafted_plan("qwen-val", cluster)
    narrow = list(watched.tried)
    watched.tried.clear()
    monkeypatch.setattr(drafted, "MENDED", float("inf"))
    wide = drafted_plan("qwen-val", cluster)

    assert narrow == [(1, 1), (2, 1)]
    assert watched.tried == [(1, 1), (2, 1), (2, 2)]
    assert plan == wide
