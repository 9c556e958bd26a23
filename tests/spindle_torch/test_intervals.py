"""Resharding by intersection: every sample arrives once, and as many bytes as in the simulator."""

from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.plan import Slice
from spindle_sim.simulator.resharding import Layout, reshard
from spindle_torch.intervals import held_samples, pieces


def make_slice(devices: tuple[int, ...], tp: int = 1) -> Slice:
    return Slice(
        id="s",
        metaop="t/u/b",
        first_op=0,
        num_ops=1,
        stage=0,
        devices=devices,
        dp=len(devices) // tp,
        tp=tp,
        forward_s=1.0,
        backward_s=1.0,
        start_s=0.0,
    )


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    tp = draw(st.sampled_from([1, 2]))
    count = draw(st.integers(1, 4)) * tp
    devices = draw(st.permutations(range(8)))[:count]
    return make_slice(tuple(devices), tp)


def test_three_devices_give_to_two() -> None:
    moved = pieces(make_slice((0, 1, 2)), make_slice((1, 3)), 6)
    assert moved == ((0, 1, 0, 2), (1, 1, 2, 3), (1, 3, 3, 4), (2, 3, 4, 6))


def test_uneven_shards_are_rounded_down() -> None:
    item = make_slice((4, 5, 6))
    assert [held_samples(item, device, 10) for device in item.devices] == [(0, 3), (3, 6), (6, 10)]


@given(slices(), slices(), st.integers(1, 13))
def test_every_device_gets_each_of_its_samples_once_and_in_order(
    source: Slice, target: Slice, batch: int
) -> None:
    moved = pieces(source, target, batch)
    for device in target.devices:
        got = [n for p in moved if p.target == device for n in range(p.first, p.last)]
        assert got == list(range(*held_samples(target, device, batch)))
    for piece in moved:
        first, last = held_samples(source, piece.source, batch)
        assert first <= piece.first < piece.last <= last
    pairs = [(piece.source, piece.target) for piece in moved]
    assert len(set(pairs)) == len(pairs), "one message for each pair"


@given(slices(), slices(), st.integers(1, 4))
def test_the_way_back_is_the_same_intervals_transposed_without_tensor_parallelism(
    source: Slice, target: Slice, factor: int
) -> None:
    if source.tp == target.tp == 1:
        ahead = pieces(source, target, 12 * factor)
        back = pieces(target, source, 12 * factor)
        assert {(p.source, p.target, p.first, p.last) for p in ahead} == {
            (p.target, p.source, p.first, p.last) for p in back
        }


@given(slices(), slices(), st.integers(1, 3))
def test_the_simulator_moves_the_same(source: Slice, target: Slice, factor: int) -> None:
    batch = 12 * factor
    moved = {(p.source, p.target): float(p.last - p.first) for p in pieces(source, target, batch)}
    simulated = reshard(
        Layout(devices=source.devices, tp=source.tp),
        Layout(devices=target.devices, tp=target.tp),
        float(batch),
    )
    assert {(p.source, p.target): round(p.bytes, 6) for p in simulated} == moved
