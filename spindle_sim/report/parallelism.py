"""The parallel configurations of a plan whose strategy tunes them, as rows and in half a line."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from spindle_sim.plan import Plan, Slice
from spindle_sim.units import counted

__all__ = ["TaskParallelism", "parallelism", "parallelism_note", "parallelism_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParallelism:
    """How a task is trained; `recomputed_ops` is of how many operators the forward runs twice."""

    task: str
    tensor: int
    pipeline: int
    data: int
    micro_batches: int
    chunks: int
    recomputed_ops: int
    selective: bool

    @property
    def text(self) -> str:
        """The configuration in short."""
        parts = [f"{self.tensor} x {self.pipeline} x {self.data}"]
        if self.micro_batches > 1:
            parts.append(f"{self.micro_batches} micro-batches")
        if self.order:
            parts.append(self.order)
        if self.recomputation:
            parts.append(f"{self.recomputation} recomputed")
        return ", ".join(parts)

    @property
    def order(self) -> str:
        """How the pipeline runs its micro-batches; "" for none."""
        if self.chunks > 1:
            return f"interleaved, {self.chunks} chunks a rank"
        return "1F1B" if self.pipeline > 1 and self.micro_batches > 1 else ""

    @property
    def recomputation(self) -> str:
        """What is recomputed; "" for nothing."""
        parts = [counted(self.recomputed_ops, "operator")] if self.recomputed_ops else []
        return " and ".join([*parts, *(["attention"] if self.selective else [])])


def parallelism(plan: Plan) -> tuple[TaskParallelism, ...]:
    """Give the configuration of each task; none where the strategy doesn't tune any."""
    from spindle_sim.planner import STRATEGIES

    strategy = STRATEGIES.get(plan.strategy)
    if strategy is None or strategy.whole is None:
        return ()
    metaops = plan.metaop_by_id()
    by_task: dict[str, list[Slice]] = {}
    for item in plan.slices:
        by_task.setdefault(metaops[item.metaop].task, []).append(item)
    return tuple(_of_task(plan, task, slices) for task, slices in by_task.items())


def parallelism_rows(plan: Plan) -> list[dict[str, object]]:
    """Give the configurations as `--json` prints them."""
    return [asdict(one) for one in parallelism(plan)]


def parallelism_note(plan: Plan) -> str:
    """Give the configurations in a line, equal ones once; "" for none."""
    by_text: dict[str, list[str]] = {}
    for one in parallelism(plan):
        by_text.setdefault(one.text, []).append(one.task)
    if not by_text:
        return ""
    shown = [
        text if len(by_text) == 1 else f"{text} ({', '.join(tasks)})"
        for text, tasks in by_text.items()
    ]
    return f"tensor x pipeline x data parallelism {'; '.join(shown)}"


def _of_task(plan: Plan, task: str, slices: Sequence[Slice]) -> TaskParallelism:
    groups = {item.devices for item in slices}
    count = plan.micro_batches(slices[0].round)
    stages = len({item.stage for item in slices}) if count > 1 else len(groups)
    return TaskParallelism(
        task=task,
        tensor=slices[0].tp,
        pipeline=len(groups),
        data=slices[0].dp,
        micro_batches=count,
        chunks=stages // len(groups),
        recomputed_ops=sum(item.num_ops for item in slices if item.recompute),
        selective=any(item.selective for item in slices),
    )
