"""What of a workload is measured: every per-device batch of every distinct operator, once."""

from spindle_sim.cluster import parse_cluster
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Backward
from spindle_sim.planner.contract import contract
from spindle_sim.planner.probes import TENSOR_PARALLEL_DEGREES, probes
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny

CLUSTER = parse_cluster("a800:1x4")
GRAPH = contract(tiny(builtin_workload("ofasys").with_first_tasks(3)))


def test_every_allocation_of_every_metaop_has_its_probe() -> None:
    estimator = Estimator(CLUSTER)
    found = {
        (probe.operator, probe.tokens, probe.context_tokens, probe.tp, probe.samples)
        for probe in probes(GRAPH, estimator)
    }
    for node in GRAPH.nodes.values():
        operator = node.operator
        for tp in TENSOR_PARALLEL_DEGREES:
            for n in estimator.curve(operator, Backward.FULL, tp=tp).allocations:
                samples = operator.batch_size * operator.items * tp / n
                key = (operator.operator, operator.tokens, operator.context_tokens, tp, samples)
                assert key in found


def test_nothing_is_measured_twice_and_the_smallest_comes_first() -> None:
    found = probes(GRAPH, Estimator(CLUSTER))
    assert len({(probe.signature, probe.samples) for probe in found}) == len(found)
    works = [probe.work for probe in found]
    assert works == sorted(works)


def test_an_embedding_knows_how_many_of_its_tokens_flow_in() -> None:
    graph = contract(tiny(builtin_workload("qwen-val")))
    for probe in probes(graph, Estimator(CLUSTER)):
        if probe.operator.kind == "embedding":
            before = {
                sum(graph.nodes[name].operator.tokens for name in node.metaop.predecessors)
                for node in graph.nodes.values()
                if (node.operator.operator, node.operator.tokens) == probe.signature[:2]
            }
            assert probe.flowing_tokens in before
            assert probe.flowing_tokens > 0
