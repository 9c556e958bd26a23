"""What a slice of decoder layers keeps of its context: one copy, however many attend to it."""

import pytest
import torch

from spindle_sim.estimate import activation_bytes
from spindle_sim.planner.contract import contract
from spindle_sim.workload import (
    Block,
    DataFlow,
    Module,
    ModuleUse,
    Task,
    TransformerLayer,
    Workload,
)
from spindle_torch.calls import SliceCall
from spindle_torch.model import local_model
from spindle_torch.pool import OperatorKey
from spindle_torch.shapes import sites

WIDTH, CONTEXT_WIDTH, TOKENS, CONTEXT_TOKENS, SAMPLES, LAYERS = 8, 16, 3, 50, 2, 5
CONTEXT_NUMBERS = SAMPLES * CONTEXT_TOKENS * CONTEXT_WIDTH
ENCODER = TransformerLayer(width=CONTEXT_WIDTH, heads=2, mlp_width=16)
LAYER = TransformerLayer(width=WIDTH, heads=2, mlp_width=16, context_width=CONTEXT_WIDTH)
WORKLOAD = Workload(
    name="pair",
    modules=(
        Module(name="encoder", blocks=(Block(name="b", operator=ENCODER),)),
        Module(name="decoder", blocks=(Block(name="b", operator=LAYER, repeat=LAYERS),)),
    ),
    tasks=(
        Task(
            name="t",
            batch_size=SAMPLES,
            uses=(
                ModuleUse(name="source", module="encoder", tokens=CONTEXT_TOKENS),
                ModuleUse(
                    name="target", module="decoder", tokens=TOKENS, context_tokens=CONTEXT_TOKENS
                ),
            ),
            flows=(DataFlow(source="source", target="target"),),
        ),
    ),
)
DECODER = "t/target/b"


def saved_numbers(num_ops: int, *, recompute: bool) -> int:
    """Count what autograd saves of a slice from the second layer on, each storage once."""
    keys = [
        OperatorKey(parameter_set="decoder/b", index=index, shard=0, num_shards=1)
        for index in range(LAYERS)
    ]
    model = local_model(
        WORKLOAD, keys, seed=0, dtype=torch.float64, device=torch.device("cpu"), custom={}
    )
    site = sites(WORKLOAD)[DECODER]
    call = SliceCall(
        site=site, first_op=1, num_ops=num_ops, shard=0, num_shards=1, recompute=recompute
    )
    entered = torch.ones(SAMPLES, site.passed.elements, dtype=torch.float64, requires_grad=True)
    parameters = {
        parameter.untyped_storage().data_ptr()
        for layer in model.layers.values()
        for parameter in layer.parameters()
    }
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        model.forward(call, [entered])
    return sum(
        tensor.untyped_storage().nbytes() // tensor.element_size()
        for pointer, tensor in saved.items()
        if pointer not in parameters
    )


def planned_bytes(num_ops: int, *, recompute: bool) -> float:
    metaop = contract(WORKLOAD).nodes[DECODER].metaop
    return activation_bytes(metaop, num_ops=num_ops, dp=1, first_op=1, recompute=recompute)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_context_is_kept_once_for_all_layers_of_a_slice(recompute: bool) -> None:
    saved = [saved_numbers(num_ops, recompute=recompute) for num_ops in (1, 2, 3)]
    assert saved[2] - saved[1] == saved[1] - saved[0]
    assert 2 * saved[0] - saved[1] == CONTEXT_NUMBERS
    planned = [planned_bytes(num_ops, recompute=recompute) for num_ops in (1, 2, 3)]
    assert planned[2] - planned[1] == planned[1] - planned[0]
    assert 2 * planned[0] - planned[1] == 2 * CONTEXT_NUMBERS  # in bf16
