"""MetaLevels by longest path."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.planner.levels import metalevels


def breadth_first_depths(predecessors: dict[str, list[str]]) -> dict[str, int]:
    """What the paper's words say literally: the depth at which a search first meets a node."""
    depths = {node: 0 for node, before in predecessors.items() if not before}
    waiting = deque(depths)
    while waiting:
        node = waiting.popleft()
        for other, before in predecessors.items():
            if node in before and other not in depths:
                depths[other] = depths[node] + 1
                waiting.append(other)
    return depths


def test_a_breadth_first_depth_would_put_an_operator_beside_its_predecessor() -> None:
    graph = {"a": [], "b": ["a"], "c": ["a", "b"]}
    assert breadth_first_depths(graph) == {"a": 0, "b": 1, "c": 1}
    assert metalevels(graph) == {"a": 0, "b": 1, "c": 2}


def test_unconnected_chains_share_levels() -> None:
    assert metalevels({"a": [], "b": ["a"], "c": [], "d": ["c"]}) == {
        "a": 0,
        "b": 1,
        "c": 0,
        "d": 1,
    }


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    graph: dict[str, list[str]] = {}
    for index in range(draw(st.integers(1, 12))):
        known = sorted(graph)
        graph[f"n{index:02}"] = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    return graph


@given(graphs())
def test_a_level_is_above_those_of_all_predecessors_and_next_to_the_highest(
    graph: dict[str, list[str]],
) -> None:
    levels = metalevels(graph)
    for node, before in graph.items():
        assert levels[node] == 1 + max((levels[other] for other in before), default=-1)
