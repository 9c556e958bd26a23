"""The operator kinds on torch: torch's own layers as oracle, counts, shards, the same bits."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from spindle_sim.errors import InputError
from spindle_sim.workload import ContrastiveLoss, Embedding, Projection, TransformerLayer
from spindle_torch.drawing import Drawer
from spindle_torch.layers import (
    ContrastiveModule,
    EmbeddingModule,
    ProjectionModule,
    TransformerModule,
)


def assert_exact(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def drawer(name: str = "m/b/0", seed: int = 0, rank: int = 0, size: int = 1) -> Drawer:
    return Drawer(
        name=name,
        seed=seed,
        dtype=torch.float64,
        device=torch.device("cpu"),
        rank=rank,
        size=size,
    )


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def randomise(module: nn.Module) -> None:
    """Give norms and biases values that a mistake with them would show."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).double() * 0.1)


def copy_attention(target: nn.MultiheadAttention, source: nn.Module) -> None:
    parts = ("query", "key", "value")
    if target.in_proj_weight is not None:
        target.in_proj_weight.data = torch.cat([getattr(source, part) for part in parts])
    else:
        for part, name in zip(parts, ("q", "k", "v"), strict=True):
            getattr(target, f"{name}_proj_weight").data = getattr(source, part).data
    target.in_proj_bias.data = torch.cat([getattr(source, f"{part}_bias") for part in parts])
    target.out_proj.weight.data = source.output.data  # type: ignore[assignment]
    target.out_proj.bias.data = source.output_bias.data  # type: ignore[assignment]


