"""Splits a user's tasks: modules in, a workload that every planner takes out (section 4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from spindle_sim.errors import InputError
from spindle_sim.workload import (
    Block,
    Custom,
    DataFlow,
    Module,
    ModuleUse,
    OperatorCost,
    Task,
    Variant,
    Workload,
)
from spindle_torch.api.arguments import check_blocks, check_modules, check_name, kind_of
from spindle_torch.api.capture import Capture, Samples, capture
from spindle_torch.api.data import check_asked_apart, load_batch
from spindle_torch.api.leaves import Leaves, find_leaves
from spindle_torch.api.parts import Part, check_draws, join_small_parts, split, step_of
from spindle_torch.api.shadow import is_shadow, shadowed
from spindle_torch.api.standing import standing
from spindle_torch.api.tasks import SpindleTask, TaskGraph
from spindle_torch.api.tracing import check_trace, trace
from spindle_torch.api.units import PartedTask, Unit, UnitUse, unite
from spindle_torch.api.values import Value

__all__ = ["BLOCK_NAME", "SplitModel", "split_tasks"]

BLOCK_NAME = "layer"  # of the one block that each module of the workload has


@dataclass(frozen=True, kw_only=True)
class SplitModel:
    """The tasks, how they are split, and the workload that describes them.

    Parameters and modules are the user's own objects. `uses` are ordered task by task; `traced`
    are the tasks whose data flow torch.fx could check.
    """

    tasks: tuple[SpindleTask, ...]
    graphs: Mapping[str, TaskGraph]
    captures: Mapping[str, Capture]
    leaves: Leaves
    root: nn.ModuleDict
    units: tuple[Unit, ...]
    uses: tuple[UnitUse, ...]
    workload: Workload
    traced: frozenset[str] = frozenset()

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name, each object once."""
        return dict(self.root.named_parameters())

    def task(self, name: str) -> SpindleTask:
        """Give the task of a name."""
        return next(task for task in self.tasks if task.name == name)

    def outputs_of(self, task: str, use: str) -> tuple[Value, ...]:
        """Give what a use hands on."""
        return self._by_metaop[f"{task}/{use}/{BLOCK_NAME}"].outputs

    def use_of(self, metaop: str) -> UnitUse:
        """Give the use that became a MetaOp."""
        return self._by_metaop[metaop]

    @cached_property
    def _by_metaop(self) -> dict[str, UnitUse]:
        return {f"{use.task}/{use.name}/{BLOCK_NAME}": use for use in self.uses}


def split_tasks(
    *tasks: SpindleTask,
    name: str = "tasks",
    blocks: Sequence[type[nn.Module]] = (),
    whole: Sequence[nn.Module] = (),
    coupled: Sequence[nn.Module] = (),
) -> SplitModel:
    """Split the tasks into operators; objects that several tasks hold are shared by them.

    `blocks` are the classes of repeated blocks, if those found by themselves don't do; modules in
    `whole` aren't cut; those in `coupled` get the whole global batch. A few samples are loaded
    and run; of a model on torch's meta device only the shapes are.

    Raises:
        InputError: something can't be split; the module is named, and the way round it.
    """
    check_name(name)
    root = nn.ModuleDict(_roots(tasks))
    check_modules("whole", whole, root)
    check_modules("coupled", coupled, root)
    check_blocks(blocks, root)
    parameters = dict(root.named_parameters())
    mixing = [*coupled, *(module for task in tasks for module in task.coupled)]
    uncut = [*whole, *mixing, *(module for task in tasks for module in task.whole)]
    leaves = find_leaves(dict(root.items()), whole=uncut, coupled=mixing, blocks=blocks)
    mixed = {key for key, module in leaves.modules.items() if any(module is m for m in mixing)}
    graphs = {task.name: task.graph() for task in tasks}
    samples = {task.name: _samples(task, parameters) for task in tasks}
    with standing(root):
        captures = _captures_or_shapes(graphs, samples, leaves, root, mixed)
        traced = frozenset(
            name for name, found in captures.items() if _is_traced(found, graphs[name], leaves)
        )
    parted = _parted(tasks, captures, leaves, parameters, mixed)
    _check_reached(parted, leaves)
    units, uses = unite(parted, {key: value.numel() for key, value in parameters.items()})
    return SplitModel(
        tasks=tasks,
        graphs=graphs,
        captures=captures,
        leaves=leaves,
        root=root,
        units=units,
        uses=uses,
        workload=_workload(name, tasks, captures, units=units, uses=uses, parameters=parameters),
        traced=traced,
    )


