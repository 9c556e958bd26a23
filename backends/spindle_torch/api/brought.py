"""A split model as the engine takes it: sites, and the share of each rank."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spindle_sim.errors import ExecutionError, PlanError, UsageError
from spindle_sim.plan import Plan
from spindle_torch.api.local import LocalParts, localize
from spindle_torch.api.shadow import is_shadow
from spindle_torch.api.sites import split_sites
from spindle_torch.api.splitting import SplitModel
from spindle_torch.pool import OperatorKey
from spindle_torch.shapes import Site
from spindle_torch.telling import all_gather_json

__all__ = ["BroughtModel", "check_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtModel:
    """A user's model for one run; its parameters are divided once."""

    split: SplitModel

    def sites(self) -> dict[str, Site]:
        """Give what flows in and out of each MetaOp."""
        return split_sites(self.split)

    def local_model(
        self, keys: Sequence[OperatorKey], *, seed: int, dtype: torch.dtype, device: torch.device
    ) -> LocalParts:
        """Give the share of a rank, having checked that all ranks begin alike.

        Raises:
            ExecutionError: another rank's initial parameters differ.
        """
        _check_alike(self.split)
        return localize(self.split, keys, seed=seed, dtype=dtype, device=device)


def _check_alike(split: SplitModel) -> None:
    own = hashlib.sha256()
    for name, tensor in sorted(split.root.state_dict().items()):
        own.update(name.encode())
        own.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    held = all_gather_json(own.hexdigest(), str)
    others = [str(rank) for rank, item in enumerate(held) if item != held[0]]
    if others:
        raise ExecutionError(
            f"rank {', '.join(others)}: the model begins with other parameters than on rank 0; call"
            " torch.manual_seed before it is built, or load the same weights on all ranks"
        )


def check_plan(split: SplitModel, plan: Plan) -> None:
    """Check that a plan is one for this model, and that its modules can run as it says.

    Raises:
        PlanError: it is for another model, or divides modules by tensor parallelism.
        UsageError: the model has shapes only.
    """
    if is_shadow(split.root):
        raise UsageError(
            "the model was built on the meta device: it can be planned, but has no numbers to train"
        )
    if plan.workload != split.workload:
        raise PlanError(
            f"the plan is for workload {plan.workload.name!r} of another model or other batches;"
            " plan the workload of these tasks anew"
        )
    for item in plan.slices:
        if item.tp > 1:
            raise PlanError(
                f"slice {item.id} ({item.metaop}) has a tensor-parallel degree of {item.tp}, but a"
                " user's modules run whole; plan with a degree of 1"
            )