@pytest.mark.parametrize("causal", [False, True])
def test_a_transformer_layer_is_torchs(causal: bool) -> None:
    operator = TransformerLayer(width=24, heads=4, mlp_width=40, causal=causal)
    ours = TransformerModule(operator, drawer())
    randomise(ours)
    theirs = nn.TransformerEncoderLayer(
        24, 4, 40, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    copy_attention(theirs.self_attn, ours.attention)
    for one, other in (
        (theirs.norm1, ours.norm),
        (theirs.norm2, ours.mlp_norm),
    ):
        one.weight.data, one.bias.data = other.weight.data, other.bias.data  # type: ignore[union-attr]
    theirs.linear1.weight.data, theirs.linear2.weight.data = ours.mlp.up.data, ours.mlp.down.data
    assert ours.mlp.up_bias is not None
    assert ours.mlp.down_bias is not None
    theirs.linear1.bias.data, theirs.linear2.bias.data = (
        ours.mlp.up_bias.data,
        ours.mlp.down_bias.data,
    )
    x = rows(3, 7, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    expected = theirs(x, src_mask=mask if causal else None, is_causal=causal)
    assert_exact(ours(x), expected)


def test_cross_attention_is_torchs_over_a_context_of_another_width() -> None:
    operator = TransformerLayer(width=16, heads=2, mlp_width=32, context_width=24)
    ours = TransformerModule(operator, drawer())
    randomise(ours)
    assert ours.cross_attention is not None
    theirs = nn.MultiheadAttention(16, 2, kdim=24, vdim=24, batch_first=True).double()
    copy_attention(theirs, ours.cross_attention)
    x, context = rows(3, 5, 16), rows(3, 9, 24)
    expected, _ = theirs(x, context, context, need_weights=False)
    given_ = ours.cross_attention(x, context, causal=False)
    assert_exact(given_, expected)
    assert not torch.equal(ours(x, context), ours(x, context + 1.0))


def test_a_gated_layer_with_grouped_queries_follows_its_formula() -> None:
    operator = TransformerLayer(
        width=16, heads=4, key_value_heads=2, mlp_width=24, gated=True, norm="rms"
    )
    layer = TransformerModule(operator, drawer())
    randomise(layer)
    x = rows(2, 5, 16)

    def rms(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return y * torch.rsqrt((y**2).mean(-1, keepdim=True) + 1e-5) * weight

    a = layer.attention
    y = rms(x, layer.norm.weight)
    q, k, v = (
        functional.linear(y, w, b)
        for w, b in ((a.query, a.query_bias), (a.key, a.key_bias), (a.value, a.value_bias))
    )
    heads = []
    for head in range(4):
        own, shared = slice(4 * head, 4 * head + 4), slice(4 * (head // 2), 4 * (head // 2) + 4)
        scores = q[..., own] @ k[..., shared].mT / math.sqrt(4)
        heads.append(scores.softmax(-1) @ v[..., shared])
    x1 = x + functional.linear(torch.cat(heads, -1), a.output, a.output_bias)
    y = rms(x1, layer.mlp_norm.weight)
    m = layer.mlp
    assert m.gate is not None
    hidden = functional.linear(y, m.up, m.up_bias)
    hidden = hidden * functional.silu(functional.linear(y, m.gate, m.gate_bias))
    expected = x1 + functional.linear(hidden, m.down, m.down_bias)
    assert_exact(layer(x), expected)


@settings(max_examples=60)
@given(
    st.builds(
        TransformerLayer,
        width=st.just(16),
        heads=st.just(4),
        mlp_width=st.just(24),
        key_value_heads=st.sampled_from([None, 1, 2]),
        head_width=st.sampled_from([None, 6]),
        gated=st.booleans(),
        norm=st.sampled_from(["layer", "rms"]),
        query_value_bias=st.booleans(),
        key_bias=st.booleans(),
        output_bias=st.booleans(),
        mlp_bias=st.booleans(),
        context_width=st.sampled_from([None, 8]),
        extra_parameters=st.sampled_from([0, 1, 7, 500]),
    )
)
def test_a_layer_has_the_parameters_that_the_workload_counts(operator: TransformerLayer) -> None:
    layer = TransformerModule(operator, drawer())
    assert count(layer) == operator.parameters
    context = rows(2, 3, 8) if operator.context_width else None
    layer(rows(2, 5, 16), context).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
    if operator.num_key_value_heads % 2 == 0:
        shards = [TransformerModule(operator, drawer(rank=rank, size=2)) for rank in range(2)]
        divided, whole = operator.sharded_parameters, operator.parameters
        assert [count(shard) for shard in shards] == [whole - divided // 2] * 2


def test_other_operators_have_the_parameters_that_the_workload_counts() -> None:
    made: list[tuple[Callable[[], nn.Module], int]] = []
    for extra in (0, 3):
        table = Embedding(vocabulary=10, width=4, extra_parameters=extra)
        matrix = Projection(inner=6, columns=4, bias=True, norm_width=6, extra_parameters=extra)
        tied = Projection(inner=6, columns=4, tied=True, extra_parameters=extra)
        loss = ContrastiveLoss(width=4, extra_parameters=extra)
        made += [
            (lambda table=table: EmbeddingModule(table, drawer()), table.parameters),  # type: ignore[misc]
            (lambda matrix=matrix: ProjectionModule(matrix, drawer()), matrix.parameters),  # type: ignore[misc]
            (lambda tied=tied: ProjectionModule(tied, drawer()), tied.parameters),  # type: ignore[misc]
            (lambda loss=loss: ContrastiveModule(loss, drawer()), loss.parameters),  # type: ignore[misc]
        ]
    for make, parameters in made:
        assert count(make()) == parameters


def test_an_embedding_puts_its_text_behind_what_flows_in() -> None:
    layer = EmbeddingModule(Embedding(vocabulary=10, width=4), drawer())
    ids, before = torch.tensor([[1, 2], [3, 4]]), rows(2, 3, 4)
    out = layer(ids, before)
    assert torch.equal(out[:, :3], before)
    assert torch.equal(out[:, 3:], layer.table[ids])


def test_a_contrastive_loss_is_the_mean_cross_entropy_of_both_ways() -> None:
    layer = ContrastiveModule(ContrastiveLoss(width=4, extra_parameters=1), drawer())
    a, b = rows(5, 4), rows(5, 4).flip(0)
    logits = functional.normalize(a) @ functional.normalize(b).T / 0.07
    ways = [functional.cross_entropy(way, torch.arange(5)) for way in (logits, logits.T)]
    assert_exact(layer(a, b), (ways[0] + ways[1]) / 2)


def test_parameters_depend_on_name_and_seed_alone() -> None:
    operator = TransformerLayer(width=16, heads=4, mlp_width=24)
    one = TransformerModule(operator, drawer()).state_dict()
    torch.randn(7)
    again = TransformerModule(operator, drawer()).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    for other in (drawer(name="m/b/1"), drawer(seed=1)):
        changed = TransformerModule(operator, other).state_dict()
        assert not torch.equal(one["attention.query"], changed["attention.query"])
    shards = [TransformerModule(operator, drawer(rank=r, size=2)).state_dict() for r in range(2)]
    query = torch.cat([shard["attention.query"] for shard in shards], dim=0)
    down = torch.cat([shard["mlp.down"] for shard in shards], dim=1)
    assert torch.equal(query, one["attention.query"])
    assert torch.equal(down, one["mlp.down"])


def test_heads_that_the_ranks_cant_divide_are_refused() -> None:
    operator = TransformerLayer(width=16, heads=4, key_value_heads=1, mlp_width=24)
    with pytest.raises(InputError, match="key_value_heads is 1, which 2"):
        TransformerModule(operator, drawer(size=2))


def test_a_norm_of_another_width_than_what_it_norms_is_refused() -> None:
    with pytest.raises(InputError, match="norm_width is 4"):
        ProjectionModule(Projection(inner=6, columns=4, norm_width=4), drawer())


@pytest.mark.parametrize("cross", [False, True])
def test_selective_recomputation_computes_attention_cores_again_and_nothing_else(
    *, cross: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"scaled_dot_product_attention": 0, "linear": 0}

    def counting(name: str) -> Callable[..., torch.Tensor]:
        original: Callable[..., torch.Tensor] = getattr(functional, name)

        def counted(*args: object, **more: object) -> torch.Tensor:
            calls[name] += 1
            return original(*args, **more)

        return counted

    for name in calls:
        monkeypatch.setattr(functional, name, counting(name))
    operator = TransformerLayer(
        width=16, heads=4, key_value_heads=2, mlp_width=24, context_width=8 if cross else None
    )
    layer = TransformerModule(operator, drawer())
    context = rows(2, 3, 8) if cross else None
    found = []
    for selective in (False, True):
        calls.update(dict.fromkeys(calls, 0))
        x = rows(2, 5, 16).requires_grad_()
        layer.zero_grad()
        torch.autograd.backward(layer(x, context, selective=selective).square().sum())
        found.append((dict(calls), [x.grad, *(item.grad for item in layer.parameters())]))
    (plain, gradients), (again, same) = found
    cores = 2 if cross else 1
    assert plain["scaled_dot_product_attention"] == cores
    assert again == {**plain, "scaled_dot_product_attention": 2 * cores}
    for one, other in zip(gradients, same, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
