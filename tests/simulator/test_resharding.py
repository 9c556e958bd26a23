import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.simulator.resharding import Layout, Piece, concatenated, reshard


def layout(*devices: int, tp: int = 1) -> Layout:
    return Layout(devices=devices, tp=tp)


def moved(pieces: tuple[Piece, ...]) -> dict[tuple[int, int], float]:
    return {(p.source, p.target): p.bytes for p in pieces if not p.is_local}


def kept(pieces: tuple[Piece, ...]) -> dict[int, float]:
    return {p.source: p.bytes for p in pieces if p.is_local}


def test_four_to_eight_disjoint_devices_halves_each_part() -> None:
    pieces = reshard(layout(0, 1, 2, 3), layout(*range(8, 16)), 800.0)
    assert moved(pieces) == {(s, 8 + 2 * s + half): 100.0 for s in range(4) for half in range(2)}


def test_four_to_eight_over_the_same_four_leaves_what_is_already_there() -> None:
    # Device d held samples [2d, 2d + 2) of 8 and now needs [d, d + 1): only device 0 has its own.
    pieces = reshard(layout(0, 1, 2, 3), layout(*range(8)), 800.0)
    assert kept(pieces) == {0: 100.0}
    assert moved(pieces) == {(d // 2, d): 100.0 for d in range(1, 8)}


def test_eight_to_four_gathers_two_parts_on_each() -> None:
    pieces = reshard(layout(*range(8)), layout(0, 1, 2, 3), 800.0)
    assert kept(pieces) == {0: 100.0}
    assert moved(pieces) == {(d, d // 2): 100.0 for d in range(1, 8)}


def test_three_to_two_splits_the_middle_part() -> None:
    pieces = reshard(layout(0, 1, 2), layout(0, 2), 600.0)
    assert kept(pieces) == {0: 200.0, 2: 200.0}
    assert moved(pieces) == {(1, 0): 100.0, (1, 2): 100.0}


def test_the_same_devices_in_the_same_order_move_nothing() -> None:
    pieces = reshard(layout(3, 1, 2), layout(3, 1, 2), 600.0)
    assert not moved(pieces)
    assert not concatenated(pieces)


def test_a_local_piece_is_copied_only_where_others_join_it() -> None:
    pieces = reshard(layout(0, 1), layout(0), 200.0)
    assert concatenated(pieces) == (Piece(source=0, target=0, bytes=100.0),)


def test_tensor_parallel_ranks_receive_from_the_rank_of_their_shard() -> None:
    pieces = reshard(layout(0, 1, tp=2), layout(2, 3, tp=2), 100.0)
    assert moved(pieces) == {(0, 2): 100.0, (1, 3): 100.0}


def test_more_tensor_parallel_ranks_wrap_around_those_of_the_source() -> None:
    pieces = reshard(layout(0, 1, tp=2), layout(2, 3, 4, 5, tp=4), 100.0)
    assert moved(pieces) == {(0, 2): 100.0, (1, 3): 100.0, (0, 4): 100.0, (1, 5): 100.0}


def test_gradients_return_from_one_rank_for_each_sample() -> None:
    pieces = reshard(layout(2, 3, tp=2), layout(0), 100.0)
    assert moved(pieces) == {(2, 0): 100.0}


def test_any_rank_that_holds_the_sample_keeps_it() -> None:
    # Device 1 is rank 1 of the source; as the only target it needs nothing from rank 0.
    assert not moved(reshard(layout(0, 1, tp=2), layout(1), 100.0))


sizes = st.integers(1, 12)


@given(
    dp=sizes,
    to_dp=sizes,
    tp=st.sampled_from([1, 2, 4]),
    to_tp=st.sampled_from([1, 2, 4]),
    shift=st.integers(0, 50),
    size=st.floats(1.0, 1e12),
)
def test_every_target_gets_exactly_its_part(
    dp: int, to_dp: int, tp: int, to_tp: int, shift: int, size: float
) -> None:
    source = layout(*range(dp * tp), tp=tp)
    target = layout(*(shift + d for d in range(to_dp * to_tp)), tp=to_tp)
    pieces = reshard(source, target, size)
    got = dict.fromkeys(target.devices, 0.0)
    for piece in pieces:
        got[piece.target] += piece.bytes
        assert piece.source in source.devices
        assert piece.bytes > 0
    assert all(amount == pytest.approx(size / to_dp) for amount in got.values())
    assert len({(p.source, p.target) for p in pieces}) == len(pieces)


@given(dp=sizes, to_dp=sizes, shift=st.integers(0, 15))
def test_only_what_is_not_already_there_is_sent(dp: int, to_dp: int, shift: int) -> None:
    """Against a count over single samples, of which there are dp * dp'."""
    source, target = layout(*range(dp)), layout(*(shift + d for d in range(to_dp)))
    samples = dp * to_dp
    missing = sum(
        source.devices[sample * dp // samples] != target.devices[sample * to_dp // samples]
        for sample in range(samples)
    )
    sent = sum(moved(reshard(source, target, float(samples))).values())
    assert sent == pytest.approx(missing)
