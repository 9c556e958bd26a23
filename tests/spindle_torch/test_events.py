"""From notes of ranks to a timeline, and from many failures to the one cause; no torch."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.backend import Execution
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Phase
from spindle_torch.events import Event, Origin, to_timeline
from spindle_torch.outcome import (
    Failure,
    FailureKind,
    execution_from_json,
    execution_to_json,
    first_cause,
    read_failures,
    write_failure,
)
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.stated_plans import two_task_plan


def test_a_receive_waits_until_its_last_sender_posts_and_transfers_from_then_on() -> None:
    """Ranks 0 and 1 send to 2, which is ready at 11 s; they post at 12 s and at 13 s."""
    workload = make_workload({"t": ("a", "b")})
    parts = [
        Part(metaop="t/a/x", devices=(0, 1)),
        Part(metaop="t/b/x", devices=(2,), stage=1),
    ]
    plan = make_plan(workload, make_cluster(1, 4), parts)
    sends = [
        [
            Event(
                kind=Kind.SEND,
                phase=Phase.FORWARD,
                start_s=at,
                end_s=at + 0.1,
                slice="s0",
                peers=(2,),
            )
        ]
        for at in (12.0, 13.0)
    ]
    receive = Event(
        kind=Kind.RECEIVE,
        phase=Phase.FORWARD,
        start_s=11.0,
        end_s=13.5,
        slice="s1",
        awaits=(
            Origin(slice="s0", backward=False, rank=0),
            Origin(slice="s0", backward=False, rank=1),
        ),
        peers=(0, 1),
    )
    timeline = to_timeline(plan, "torch-gloo", [*sends, [receive], []], [10.0, 10.5, 10.2, 11.0])
    first, second, third = timeline.spans
    assert (first.start_s, first.peer, first.task) == (2.0, 2, "t")
    assert second.start_s == 3.0
    assert (third.start_s, third.end_s, third.wait_s, third.peer) == (1.0, 3.5, 2.0, None)
    assert third.metaop == "t/b/x"
    assert timeline.num_devices == 4


def test_a_synchronization_waits_for_the_last_of_its_group() -> None:
    plan = two_task_plan()
    events = [
        [Event(kind=Kind.SYNC, phase=Phase.SYNC, start_s=at, end_s=9.0, group=0)]
        for at in (5.0, 8.0)
    ]
    timeline = to_timeline(plan, "torch-gloo", [*events, *[[]] * 6], [0.0] * 8)
    assert [span.wait_s for span in timeline.spans] == [3.0, 0.0]


def test_what_a_slice_waits_for_parameters_is_no_computing() -> None:
    """Computing from 2 s to 9 s: waits of 1 s and 0.5 s within; a launch is no wait."""
    plan = make_plan(
        make_workload({"t": ("a",)}), make_cluster(1, 2), [Part(metaop="t/a/x", devices=(0, 1))]
    )

    def sync(start_s: float, end_s: float, *, launches: bool = False) -> Event:
        return Event(
            kind=Kind.SYNC,
            phase=Phase.SYNC,
            start_s=start_s,
            end_s=end_s,
            group=-2,
            launches=launches,
        )

    own = [
        sync(1.0, 1.1, launches=True),
        sync(2.0, 3.0),
        sync(3.0, 3.2, launches=True),
        sync(5.0, 5.5),
        Event(kind=Kind.COMPUTE, phase=Phase.FORWARD, start_s=2.0, end_s=9.0, slice="s0"),
        sync(9.0, 10.0, launches=True),
        sync(10.0, 11.0),
    ]
    timeline = to_timeline(plan, "torch-gloo", [own, []], [0.0, 0.0])
    (computed,) = (span for span in timeline.spans if span.kind is Kind.COMPUTE)
    assert computed.wait_s == pytest.approx(1.5)
    assert (computed.start_s, computed.end_s) == (2.0, 9.0)


def test_a_result_is_the_same_after_writing_and_reading() -> None:
    timeline = simulate(two_task_plan())
    execution = Execution(timeline=timeline, iterations_s=(1.0, 2.0), losses=({"t": 0.1},))
    assert execution_from_json(execution_to_json(execution)) == execution


failures = st.builds(
    Failure,
    rank=st.integers(0, 7),
    kind=st.sampled_from(list(FailureKind)),
    message=st.just("it failed"),
    exit_code=st.just(5),
)


@given(st.lists(failures, min_size=1))
def test_who_only_lost_others_is_the_cause_only_where_nobody_else_failed(
    found: list[Failure],
) -> None:
    cause = first_cause(found)
    assert cause is not None
    if cause.kind is FailureKind.LOST:
        assert all(item.kind is FailureKind.LOST for item in found)


def test_failures_are_found_where_they_were_left(tmp_path: Path) -> None:
    assert first_cause(read_failures(tmp_path)) is None
    left = [
        Failure(rank=rank, kind=kind, message=f"it {kind}", exit_code=5)
        for rank, kind in enumerate(FailureKind)
    ]
    for failure in left:
        write_failure(tmp_path, failure)
    assert sorted(read_failures(tmp_path), key=lambda item: item.rank) == left
    assert str(first_cause(left)) == "it refused"
    assert str(left[2]) == "rank 2: it died"


@pytest.mark.parametrize("kind", [Kind.COMPUTE, Kind.OPTIMIZER])
def test_what_waits_for_nobody_has_no_wait(kind: Kind) -> None:
    event = Event(kind=kind, phase=Phase.STEP, start_s=1.0, end_s=2.0)
    timeline = to_timeline(two_task_plan(), "torch-gloo", [[event]], [0.0])
    assert [(span.wait_s, span.stream) for span in timeline.spans] == [(0.0, 0)]
