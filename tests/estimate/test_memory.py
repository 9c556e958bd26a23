from dataclasses import replace

import pytest

from spindle_sim.estimate import activation_bytes, state_bytes, working_bytes
from spindle_sim.plan import Backward, MetaOp

METAOP = MetaOp(
    id="task/use/block",
    task="task",
    module="module",
    kind="transformer_layer",
    num_ops=4,
    batch=32,
    level=0,
    predecessors=(),
    parameter_set="module/block",
    parameters=1000,
    sharded_parameters=800,
    frozen=False,
    backward=Backward.FULL,
    flops=1e9,
    input_bytes=10.0,
    output_bytes=12.0,
    saved_bytes=100.0,
    saved_replicated_bytes=30.0,
)


def test_a_trained_parameter_takes_sixteen_bytes() -> None:
    # bf16 weight and gradient, float32 master weight and two moments: 2 + 2 + 12.
    assert state_bytes(METAOP) == 16_000


def test_zero_divides_the_optimizer_states_over_the_group() -> None:
    assert state_bytes(METAOP, optimizer_shards=4) == 1000 * (2 + 2 + 12 / 4)


def test_tensor_parallelism_divides_only_the_sharded_parameters() -> None:
    assert state_bytes(METAOP, tp=4) == pytest.approx(16 * (200 + 800 / 4))


def test_a_frozen_operator_holds_its_weights_only() -> None:
    assert state_bytes(replace(METAOP, frozen=True)) == 2000


def test_kept_activations_are_those_of_a_ranks_samples_over_all_operators() -> None:
    kept = activation_bytes(METAOP, num_ops=3, dp=8, tp=2)
    assert kept == 32 / 8 * 3 * (100 / 2 + 30)


def test_recomputation_keeps_each_operators_input() -> None:
    assert activation_bytes(METAOP, num_ops=3, dp=8, recompute=True) == 4 * (10 + 2 * 12)
    assert activation_bytes(METAOP, num_ops=3, dp=8, recompute=True, first_op=1) == 4 * 3 * 12
    assert working_bytes(METAOP, dp=8, tp=2) == 4 * (100 / 2 + 30)


def test_a_context_is_kept_once_for_all_operators() -> None:
    metaop = replace(METAOP, context_bytes=7.0)
    for options in ({}, {"selective": True}, {"recompute": True, "first_op": 1}):
        without = activation_bytes(METAOP, num_ops=3, dp=8, **options)
        kept = activation_bytes(metaop, num_ops=3, dp=8, **options)
        assert kept == without + 4 * 7
    # Sequence parallelism cuts it, tensor parallelism alone doesn't.
    for cut, ranks in ((False, 1), (True, 2)):
        without, kept = (
            activation_bytes(item, num_ops=3, dp=8, tp=2, sequence_parallel=cut)
            for item in (METAOP, metaop)
        )
        assert kept == without + 4 * 7 / ranks
    # What flows into the first operator of all has it already.
    first = activation_bytes(metaop, num_ops=3, dp=8, recompute=True)
    assert first == activation_bytes(METAOP, num_ops=3, dp=8, recompute=True)


def test_without_a_backward_nothing_is_kept() -> None:
    frozen = replace(METAOP, frozen=True, backward=Backward.NONE)
    assert activation_bytes(frozen, num_ops=4, dp=1) == 0.0
