"""What is trained: modules (shared parameters), tasks (which modules on which data), data flows.

The names are the paper's (section 3): a task activates modules, a module is a run of operators,
operators are joined by data flows. All of it is pure data, checked when it is made.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spindle_sim.errors import InputError
from spindle_sim.workload.operators import Operator

__all__ = ["Block", "DataFlow", "Module", "ModuleUse", "Task", "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`repeat` identical operators one after the other, each with parameters of its own.

    `tokens`, where given, replaces the token count of the module's use (a pooled head has 1).
    """

    name: str
    operator: Operator = field(metadata={"discriminator": "kind"})
    repeat: int = 1
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.repeat < 1 or (self.tokens is not None and self.tokens < 1):
            raise InputError(f"block {self.name!r}: repeat and tokens must be at least 1")

    @property
    def parameters(self) -> int:
        """Parameters of all `repeat` operators."""
        return self.repeat * self.operator.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A model component whose parameters every task that names it shares.

    A frozen module has no weight gradient, no synchronization and no optimizer state.
    """

    name: str
    blocks: tuple[Block, ...]
    frozen: bool = False

    def __post_init__(self) -> None:
        """Check that there are blocks and that their names are unique."""
        if not self.blocks:
            raise InputError(f"module {self.name!r}: has no blocks")
        _refuse_duplicates(f"module {self.name!r}", "block", (b.name for b in self.blocks))

    @property
    def parameters(self) -> int:
        """Parameters of all blocks."""
        return sum(block.parameters for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUse:
    """One activation of a module by a task, with the size of the task's data there.

    `items` runs the module on that many items for each sample (eight clips of one video);
    `context_tokens` is what cross-attention attends to.
    """

    name: str
    module: str
    tokens: int
    context_tokens: int = 0
    items: int = 1

    def __post_init__(self) -> None:
        """Check the counts."""
        if min(self.tokens, self.items) < 1 or self.context_tokens < 0:
            raise InputError(f"use {self.name!r}: tokens and items must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """The output of one use is an input of another, within one task."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training task: its global batch in an iteration, its module uses, their flows."""

    name: str
    batch_size: int
    uses: tuple[ModuleUse, ...]
    flows: tuple[DataFlow, ...] = ()

    def __post_init__(self) -> None:
        """Check names, flow ends and that the flows have no cycle."""
        where = f"task {self.name!r}"
        if self.batch_size < 1:
            raise InputError(f"{where}: batch_size must be at least 1")
        if not self.uses:
            raise InputError(f"{where}: activates no module")
        names = [use.name for use in self.uses]
        _refuse_duplicates(where, "use", names)
        _refuse_duplicates(where, "flow", ((f.source, f.target) for f in self.flows))
        for flow in self.flows:
            for end in (flow.source, flow.target):
                if end not in names:
                    raise InputError(f"{where}: flow names {end!r}, which is none of its uses")
        _refuse_cycle(where, names, self.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that one training iteration computes."""

    name: str
    modules: tuple[Module, ...]
    tasks: tuple[Task, ...]
    note: str = ""  # where the configuration comes from and how sure it is

    def __post_init__(self) -> None:
        """Check that names are unique and that every used module exists."""
        if not self.tasks:
            raise InputError(f"workload {self.name!r}: has no tasks")
        _refuse_duplicates(f"workload {self.name!r}", "module", (m.name for m in self.modules))
        _refuse_duplicates(f"workload {self.name!r}", "task", (t.name for t in self.tasks))
        known = {module.name for module in self.modules}
        for task in self.tasks:
            for use in task.uses:
                if use.module not in known:
                    raise InputError(
                        f"task {task.name!r}: use {use.name!r} names module {use.module!r};"
                        f" modules are: {', '.join(sorted(known))}"
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
        modules = tuple(module for module in self.modules if module.name in used)
        return replace(self, tasks=tasks, modules=modules)

    def with_first_tasks(self, count: int) -> "Workload":
        """Give the workload with its first `count` tasks.

        Raises:
            InputError: there are fewer tasks, or `count` is below 1.
        """
        if not 1 <= count <= len(self.tasks):
            raise InputError(f"{self.name} has {len(self.tasks)} tasks: {count} can't be taken")
        return self.with_tasks(task.name for task in self.tasks[:count])

    def with_batch_scale(self, scale: float) -> "Workload":
        """Give the workload with every batch multiplied by `scale`, rounded, at least 1.

        Raises:
            InputError: `scale` isn't positive.
        """
        if not scale > 0:
            raise InputError(f"the batch scale must be positive, not {scale}")
        return replace(
            self,
            tasks=tuple(
                replace(task, batch_size=max(1, round(task.batch_size * scale)))
                for task in self.tasks
            ),
        )


def _refuse_duplicates(where: str, what: str, names: Iterable[object]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{where}: {what} {name!r} is given {count} times")


def _refuse_cycle(where: str, names: Iterable[str], flows: Iterable[DataFlow]) -> None:
    waiting = {name: {f.source for f in flows if f.target == name} for name in names}
    while ready := [name for name, sources in waiting.items() if not sources]:
        for name in ready:
            del waiting[name]
        waiting = {name: sources - set(ready) for name, sources in waiting.items()}
    if waiting:
        raise InputError(f"{where}: the flows among {', '.join(sorted(waiting))} form a cycle")
