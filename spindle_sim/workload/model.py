"""What is trained: modules (shared parameters), tasks (which modules on which data), data flows.

The names are the paper's (section 3): a task activates modules, a module is a run of operators,
operators are joined by data flows. All of it is pure data, checked when it is made.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar

from spindle_sim.errors import InputError, Problem, suggestion
from spindle_sim.names import name_problems
from spindle_sim.units import counted
from spindle_sim.workload.bounds import MAX_COUNT, Count, Name, Size
from spindle_sim.workload.operators import Operator

__all__ = ["MAX_OPERATORS", "Block", "DataFlow", "Module", "ModuleUse", "Task", "Workload"]

MAX_OPERATORS = 200_000  # nodes of the graph: far above any model, a slip of the finger


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`repeat` identical operators one after the other, each with parameters of its own.

    `tokens`, where given, replaces the token count of the module's use (a pooled head has 1).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: Name
    operator: Operator = field(metadata={"discriminator": "kind"})
    repeat: Count = 1
    tokens: Count | None = None

    def __post_init__(self) -> None:
        """Check name and counts."""
        _refuse(
            [
                *name_problems(self.name, where="block", part=True),
                *_below(f"block {self.name!r}", 1, repeat=self.repeat, tokens=self.tokens),
            ]
        )

    @property
    def parameters(self) -> int:
        """Parameters of all `repeat` operators."""
        return self.repeat * self.operator.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A model component whose parameters every task that names it shares.

    A frozen module has no weight gradient, no synchronization and no optimizer state.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: Name
    blocks: tuple[Block, ...]
    frozen: bool = False

    def __post_init__(self) -> None:
        """Check names, that there are blocks and that their names are unique."""
        _refuse(name_problems(self.name, where="module", part=True))
        where = f"module {self.name!r}"
        if not self.blocks:
            raise InputError(Problem(path="blocks", message=f"{where}: has no blocks"))
        _refuse(_duplicates(where, "blocks", (block.name for block in self.blocks)))

    @property
    def parameters(self) -> int:
        """Parameters of all blocks."""
        return sum(block.parameters for block in self.blocks)

    @property
    def tied_to(self) -> tuple[str, ...]:
        """Parameter sets ("module/block") that its operators use besides their own."""
        return tuple(
            name for block in self.blocks for name in getattr(block.operator, "tied_to", ())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUse:
    """One activation of a module by a task, with the size of the task's data there.

    `items` runs the module on that many items for each sample (eight clips of one video);
    `context_tokens` is what cross-attention attends to.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: Name
    module: str
    tokens: Count
    context_tokens: Size = 0
    items: Count = 1

    def __post_init__(self) -> None:
        """Check name and counts."""
        where = f"use {self.name!r}"
        _refuse(
            [
                *name_problems(self.name, where="use", part=True),
                *_below(where, 1, tokens=self.tokens, items=self.items),
                *_below(where, 0, context_tokens=self.context_tokens),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """The output of one use is an input of another, within one task."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training task: its global batch in an iteration, its module uses, their flows."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: Name
    batch_size: Count
    uses: tuple[ModuleUse, ...]
    flows: tuple[DataFlow, ...] = ()

    def __post_init__(self) -> None:
        """Check names, flow ends and that the flows have no cycle."""
        where = f"task {self.name!r}"
        names = [use.name for use in self.uses]
        problems = [
            *name_problems(self.name, where="task", part=True),
            *_below(where, 1, batch_size=self.batch_size),
            *_duplicates(where, "uses", names),
            *_duplicates(where, "flows", (f"{f.source} -> {f.target}" for f in self.flows)),
            *_dangling(where, names, self.flows),
        ]
        if not self.uses:
            problems.append(Problem(path="uses", message=f"{where}: activates no module"))
        _refuse(problems)
        _refuse(_cycle(where, names, self.flows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that one training iteration computes."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: Name
    modules: tuple[Module, ...]
    tasks: tuple[Task, ...]
    note: str = ""  # where the configuration comes from and how sure it is

    def __post_init__(self) -> None:
        """Check that names are unique and that every used module exists."""
        where = f"workload {self.name!r}"
        problems = [
            *name_problems(self.name, where="workload", part=True),
            *_duplicates(where, "modules", (module.name for module in self.modules)),
            *_duplicates(where, "tasks", (task.name for task in self.tasks)),
            *_unknown_modules(self.tasks, {module.name for module in self.modules}),
            *_missing_contexts(self.modules, self.tasks),
            *_unknown_lenders(self.modules),
        ]
        if not self.tasks:
            problems.append(Problem(path="tasks", message=f"{where}: has no tasks"))
        _refuse(problems)
        length = {module.name: sum(b.repeat for b in module.blocks) for module in self.modules}
        operators = sum(length[use.module] for task in self.tasks for use in task.uses)
        if operators > MAX_OPERATORS:
            raise InputError(
                f"{where}: {operators:,} operators are more than the {MAX_OPERATORS:,} that can be"
                " planned for"
            )

    @property
    def parameters(self) -> int:
        """Parameters of all modules, each counted once."""
        return sum(module.parameters for module in self.modules)

    def module(self, name: str) -> Module:
        """Give the module of that name."""
        return next(module for module in self.modules if module.name == name)

    def task(self, name: str) -> Task:
        """Give the task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def with_tasks(self, names: Iterable[str]) -> "Workload":
        """Give the workload with these tasks only, in its own order, and the modules they use.

        Raises:
            InputError: a name is no task of this workload.
        """
        wanted = list(names)
        known = [task.name for task in self.tasks]
        for name in wanted:
            if name not in known:
                raise InputError(f"no task {name!r} in {self.name}; tasks are: {', '.join(known)}")
        tasks = tuple(task for task in self.tasks if task.name in wanted)
        used = {use.module for task in tasks for use in task.uses}
        for module in self.modules:
            if module.name in used:  # what it is tied to must be there
                used |= {name.split("/", 1)[0] for name in module.tied_to}
        modules = tuple(module for module in self.modules if module.name in used)
        return replace(self, tasks=tasks, modules=modules)

    def with_first_tasks(self, count: int) -> "Workload":
        """Give the workload with its first `count` tasks.

        Raises:
            InputError: there are fewer tasks, or `count` is below 1.
        """
        if not 1 <= count <= len(self.tasks):
            tasks = counted(len(self.tasks), "task")
            raise InputError(f"{self.name} has {tasks}: {count} can't be taken")
        return self.with_tasks(task.name for task in self.tasks[:count])

    def with_batch_scale(self, scale: float) -> "Workload":
        """Give the workload with every batch multiplied by `scale`, rounded, at least 1.

        Raises:
            InputError: `scale` isn't positive and finite, or makes a batch too large.
        """
        if not 0 < scale < inf:
            raise InputError(f"the batch scale must be positive and finite, not {scale}")
        if any(task.batch_size * scale > MAX_COUNT for task in self.tasks):
            raise InputError(f"the batch scale {scale:g} gives batches above {MAX_COUNT:.0e}")
        return replace(
            self,
            tasks=tuple(
                replace(task, batch_size=max(1, round(task.batch_size * scale)))
                for task in self.tasks
            ),
        )


def _refuse(problems: Iterable[Problem]) -> None:
    found = list(problems)
    if found:
        raise InputError(*found)


def _below(where: str, least: int, **counts: int | None) -> Iterator[Problem]:
    for field_name, count in counts.items():
        if count is not None and count < least:
            message = f"{where}: must be at least {least}, not {count}"
            yield Problem(path=field_name, message=message)
        elif count is not None and count > MAX_COUNT:
            message = f"{where}: must be at most {MAX_COUNT:.0e}"
            yield Problem(path=field_name, message=message)


def _duplicates(where: str, field_name: str, names: Iterable[str]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in seen:
            message = f"{where}: {name!r} is given twice, first as {field_name}[{seen[name]}]"
            yield Problem(path=f"{field_name}[{index}]", message=message)
        seen.setdefault(name, index)


def _dangling(where: str, names: Collection[str], flows: Iterable[DataFlow]) -> Iterator[Problem]:
    for index, flow in enumerate(flows):
        for field_name, end in (("source", flow.source), ("target", flow.target)):
            if end not in names:
                message = f"{where}: {end!r} is none of its uses; {suggestion(end, names)}"
                yield Problem(path=f"flows[{index}].{field_name}", message=message)


def _unknown_modules(tasks: Iterable[Task], known: Collection[str]) -> Iterator[Problem]:
    for index, task in enumerate(tasks):
        for position, use in enumerate(task.uses):
            if use.module not in known:
                message = f"task {task.name!r}: no module {use.module!r}"
                path = f"tasks[{index}].uses[{position}].module"
                yield Problem(path=path, message=f"{message}; {suggestion(use.module, known)}")


def _missing_contexts(modules: Iterable[Module], tasks: Iterable[Task]) -> Iterator[Problem]:
    crossing = {
        module.name
        for module in modules
        for block in module.blocks
        if getattr(block.operator, "context_width", None) is not None
    }
    for index, task in enumerate(tasks):
        for position, use in enumerate(task.uses):
            if use.module in crossing and use.context_tokens < 1:
                message = f"task {task.name!r}: module {use.module!r} attends to a context"
                path = f"tasks[{index}].uses[{position}].context_tokens"
                yield Problem(path=path, message=f"{message}; give its length, at least 1")


def _unknown_lenders(modules: tuple[Module, ...]) -> Iterator[Problem]:
    known = {f"{module.name}/{block.name}" for module in modules for block in module.blocks}
    for index, module in enumerate(modules):
        for name in module.tied_to:
            if name not in known:
                message = f"module {module.name!r}: is tied to {name!r}, which is no parameter set"
                hint = suggestion(name, known)
                yield Problem(path=f"modules[{index}].blocks", message=f"{message}; {hint}")


def _cycle(where: str, names: Iterable[str], flows: Iterable[DataFlow]) -> Iterator[Problem]:
    waiting = {name: {f.source for f in flows if f.target == name} for name in names}
    while ready := [name for name, sources in waiting.items() if not sources]:
        for name in ready:
            del waiting[name]
        waiting = {name: sources - set(ready) for name, sources in waiting.items()}
    if waiting:
        message = f"{where}: the flows among {', '.join(sorted(waiting))} form a cycle"
        yield Problem(path="flows", message=message)
