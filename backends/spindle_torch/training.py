"""The real work of a rank: layers, losses, gradients and the optimizer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import torch

from spindle_sim.plan import Backward, MetaOp, Plan, Slice
from spindle_sim.plan.cuts import cut_flows
from spindle_torch.calls import SliceCall, Visits
from spindle_torch.data import DataSource
from spindle_torch.drawing import seed_of
from spindle_torch.gradients import Gradients
from spindle_torch.groups import Groups
from spindle_torch.holding import check_memory, hold, make_optimizer
from spindle_torch.hooks import when_all_have_gradients
from spindle_torch.intervals import held_samples
from spindle_torch.model import Brought, CustomOperator, Model, local_model
from spindle_torch.pool import (
    OperatorKey,
    PoolGroup,
    held_operators,
    parameter_pool,
    used_operators,
)
from spindle_torch.shapes import Site, flow_shape, sites
from spindle_torch.sharded_optimizer import ShardedOptimizer
from spindle_torch.tokens import TokenShards

__all__ = ["Training", "make_training"]

_Place = tuple[str, int]  # a slice and a micro-batch


@dataclass(slots=True)
class _Kept:
    """A slice between its forward and its backward."""

    leaves: dict[int, torch.Tensor]
    output: torch.Tensor | None
    loss: torch.Tensor | None


@dataclass(slots=True, kw_only=True)
class Training:
    """Computes the slices of one rank; make it with `make_training`.

    With `autocast` layers compute in that precision as `torch.autocast` has it, and activations are
    rounded to it between slices, whether they are sent or stay: losses don't depend on where slices
    are. Within a slice they are as exact as in a model that isn't cut.
    """

    plan: Plan
    rank: int
    groups: Groups
    model: Model
    seed: int
    dtype: torch.dtype
    device: torch.device
    custom: Mapping[str, CustomOperator]
    sites: dict[str, Site]
    pool: tuple[PoolGroup, ...]
    optimizer: torch.optim.Optimizer | ShardedOptimizer | None
    autocast: torch.dtype | None = None
    draws_data: bool = True  # a user's model loads its own
    _gradients: Gradients = field(init=False)
    _metaops: dict[str, MetaOp] = field(init=False)
    _inputs: dict[str, tuple[int, ...]] = field(init=False)
    _elements: tuple[int, ...] = field(init=False)
    _cut: frozenset[int] = field(init=False)
    _visits: Visits = field(default_factory=Visits)
    _calls: dict[_Place, SliceCall] = field(default_factory=dict)
    _kept: dict[_Place, _Kept] = field(default_factory=dict)
    _losses: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _data_ahead: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put the flows into each slice in the order in which its operators take them."""
        self._gradients = Gradients(
            rank=self.rank,
            device=self.device,
            model=self.model,
            pool=self.pool,
            optimizer=self.optimizer,
        )
        self._metaops = self.plan.metaop_by_id()
        slices = self.plan.slice_by_id()
        self._cut = cut_flows(self.plan)
        self._elements = tuple(
            flow_shape(self.plan, self.sites, index, self.rank, is_cut=index in self._cut).elements
            for index in range(len(self.plan.flows))
        )
        into: dict[str, list[int]] = {}
        for index, flow in enumerate(self.plan.flows):
            into.setdefault(flow.target_slice, []).append(index)
        self._inputs = {}
        for name, indexes in into.items():
            sources = self.sites[slices[name].metaop].sources
            if not slices[name].first_op:
                place = {
                    index: sources.index(slices[self.plan.flows[index].source_slice].metaop)
                    for index in indexes
                }
                indexes.sort(key=place.__getitem__)
            self._inputs[name] = tuple(indexes)

    @property
    def row_dtype(self) -> torch.dtype:
        """The precision of activations between slices, and of their gradients."""
        return self.dtype if self.autocast is None else self.autocast

    def elements(self, flow: int) -> int:
        """Give the numbers that a flow has for one sample."""
        return self._elements[flow]

    def prepare(self, step: int) -> None:
        """Draw the data of this rank's samples; what modules draw at random depends on the step."""
        torch.manual_seed(seed_of(f"step {step} of rank {self.rank}", self.seed))
        self._calls = {
            (item.id, micro_batch): self._call(item, micro_batch, self._data(item, step))
            for item in self.plan.slices
            if self.rank in item.devices
            for micro_batch in range(self.plan.micro_batches(item.round))
        }
        self._losses = {}

    def read_from(self, batches: Mapping[str, int], step: int) -> None:
        """Have each task read its data from this batch on in this step, and the next in the next.

        Without it a task reads the batch that has the number of the step.
        """
        self._data_ahead = {task: number - step for task, number in batches.items()}

    def forward(
        self, item: Slice, inputs: Mapping[int, torch.Tensor], micro_batch: int
    ) -> torch.Tensor | None:
        """Compute a slice and keep what its backward needs; nothing where there are no samples.

        A rank without samples calls no layers, which may not bear it. A batch that is gathered it
        takes part in all the same.
        """
        call = self._calls[item.id, micro_batch]
        if not call.num_samples and call.samples is None:
            self._visits.finish()
            return None
        leaves = {
            index: inputs[index].detach().requires_grad_(self.plan.flows[index].gradient)
            for index in self._inputs.get(item.id, ())
        }
        trains = self._metaops[item.metaop].backward is not Backward.NONE
        with torch.set_grad_enabled(trains):
            output, loss = self._computed(call, [leaf.to(self.dtype) for leaf in leaves.values()])
        self._visits.finish()
        if loss is not None and not call.shard:
            # Not yet a number: a GPU would have to be waited for.
            self._losses.setdefault(call.site.task, []).append(loss.detach())
        if trains:
            self._kept[item.id, micro_batch] = _Kept(leaves, output, loss)
        return output

    def backward(
        self,
        item: Slice,
        gradients: Mapping[int, torch.Tensor],
        micro_batch: int,
        watched: Mapping[int, Callable[[], None]],
    ) -> Mapping[int, torch.Tensor]:
        """Give the gradients of the inputs; those of parameters are added up where they lie."""
        kept = self._kept.pop((item.id, micro_batch), _Kept({}, None, None))
        ends: list[torch.Tensor] = []
        given: list[torch.Tensor | None] = []
        if kept.output is not None and kept.output.requires_grad and gradients:
            ends.append(kept.output)
            given.append(_added(list(gradients.values())))
        if kept.loss is not None and kept.loss.requires_grad:
            ends.append(kept.loss)
            given.append(None)
        if ends:
            with self._watching(item, watched):
                torch.autograd.backward(ends, given)
        self._visits.finish()
        # An input that the output doesn't depend on still owes its sender a gradient: nothing.
        return {
            index: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for index, leaf in kept.leaves.items()
            if leaf.requires_grad
        }

    def gather_with(self, come_to: Callable[[int | None], None]) -> None:
        """Take what has the parameters of the next slice's operators there (ZeRO-3)."""
        self._visits.come_to = come_to

    def gradient(self, group: int) -> torch.Tensor:
        """Give a group's gradients as one flat tensor, in the order of names."""
        return self._gradients.flat(group)

    def take_gradient(self, group: int, total: torch.Tensor) -> None:
        """Cut the sum up again."""
        self._gradients.take(group, total)

    def squared_norm(self) -> torch.Tensor:
        """Give this rank's part of the squared norm of all gradients, in float64."""
        return self._gradients.squared_norm()

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients."""
        self._gradients.scale(factor)

    def step(self) -> None:
        """Step AdamW; a parameter that no sample touched has a gradient of zero."""
        self._gradients.step()

    def gathering(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a group's flat parameters, and the range that this rank stepped, apart from them."""
        assert isinstance(self.optimizer, ShardedOptimizer), "nothing is sharded"
        item = self.optimizer.ranges[group]
        item.hold()
        own = item.own.detach()
        return item.numbers, own if item.is_divided else own.clone()

    def gathered(self, group: int) -> None:
        """Nothing is left to do: the parameters are views of what was gathered."""

    def drop(self, group: int) -> None:
        """Give up the ranges of others (ZeRO-3)."""
        assert isinstance(self.optimizer, ShardedOptimizer), "nothing is sharded"
        self.optimizer.ranges[group].release()

    def losses(self) -> dict[str, float]:
        """Give this rank's part of each task's loss."""
        return {task: sum(loss.item() for loss in losses) for task, losses in self._losses.items()}

    def synchronize_device(self) -> None:
        """Wait for a GPU; a CPU is done when a call returns."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _computed(
        self, call: SliceCall, inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.autocast is None:
            return self.model.forward(call, inputs)
        with torch.autocast(self.device.type, dtype=self.autocast):
            output, loss = self.model.forward(call, inputs)
        return None if output is None else output.to(self.row_dtype), loss

    @contextmanager
    def _watching(self, item: Slice, watched: Mapping[int, Callable[[], None]]) -> Iterator[None]:
        """Tell each watched group while a slice's backward runs, once its gradients are there."""
        used = set(chain.from_iterable(used_operators(self.plan, item)))
        handles = [
            handle
            for group, tell in watched.items()
            for handle in when_all_have_gradients(self._gradients.used_by(used, group), tell)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _data(self, item: Slice, step: int) -> DataSource:
        batch = step + self._data_ahead.get(self.sites[item.metaop].task, 0)
        return DataSource(seed=self.seed, step=batch, dtype=self.dtype, device=self.device)

    def _call(self, item: Slice, micro_batch: int, data: DataSource) -> SliceCall:
        site = self.sites[item.metaop]
        batch = site.batch // self.plan.micro_batches(item.round)
        first, last = (
            micro_batch * batch + place for place in held_samples(item, self.rank, batch)
        )
        position = item.devices.index(self.rank)
        shard, replica = position % item.tp, position // item.tp
        custom = self.custom.get(site.parameter_set)
        ends = item.first_op + item.num_ops == site.num_ops
        tensor = self.groups.members(item.devices[replica * item.tp : (replica + 1) * item.tp])
        leaving = (i for i, flow in enumerate(self.plan.flows) if flow.source_slice == item.id)
        return SliceCall(
            site=site,
            first_op=item.first_op,
            num_ops=item.num_ops,
            shard=shard,
            num_shards=item.tp,
            data=data.inputs(site, first, last, custom.shape if custom else None)
            if self.draws_data and not item.first_op
            else None,
            targets=data.targets(site, first, last) if self.draws_data and ends else None,
            tensor=tensor,
            samples=self.groups.members(item.devices[shard :: item.tp])
            if self._metaops[item.metaop].batch_coupled
            else None,
            recompute=item.recompute,
            selective=item.selective,
            visits=self._visits if self.plan.shard_parameters else None,
            tokens=TokenShards(members=tensor) if item.sequence_parallel and tensor else None,
            cut_inputs=tuple(flow in self._cut for flow in self._inputs.get(item.id, ())),
            cut_output=any(flow in self._cut for flow in leaving),
            step=data.step,
            first_sample=first,
            last_sample=last,
        )


def _added(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Give the sum over consumers; that of a single one as it is, not copied."""
    return torch.stack(list(gradients)).sum(dim=0) if len(gradients) > 1 else gradients[0]


def make_training(
    plan: Plan,
    rank: int,
    groups: Groups,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    custom: Mapping[str, CustomOperator] | None = None,
    pool: tuple[PoolGroup, ...] | None = None,
    autocast: torch.dtype | None = None,
    brought: Brought | None = None,
) -> Training:
    """Make the layers that a rank's slices run, and nothing else (localization, section 3.6).

    `pool` is what is synchronized at once, if not whole parameter groups. With `brought` the layers
    are a user's own.

    Raises:
        InputError: the workload doesn't say what an operator computes or how inputs are joined.
        PlanError: the rank would hold other parameters than the plan says.
    """
    custom = custom or {}
    pool = parameter_pool(plan) if pool is None else pool
    keys = [key for key, ranks in held_operators(plan, tied=True).items() if rank in ranks]

    def make(wanted: Sequence[OperatorKey]) -> Model:
        if brought is not None:
            return brought.local_model(wanted, seed=seed, dtype=dtype, device=device)
        return local_model(
            plan.workload, wanted, seed=seed, dtype=dtype, device=device, custom=custom
        )

    model, ranges = hold(plan, pool, rank, keys, make)
    check_memory(plan, rank, model)
    found = (
        sites(plan.workload, {name: item.shape for name, item in custom.items()})
        if brought is None
        else brought.sites()
    )
    return Training(
        plan=plan,
        rank=rank,
        groups=groups,
        model=model,
        seed=seed,
        dtype=dtype,
        device=device,
        custom=custom,
        sites=found,
        pool=pool,
        optimizer=make_optimizer(pool, rank, model, ranges),
        autocast=autocast,
        draws_data=brought is None,
    )
