"""What going on with another number of devices costs, beside what placement finds it to cost."""

import pytest

from spindle_sim.cluster import Cluster
from spindle_sim.planner.affinity import Affinity, Group
from spindle_sim.planner.moves import Moves
from tests.builders import make_cluster
from tests.planner.drafting import make_context


@pytest.mark.parametrize("cluster", [make_cluster(2, 8, oversubscription=r) for r in (1, 2, 8)])
@pytest.mark.parametrize(("source", "target"), [(4, 8), (8, 16), (16, 8)])
def test_doubling_and_halving_take_what_the_slowest_link_takes(
    cluster: Cluster, source: int, target: int
) -> None:
    context = make_context({"a": 0}, {"t": ("a",)}, cluster, repeat=2, batch=16)
    node = context.graph.nodes["t/a/x"]
    affinity = Affinity(cluster)
    before = Group(tuple(range(source)), 1)
    after = Group(affinity.arranged(tuple(range(target)), 1, before), 1)
    size_bytes = node.metaop.batch * node.metaop.output_bytes
    found = Moves.of(node, cluster).seconds(source, target)
    assert found == pytest.approx(affinity.transfer_s(before, after, size_bytes))
