"""WHO RUNS WHAT, WHERE, WHEN: the plan, the one interface of planner, simulator and real backend.

Pure data. Names are the paper's: a MetaOp (section 3.1) is `num_ops` consecutive equal operators of
one task; a slice is a run of a MetaOp's operators on one device group; slices of one stage are made
to run side by side (section 3.4).

How a plan is executed: each device runs its slices in `(round, stage, start_s)` order, round by
round: the forward of all slices of the round, then their backward in reverse order, then the next
round. After the last round every parameter group synchronizes its gradients, and the optimizer
steps. A slice starts when its devices are free and its inputs have arrived; nothing else is waited
for. (The paper has one round; `seq`, which trains task after task, has one a task.)

A round may cut the global batch into micro-batches (`Round`): each of its slices then runs once for
each, on batch / micro_batches samples, in the order that the round states; its `forward_s` and
`backward_s` are those of one micro-batch, its `start_s` that of the first.

Devices of a slice are ordered: position d * tp + t is tensor-parallel rank t of data-parallel rank
d, which computes samples [d * batch / dp, (d + 1) * batch / dp) of the batch or micro-batch.
"""

from dataclasses import dataclass
from enum import StrEnum

from spindle_sim.cluster import Cluster
from spindle_sim.workload import Workload

__all__ = [
    "FORMAT_VERSION",
    "Backward",
    "DeviceMemory",
    "Flow",
    "InputHashes",
    "MetaOp",
    "Order",
    "ParameterGroup",
    "ParameterRange",
    "Plan",
    "Round",
    "Slice",
]

FORMAT_VERSION = "1.1"


class Backward(StrEnum):
    """What the backward of a MetaOp computes."""

    FULL = "full"  # gradients of inputs and weights
    INPUT_ONLY = "input_only"  # the module is frozen, but something before it trains
    WEIGHT_ONLY = "weight_only"  # nothing before it trains (or it is first)
    NONE = "none"  # frozen, and nothing before it trains


class Order(StrEnum):
    """In which order a device runs the micro-batches of a round.

    Under 1F1B the stages of the round are a pipeline: each device has equally many, v of p * v, and
    those of pipeline rank r are r, r + p, r + 2 p, ...: its model chunks. All slices of one chunk
    run behind one another. The other orders take any stages on any devices.
    """

    FLUSH = "flush"  # all forwards, micro-batch by micro-batch, then all backwards in reverse
    ONE_FORWARD_ONE_BACKWARD = "1f1b"  # Megatron-LM's; interleaved where v > 1
    ACCUMULATE = "accumulate"  # each micro-batch: all its forwards, its backwards in reverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How one round is cut into micro-batches; a round without an entry has one, flushed."""

    round: int
    micro_batches: int = 1
    order: Order = Order.FLUSH


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaOp:
    """`num_ops` consecutive operators of equal workload of one task (section 3.1).

    Sizes are those of one operator; FLOP are of the whole global batch, forward, model FLOP
    (no recomputation); other activation sizes are of one sample.
    """

    id: str
    task: str
    module: str
    kind: str
    num_ops: int
    batch: int
    level: int  # MetaLevel
    predecessors: tuple[str, ...]
    parameter_set: str  # "module/block": operator i of the MetaOp uses parameters i of the set
    parameters: int
    sharded_parameters: int  # the part of `parameters` that tensor parallelism divides
    frozen: bool
    backward: Backward
    flops: float
    input_bytes: float
    output_bytes: float
    saved_bytes: float
    saved_replicated_bytes: float
    batch_coupled: bool = False
    saved_attention_bytes: float = 0.0  # the part of `saved_bytes` that `Slice.selective` drops
    context_bytes: float = 0.0  # cross-attention's, which comes with what enters each operator

    def hands(self, target: "MetaOp") -> float:
        """Give the bytes of one sample that flow from a slice of it into one of `target`.

        From slice to slice, and to another MetaOp of the same use, a context flows with the output.
        """
        same_use = self.id.rpartition("/")[0] == target.id.rpartition("/")[0]
        return self.output_bytes + (target.context_bytes if same_use else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Operators [first_op, first_op + num_ops) of a MetaOp on one device group, n = dp * tp.

    `forward_s` and `backward_s` are of the whole slice and include tensor-parallel collectives
    and, where `recompute`, the second forward (in the backward). `start_s` is when its forward
    starts if every transfer is free.
    """

    id: str
    metaop: str
    first_op: int
    num_ops: int
    stage: int
    devices: tuple[int, ...]
    dp: int
    tp: int
    forward_s: float
    backward_s: float
    start_s: float
    round: int = 0
    recompute: bool = False  # only the slice's operators' inputs are kept for the backward
    selective: bool = False  # the attention cores are computed again, their scores aren't kept
    sequence_parallel: bool = False  # what tp doesn't divide otherwise is cut along the tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Activations from one slice to another; `bytes` of the whole global batch.

    They count the context, which travels with the activations of cross-attention's layers.

    `gradient` tells whether as many bytes flow back in the backward.
    """

    source_slice: str
    target_slice: str
    bytes: float
    gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRange:
    """Operators [first_op, first_op + num_ops) of a parameter set."""

    parameter_set: str
    first_op: int
    num_ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """One entry D_i -> {W_j} of the global parameter device group pool (section 3.6).

    `bytes` is what one device of the group all-reduces: the bf16 gradients of its shard. Groups of
    tensor-parallel shards differ by `shard`. A group of one device synchronizes nothing.
    """

    devices: tuple[int, ...]
    parameter_sets: tuple[ParameterRange, ...]
    bytes: float
    shard: int = 0
    num_shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What one device holds at its peak."""

    device: int
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float  # at its peak

    @property
    def total_bytes(self) -> float:
        """The peak."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputHashes:
    """SHA-256 of the canonical JSON of what the plan was made from; of the profile, its file."""

    workload: str
    cluster: str
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a backend needs, and what the plan was made from.

    `optimum_s` is the Theorem 1 optimum, summed over MetaLevels, forward and backward.
    `zero1` shards the optimizer states over each parameter group (ZeRO stage 1),
    `shard_gradients` the gradients too (stage 2), `shard_parameters` the parameters too (stage 3).
    `overlap_sync` lets gradients synchronize in buckets while backwards still run; without it a
    backend may still be asked to.
    """

    format_version: str
    strategy: str
    inputs: InputHashes
    workload: Workload
    cluster: Cluster
    metaops: tuple[MetaOp, ...]
    slices: tuple[Slice, ...]
    flows: tuple[Flow, ...]
    parameter_groups: tuple[ParameterGroup, ...]
    memory: tuple[DeviceMemory, ...]
    optimum_s: float
    zero1: bool = False
    profile: str = ""  # how the times came about: "analytic model a100-fit-1", "measured ..."
    seed: int = 0
    tool: str = "spindle-sim"
    rounds: tuple[Round, ...] = ()
    shard_gradients: bool = False
    shard_parameters: bool = False
    overlap_sync: bool = False

    @property
    def zero_stage(self) -> int:
        """ZeRO stage, 0 to 3."""
        return self.zero1 + self.shard_gradients + self.shard_parameters

    def micro_batches(self, round_number: int) -> int:
        """Give the number of micro-batches of a round."""
        return next((item.micro_batches for item in self.rounds if item.round == round_number), 1)

    def metaop_by_id(self) -> dict[str, MetaOp]:
        """Give the MetaOps by their ids."""
        return {metaop.id: metaop for metaop in self.metaops}

    def slice_by_id(self) -> dict[str, Slice]:
        """Give the slices by their ids."""
        return {item.id: item for item in self.slices}
