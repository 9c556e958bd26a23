"""HOW LARGE: bytes that a device holds for states (parameters, gradients, Adam) and activations.

Mixed precision as usual: bf16 parameters and gradients (2 + 2 bytes), float32 master copy and two
Adam moments (12 bytes). The planner (ahead) and the simulator (over time) both count with these.
"""

from spindle_sim.plan import Backward, MetaOp

__all__ = [
    "GRADIENT_BYTES",
    "OPTIMIZER_BYTES",
    "PARAMETER_BYTES",
    "activation_bytes",
    "shard_parameters",
    "state_bytes",
    "working_bytes",
]

PARAMETER_BYTES = 2.0
GRADIENT_BYTES = 2.0
OPTIMIZER_BYTES = 12.0


def shard_parameters(metaop: MetaOp, tp: int) -> float:
    """Give the parameters of one operator that one tensor-parallel rank holds."""
    return metaop.parameters - metaop.sharded_parameters * (1.0 - 1.0 / tp)


def state_bytes(metaop: MetaOp, *, tp: int = 1, optimizer_shards: int = 1) -> float:
    """Give the bytes of states of ONE operator of the MetaOp on one device.

    `optimizer_shards` is the size of the parameter group where ZeRO-1 is on, else 1. A frozen
    operator has parameters only.
    """
    parameters = shard_parameters(metaop, tp)
    if metaop.frozen:
        return PARAMETER_BYTES * parameters
    return parameters * (PARAMETER_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES / optimizer_shards)


def activation_bytes(
    metaop: MetaOp,
    *,
    num_ops: int,
    dp: int,
    tp: int = 1,
    recompute: bool = False,
    first_op: int = 0,
    micro_batches: int = 1,
    selective: bool = False,
    sequence_parallel: bool = False,
) -> float:
    """Give the bytes that one device keeps of a slice from its forward until its backward.

    Those of one of `micro_batches`. With `recompute` each operator keeps its input only, with
    `selective` all but what the attention core does. `sequence_parallel` divides the rest, too.
    Cross-attention's context is kept once, for all operators. A MetaOp without backward keeps
    nothing.
    """
    if metaop.backward is Backward.NONE:
        return 0.0
    samples = metaop.batch / dp / micro_batches
    whole = tp if sequence_parallel else 1
    if recompute:
        # What flows into the first operator of all has the context in it.
        first = metaop.hands(metaop) if first_op else metaop.input_bytes
        return samples * (first + (num_ops - 1) * metaop.output_bytes) / whole
    divided = metaop.saved_bytes - (metaop.saved_attention_bytes if selective else 0.0)
    kept = samples * num_ops * (divided / tp + metaop.saved_replicated_bytes / whole)
    return kept + samples * metaop.context_bytes / whole


def working_bytes(
    metaop: MetaOp,
    *,
    dp: int,
    tp: int = 1,
    micro_batches: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Give what recomputing ONE operator of a slice holds for the time of its backward."""
    if metaop.backward is Backward.NONE:
        return 0.0
    samples = metaop.batch / dp / micro_batches
    whole = tp if sequence_parallel else 1
    return samples * (metaop.saved_bytes / tp + metaop.saved_replicated_bytes / whole)
