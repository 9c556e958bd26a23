"""What processes tell each other comes back as it was, and nothing else is taken."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.backend import CheckpointOptions, Execution, ExecutionOptions, Validation
from spindle_sim.cluster import parse_cluster
from spindle_sim.estimate.probe import Probe, ProbeResult, Profiling, StepProbe
from spindle_sim.estimate.profile import LinkPoint, OperatorPoint
from spindle_sim.planner import make_plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Phase
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch.encoding import from_json, to_json
from spindle_torch.events import Event, Origin
from spindle_torch.validation import Task

FLOATS = st.floats(allow_nan=False)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(Kind),
    phase=st.sampled_from(Phase),
    start_s=FLOATS,
    end_s=FLOATS,
    slice=st.text(st.characters(codec="utf-8")),
    awaits=st.lists(
        st.builds(Origin, slice=st.just("0/0"), backward=st.booleans(), rank=st.integers(0, 7))
    ).map(tuple),
    peers=st.lists(st.integers(0, 7)).map(tuple),
    launches=st.booleans(),
)


@given(st.lists(st.tuples(FLOATS, st.lists(EVENTS, max_size=4).map(tuple)), max_size=3))
def test_notes_come_back_to_the_bit(notes: list[tuple[float, tuple[Event, ...]]]) -> None:
    assert from_json(to_json(notes), list[tuple[float, tuple[Event, ...]]]) == notes


def test_losses_that_are_no_numbers_any_more_come_back() -> None:
    found = from_json(to_json({"a": math.nan, "b": -math.inf}), dict[str, float])
    assert math.isnan(found["a"])
    assert found["b"] == -math.inf


def test_a_validations_task_and_result_come_back() -> None:
    workload = tiny(builtin_workload("multitask-clip")).with_first_tasks(2)
    plan = make_plan(workload, parse_cluster("a800:1x2"), "spindle")
    operators = [block.operator for module in workload.modules for block in module.blocks]
    probes = tuple(Probe(operator=operator, tokens=3, samples=2) for operator in operators)
    task = Task(
        plans=(plan,),
        probes=probes,
        steps=(StepProbe(operators=tuple(operators)),),
        options=ExecutionOptions(clip_norm=0.1, checkpoints=CheckpointOptions(folder="é")),
        num_ranks=2,
        time_scales=(1.5,),
    )
    assert from_json(to_json(task), Task) == task
    profiling = Profiling(
        device="cpu",
        method="stated",
        tool="none",
        elapsed_s=0.1,
        results=tuple(
            ProbeResult(
                probe=probe,
                point=OperatorPoint(samples=2.0, forward_s=1e-3, backward_s=1 / 3),
                spread=0.0,
                repeats=1,
            )
            for probe in probes
        ),
        links=(
            LinkPoint(operation="all_reduce", reach="island", ranks=2, size_bytes=4.0, time_s=1e-5),
        ),
    )
    found = Validation(
        executions=(Execution(timeline=simulate(plan), iterations_s=(0.1, 0.2), losses=()),),
        profiling=profiling,
        rounds=((profiling, profiling),),
    )
    assert from_json(to_json(found), Validation) == found


@pytest.mark.parametrize("content", [b"", b"cos\nsystem\n", b'{"slice": "0/0"}', b'[1, "2"]'])
def test_what_is_no_such_value_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="Origin"):
        from_json(content, Origin)


def test_what_has_no_form_in_json_is_not_written() -> None:
    assert from_json(to_json(Path("a/b")), Path) == Path("a/b")
    with pytest.raises(AssertionError, match="has no form in JSON"):
        to_json(object())
