"""What a plan does besides computing: its stages, rounds, recomputation, tensor parallelism."""

from spindle_sim.plan import Plan

__all__ = [
    "most_micro_batches",
    "num_rounds",
    "num_stages",
    "recomputed_metaops",
    "stage_numbers",
    "tensor_parallel",
]


def stage_numbers(plan: Plan) -> dict[tuple[int, int], int]:
    """Give the place, from 1 on without holes, of every (round, stage) of the plan."""
    found = sorted({(item.round, item.stage) for item in plan.slices})
    return {stage: number for number, stage in enumerate(found, 1)}


def num_stages(plan: Plan) -> int:
    """Give the number of stages of all rounds."""
    return len(stage_numbers(plan))


def num_rounds(plan: Plan) -> int:
    """Give how many times the plan goes forward and backward before it synchronizes."""
    return len({item.round for item in plan.slices})


def most_micro_batches(plan: Plan) -> int:
    """Give into how many micro-batches the most cut round goes."""
    return max((item.micro_batches for item in plan.rounds), default=1)


def recomputed_metaops(plan: Plan) -> int:
    """Give how many MetaOps have a slice that computes its forward twice to save memory."""
    return len({item.metaop for item in plan.slices if item.recompute})


def tensor_parallel(plan: Plan) -> int:
    """Give the highest tensor-parallel degree of a slice."""
    return max((item.tp for item in plan.slices), default=1)