def _captures_or_shapes(
    graphs: Mapping[str, TaskGraph],
    samples: Mapping[str, Samples],
    leaves: Leaves,
    root: nn.ModuleDict,
    mixed: set[str],
) -> dict[str, Capture]:
    """Run the tasks; of a model without memory only the shapes are known."""
    if not is_shadow(root):
        return _captures(graphs, samples, leaves, root, mixed)
    given = {name: item.batches for name, item in samples.items()}
    with shadowed(root, given) as fakes:
        shapes = {
            name: replace(item, batches=(fakes[name][0], fakes[name][1]))
            for name, item in samples.items()
        }
        return _captures(graphs, shapes, leaves, root, mixed)


def _captures(
    graphs: Mapping[str, TaskGraph],
    samples: Mapping[str, Samples],
    leaves: Leaves,
    root: nn.ModuleDict,
    mixed: set[str],
) -> dict[str, Capture]:
    parameters = dict(root.named_parameters())
    return {
        name: capture(
            name,
            graph,
            leaves.modules,
            samples=samples[name],
            parameters=parameters,
            boundaries=_first_blocks(leaves),
            coupled=mixed,
        )
        for name, graph in graphs.items()
    }


def _is_traced(found: Capture, graph: TaskGraph, leaves: Leaves) -> bool:
    traced = trace(graph, leaves.modules)
    if traced is not None:
        check_trace(graph.name, found, traced)
    return traced is not None


def _roots(tasks: Sequence[SpindleTask]) -> dict[str, nn.Module]:
    """Give the modules of all tasks by name; what has no parameters may have its task's own."""
    if not tasks:
        raise InputError("there are no tasks to split; give at least one SpindleTask")
    for task in tasks:
        if not isinstance(task, SpindleTask):
            raise InputError(
                f"split_tasks got {kind_of(task)}; give one SpindleTask after the other:"
                " split_tasks(vision, text), or split_tasks(*tasks) of a list"
            )
    names = [task.name for task in tasks]
    if len({*names}) < len(names):
        raise InputError(f"two tasks have one name: {', '.join(names)}; rename one")
    roots: dict[str, nn.Module] = {}
    for task in tasks:
        for name, module in task.modules.items():
            if any(module is known for known in roots.values()):
                continue
            if name in roots and not any(True for _ in module.parameters()):
                name = f"{task.name}:{name}"
            if name in roots:
                raise InputError(
                    f"task {task.name!r}: another module than {name!r} of a task before has its"
                    " name; rename one, or add the same object to share it"
                )
            roots[name] = module
    return roots


def _first_blocks(leaves: Leaves) -> set[str]:
    first: dict[str, tuple[int, str]] = {}
    for leaf, (stack, position) in leaves.stacks.items():
        first[stack] = min(first.get(stack, (position, leaf)), (position, leaf))
    return {leaf for _, leaf in first.values()}


def _samples(task: SpindleTask, parameters: Mapping[str, nn.Parameter]) -> Samples:
    """Load the first samples: two and three where the batch has so many."""
    dtypes = [item.dtype for item in parameters.values() if item.is_floating_point()]
    dtype = dtypes[0] if dtypes else torch.get_default_dtype()
    device = next(iter(parameters.values())).device if parameters else torch.device("cpu")
    device = torch.device("cpu") if device.type == "meta" else device
    most = min(3, task.batch_size)
    counts = (max(1, most - 1), most)
    batches = [
        {
            name: value.to(device)
            for name, value in load_batch(task.name, task.load, 0, (0, count), dtype).items()
        }
        for count in counts
    ]
    check_asked_apart(task.name, task.load, most, dtype)
    return Samples(
        counts=counts,
        batches=(batches[0], batches[1]),
        coupled_loss=task.coupled_loss,
        loss_count=task.loss_count,
    )


