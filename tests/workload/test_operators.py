"""What operators hold and cost, by closed forms and by relations that must hold."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.workload import (
    ContrastiveLoss,
    Embedding,
    Projection,
    TransformerLayer,
)

LAYERS = st.builds(
    TransformerLayer,
    width=st.sampled_from([64, 128, 256]),
    heads=st.sampled_from([4, 8]),
    mlp_width=st.integers(1, 512),
    key_value_heads=st.sampled_from([None, 1, 2, 4]),
    gated=st.booleans(),
    causal=st.booleans(),
    norm=st.sampled_from(["layer", "rms"]),
    context_width=st.sampled_from([None, 32]),
)


def plain(**fields: Any) -> TransformerLayer:
    return TransformerLayer(width=64, heads=4, mlp_width=256, **fields)


def test_a_plain_layer_has_twelve_square_matrices_its_biases_and_norms() -> None:
    d, f = 64, 256
    assert plain().parameters == 4 * d * d + 2 * d * f + (4 * d) + (f + d) + 4 * d


@given(st.integers(1, 300))
def test_a_plain_layer_costs_the_published_formulas(tokens: int) -> None:
    d, f = 64, 256
    cost = plain().cost(tokens=tokens)
    assert cost.flops == 2 * tokens * (4 * d * d + 2 * d * f) + 4 * tokens**2 * d
    saved = cost.saved_bytes + cost.saved_replicated_bytes
    assert saved == 2 * tokens * (8 * d + 2 * f) + 4 * 4 * tokens
    assert cost.output_bytes == 2 * tokens * d


def test_grouped_queries_shrink_keys_and_values_alone() -> None:
    full, grouped = plain(), plain(key_value_heads=1)
    assert full.parameters - grouped.parameters == 2 * (64 + 1) * (64 - 16)
    attentions = [layer.cost(tokens=8).attentions for layer in (full, grouped)]
    assert attentions[0] == attentions[1]


def test_a_gated_mlp_has_three_matrices() -> None:
    gated, dense = plain(gated=True), plain()
    assert gated.parameters - dense.parameters == 64 * 256 + 256
    extra = gated.cost(tokens=10).flops - dense.cost(tokens=10).flops
    assert extra == 2 * 10 * 64 * 256


@given(LAYERS, st.integers(1, 64), st.integers(1, 64))
def test_products_of_a_layer_follow_from_its_weights(
    layer: TransformerLayer, tokens: int, context: int
) -> None:
    biased = layer.sharded_parameters
    products = sum(
        gemm.inner * gemm.columns * gemm.count
        for gemm in layer.cost(tokens=tokens, context_tokens=context).gemms
    )
    ups = 2 if layer.gated else 1
    attentions = 1 if layer.context_width is None else 2
    biases = attentions * (layer.attention_width + 2 * layer.key_value_width)
    assert products == biased - biases - ups * layer.mlp_width


@given(LAYERS, st.integers(1, 64), st.integers(1, 64))
def test_more_tokens_never_cost_less(layer: TransformerLayer, tokens: int, context: int) -> None:
    less = layer.cost(tokens=tokens, context_tokens=context)
    more = layer.cost(tokens=tokens + 1, context_tokens=context)
    assert more.flops > less.flops
    assert more.saved_bytes > less.saved_bytes
    assert more.traffic_bytes > less.traffic_bytes


@given(LAYERS)
def test_divided_parameters_are_part_of_all(layer: TransformerLayer) -> None:
    assert 0 < layer.sharded_parameters < layer.parameters


def test_a_tied_head_has_no_parameters_and_costs_the_same() -> None:
    tied, own = (Projection(inner=8, columns=100, tied=tied) for tied in (True, False))
    assert (tied.parameters, own.parameters) == (0, 800)
    assert tied.cost(tokens=3).flops == own.cost(tokens=3).flops == 2 * 3 * 8 * 100


def test_a_lookup_has_no_products() -> None:
    table = Embedding(vocabulary=100, width=8, extra_parameters=5)
    assert table.parameters == 805
    assert table.cost(tokens=7).flops == 0
    assert table.cost(tokens=7).output_bytes == 2 * 7 * 8


def test_a_contrastive_loss_meets_the_whole_batch() -> None:
    loss = ContrastiveLoss(width=16)
    assert loss.cost(tokens=1, batch_size=32).flops == 2 * 2 * 16 * 32
    assert loss.cost(tokens=1, batch_size=32).gathered_bytes == 2 * 2 * 16