def _parted(
    tasks: Sequence[SpindleTask],
    captures: Mapping[str, Capture],
    leaves: Leaves,
    parameters: Mapping[str, nn.Parameter],
    mixed: set[str],
) -> list[PartedTask]:
    """Give the parts of all tasks; what one task joins and another doesn't is left apart."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    held = {
        leaf: [names[id(parameter)] for parameter in module.parameters()]
        for leaf, module in leaves.modules.items()
    }
    small = {
        task.name: split(
            captures[task.name],
            held=held,
            stacks=leaves.stacks,
            coupled=mixed,
            coupled_loss=task.coupled_loss,
        )
        for task in tasks
    }
    apart: set[str] = set()
    while True:
        joined = {name: join_small_parts(parts, apart) for name, parts in small.items()}
        found = _joined_differently(joined.values())
        if found <= apart:
            for name, parts in joined.items():
                check_draws(name, parts)
            return [
                PartedTask(name=name, capture=captures[name], parts=parts)
                for name, parts in joined.items()
            ]
        apart |= found


def _check_reached(tasks: Sequence[PartedTask], leaves: Leaves) -> None:
    """Check that what isn't frozen trains: else AdamW's decay of weights would shrink it."""
    reached = frozenset[str]().union(*(task.capture.reached for task in tasks))
    for task in tasks:
        steps = {step for part in task.parts for step in part.steps}
        for index, call in enumerate(task.capture.calls):
            trains = any(item.requires_grad for item in leaves.modules[call.leaf].parameters())
            if step_of(Value(index, 0)) in steps and trains and call.leaf not in reached:
                raise InputError(
                    f"{call.leaf}: runs, but no task's gradient reaches it (no_grad, detach()), so"
                    " that only weight decay would change it; freeze it: requires_grad_(False)"
                )


def _joined_differently(joined: Iterable[tuple[Part, ...]]) -> set[str]:
    ways: dict[str, set[tuple[str, ...]]] = {}
    for parts in joined:
        for part in parts:
            for key in part.keys:
                ways.setdefault(key, set()).add(part.keys)
    return {key for key, found in ways.items() if len(found) > 1}


def _workload(
    name: str,
    tasks: Sequence[SpindleTask],
    captures: Mapping[str, Capture],
    *,
    units: Sequence[Unit],
    uses: Sequence[UnitUse],
    parameters: Mapping[str, nn.Parameter],
) -> Workload:
    variants = {unit.name: _variants(unit, captures, uses) for unit in units}
    place = {id(use): tokens for found in variants.values() for use, tokens, _ in found}
    made = []
    for task in tasks:
        own = [use for use in uses if use.task == task.name]
        made.append(
            Task(
                name=task.name,
                batch_size=task.batch_size,
                uses=tuple(
                    ModuleUse(
                        name=use.name,
                        module=use.unit,
                        tokens=place[id(use)][0],
                        context_tokens=place[id(use)][1],
                    )
                    for use in own
                ),
                flows=tuple(
                    DataFlow(source=source, target=use.name)
                    for use in own
                    for source in use.sources
                ),
            )
        )
    return Workload(
        name=name,
        note="split from torch modules",
        modules=tuple(_module(unit, variants[unit.name], parameters) for unit in units),
        tasks=tuple(made),
    )


_Variants = list[tuple[UnitUse, tuple[int, int], OperatorCost]]


def _variants(unit: Unit, captures: Mapping[str, Capture], uses: Sequence[UnitUse]) -> _Variants:
    """Give the cost in each use, and tokens that tell it from other uses of another cost."""
    found: _Variants = []
    for use in uses:
        if use.unit != unit.name:
            continue
        tokens, cost = _cost(use, captures[use.task])
        known = {key: item for _, key, item in found}
        number = 0
        while known.get((tokens, number), cost) != cost:
            number += 1
        found.append((use, (tokens, number), cost))
    return found


def _cost(use: UnitUse, found: Capture) -> tuple[int, OperatorCost]:
    """Give the tokens and the cost of one operator of a use."""
    first, last = use.parts[0], use.parts[-1]
    # The code before a stack is a part of its own; before other blocks it is next to nothing.
    tally = last.tally if len(use.parts) > 1 else last.tally.add(last.glue)
    shapes = [found.shape(value) for value in last.outputs]
    output = sum(shape.elements for shape in shapes)
    entering = [found.shape(value) for value in first.inputs]
    # A coupled operator without inputs is coupled all the same.
    gathered = max(1, sum(shape.elements for shape in entering)) if first.coupled else 0
    main = max(shapes or entering, key=lambda shape: shape.elements, default=None)
    tokens = 1 if main is None or len(main.sizes) <= 1 else main.elements // max(1, main.sizes[-1])
    if main is not None and main.batch == len(main.sizes) - 1:
        tokens = main.elements
    cost = tally.cost(output_bytes=2.0 * output, gathered_bytes=2.0 * gathered)
    return max(1, tokens), cost


def _module(unit: Unit, variants: _Variants, parameters: Mapping[str, nn.Parameter]) -> Module:
    (_, first, cost), *_ = variants
    others = {key: item for _, key, item in variants if key != first}
    own = [parameters[name] for name in unit.own[0]]
    operator = Custom(
        name=unit.name,
        parameters=sum(item.numel() for item in own),
        gemms=cost.gemms,
        attentions=cost.attentions,
        traffic_bytes=cost.traffic_bytes,
        kernels=cost.kernels,
        output_bytes=cost.output_bytes,
        saved_bytes=cost.saved_replicated_bytes,
        batch_coupled_bytes=cost.gathered_bytes,
        variants=tuple(
            Variant(tokens=tokens, context_tokens=number, cost=item)
            for (tokens, number), item in others.items()
        ),
        tied_to=tuple(f"{lender}/{BLOCK_NAME}" for lender in unit.tied_to),
        whole=True,
    )
    trained = [parameters[name].requires_grad for names in unit.own for name in names]
    return Module(
        name=unit.name,
        blocks=(Block(name=BLOCK_NAME, operator=operator, repeat=len(unit.own)),),
        frozen=bool(trained) and not any(trained),
    )
