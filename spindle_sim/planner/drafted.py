"""The plans of a strategy that drafts: settings, drafts, placement, and which plan is taken.

What doesn't fit a device's memory is met here: more recomputation where the device is short, then
the next settings (ZeRO-1, tensor parallelism), micro-batches where they are faster or alone fit.
The forecast chooses, both for gradients that synchronize behind the backward and beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from spindle_sim.errors import InfeasibleError
from spindle_sim.plan import Plan, schedule
from spindle_sim.planner.accumulate import can_shrink, cuts, heaviest_last, is_memory_bound
from spindle_sim.planner.assemble import assemble
from spindle_sim.planner.context import Context, NamedStrategy
from spindle_sim.planner.forecast import Forecast, forecast
from spindle_sim.planner.memory_fit import OutOfMemoryError
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.place import place
from spindle_sim.planner.recompute import free_on_device, split
from spindle_sim.planner.settings import (
    Choice,
    choose,
    degrees,
    joint_optimum_s,
    task_groups,
)

__all__ = ["Found", "Job", "best_drafted", "least"]

# Ways to form rounds that leave about the best optimum are all planned: the forecast decides.
ALTERNATIVES = 2
NEAR = 1.004

# Plans end within this of their optimum nearly always: where one doesn't, those of a somewhat
# higher optimum may end earlier.
USUAL = 1.05

# The optimum is summed over MetaLevels: where they overlap a plan may take as little as this of it.
BELOW = 0.8
# Fewer micro-batches aren't planned where their optimum is so many times that of more.
FAR = 1.1

# Placement trades transfers against synchronization by an estimate; both sides of it are tried.
SYNC_WEIGHT = 4.0
# It makes up for no more than this, nor do other rounds of as many micro-batches.
MENDED = 1.1
# Of more MetaOps x devices than this only one way to form rounds is planned where all fits as it
# is: placing another one would take as long again.
LARGE = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Whose drafts are planned, and how; `name` is what the plan says its strategy is.

    `overlap_sync` says how gradients will synchronize; None: either way must do.
    """

    name: str
    strategy: NamedStrategy
    placement: str
    zero1: bool | None
    overlap_sync: bool | None = None

    def found(self, context: Context, plan: Plan) -> "Found":
        """Give a plan with its forecast."""
        beside = True if plan.overlap_sync else self.overlap_sync
        return Found(plan=plan, forecast=forecast(plan, context.estimator, beside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan and how long it is forecast to take."""

    plan: Plan
    forecast: Forecast


def least(found: Sequence[Found], *, close: float = 1.0) -> Found:
    """Give the plan that is forecast to lose least, whichever way gradients synchronize.

    The first one is taken where it loses no more than `close` times what the best one does.
    """
    best = Forecast(
        apart_s=min(one.forecast.apart_s for one in found),
        beside_s=min(one.forecast.beside_s for one in found),
    )
    chosen = min(found, key=lambda one: one.forecast.regret(best))
    first = found[0]
    near = first.forecast.regret(best) <= close * chosen.forecast.regret(best)
    return first if near else chosen


def best_drafted(empty: Context, job: Job, beside: Sequence[Found] = ()) -> Found | None:
    """Give the best plan of a strategy, in micro-batches where memory asks for it.

    `empty` has no settings. Only the last micro-batch has gradients to synchronize beside it, so
    cutting has to pay both with and without overlapped synchronization. What can't be better than
    a plan `beside` it isn't planned: None where that is all.

    Raises:
        InfeasibleError: some device's memory can't hold its part, whatever is recomputed.
    """
    best: Found | None = None
    refused: InfeasibleError | None = None
    for tried in _worth_trying(empty, job, beside):
        context, tried.fewer = tried.empty, best
        try:
            found = tried.best()
        except InfeasibleError as error:
            refused = refused or error
            if best is not None or not can_shrink(context):
                break
            continue
        if found is None:
            if tried.is_short:
                continue
            break
        if best is not None and not _pays(found.forecast, best.forecast):
            break
        best = found
        if not is_memory_bound(context, found.plan, chooses_rounds=job.strategy.chooses_rounds):
            break
    if best is None and refused is not None and not beside:
        raise refused
    return best


def _worth_trying(empty: Context, job: Job, beside: Sequence[Found]) -> "list[_Tries]":
    """Give the numbers of micro-batches, fewest first, but those that recompute far too much."""
    tries: list[_Tries] = []
    for context in cuts(empty):
        tries.append(_Tries(whole=empty, empty=context, job=job, beside=beside))
        if not tries[-1].is_short:
            break
    least_s = min(one.optimum_s for one in tries)
    first = next(at for at, one in enumerate(tries) if one.optimum_s <= FAR * least_s)
    return tries[first:]


def _pays(new: Forecast, old: Forecast) -> bool:
    return new.apart_s < old.apart_s and new.beside_s < old.beside_s


def _hidden(empty: Context, job: Job, found: Found) -> Found:
    """Give a plan with its rounds in another order, where that hides more synchronization."""
    if len({item.round for item in found.plan.slices}) == 1:
        return found
    ordered = heaviest_last(empty, found.plan)
    if ordered is found.plan:
        return found
    other = job.found(empty, ordered)
    hides = other.forecast.beside_s < found.forecast.beside_s * (1 - 1e-9)
    if hides and other.forecast.apart_s <= found.forecast.apart_s * (1 + 1e-9):
        return other
    return found


@dataclass(slots=True, kw_only=True)
class _Tries:
    """A strategy's plans of one workload under all settings; `whole` has no micro-batches.

    `fewer` is the best plan of fewer micro-batches.
    """

    whole: Context
    empty: Context
    job: Job
    beside: Sequence[Found]
    fewer: Found | None = None
    choices: list[tuple[Choice, Context]] = field(init=False)

    def __post_init__(self) -> None:
        """List the settings, best first."""
        self.choices = self._choices()

    @property
    def is_short(self) -> bool:
        """Whether memory is short under the best settings."""
        choice, _ = self.choices[0]
        return bool(choice.settings.recompute) or choice.misfit

    @property
    def optimum_s(self) -> float:
        """What the best settings leave as optimum."""
        choice, context = self.choices[0]
        return context.micro_batches * choice.optimum_s

    def best(self) -> Found | None:
        """Give the best plan under any settings; None where none can beat those there are."""
        choices = self.choices
        found: list[Found] = []
        asked_more = False
        refused: InfeasibleError | None = None
        for choice, context in choices:
            if _is_beaten(BELOW * context.micro_batches * choice.optimum_s, self.beside):
                continue
            if found and self._suffices(choices[0][0], found):
                break
            if found and choice.optimum_s > NEAR * choices[0][0].optimum_s:
                if asked_more or not _may_end_earlier(choice, found):
                    break
                asked_more = True
            try:
                found += self._planned(context, choice, found)
            except InfeasibleError as error:
                refused = refused or error
        if found:
            return least(found)
        if refused is not None:
            raise refused
        return None

    def _suffices(self, first: Choice, found: Sequence[Found]) -> bool:
        """Tell whether other settings aren't worth planning, whatever their optimum."""
        if self.fewer and least(found).forecast.regret(self.fewer.forecast) > MENDED:
            return True
        size = len(self.empty.graph.nodes) * self.empty.cluster.num_devices
        return size > LARGE and not first.settings.recompute and not first.misfit

    def _choices(self) -> list[tuple[Choice, Context]]:
        choices: list[tuple[Choice, Context]] = []
        empty = self.empty
        for settings in degrees(empty.workload, empty.graph, empty.cluster, zero1=self.job.zero1):
            context = replace(empty, settings=settings)
            found = choose(context, list(_groupings(context, self.job.strategy)))
            # The one with most rounds keeps least activations at a time: a last resort.
            roomiest = max(found, key=lambda choice: len(choice.settings.rounds))
            kept = [
                *found[:ALTERNATIVES],
                *([roomiest] if roomiest not in found[:ALTERNATIVES] else []),
            ]
            choices += [(choice, context) for choice in kept]
        return sorted(choices, key=lambda pair: pair[0].optimum_s)

    def _planned(self, context: Context, choice: Choice, found: Sequence[Found]) -> list[Found]:
        """Draft and place, recomputing more while no draft fits the devices' memory."""
        settings = choice.settings
        draft = self.job.strategy.draft
        assert draft is not None, f"{self.job.name} drafts no plan"
        while True:
            tried = replace(context, settings=settings)
            optimum_s = joint_optimum_s(tried)
            plans: list[tuple[Found, tuple[DraftSlice, ...]]] = []
            refused: tuple[OutOfMemoryError, tuple[DraftSlice, ...]] | None = None
            for whole in draft(tried):
                drafts = split(whole, settings.recompute)
                known = [*self.beside, *found, *(one for one, _ in plans)]
                if _is_beaten(_least_s(tried, drafts), known):
                    continue
                try:
                    plans.append((self._placed(tried, drafts, optimum_s), drafts))
                except OutOfMemoryError as error:
                    refused = refused or (error, drafts)
            if plans:
                best = least([one for one, _ in plans])
                rivals = [*found, *([self.fewer] if self.fewer else [])]
                if rivals and best.forecast.regret(least(rivals).forecast) > MENDED:
                    return [best]
                drafts = next(drafts for one, drafts in plans if one is best)
                return [best, *self._less_synchronized(tried, best.plan, drafts)]
            if refused is None:
                return []
            shortage, drafts = refused
            more = free_on_device(tried, shortage.metaops, shortage.short_bytes, drafts)
            if not more:
                raise shortage
            settings = replace(settings, recompute=more)

    def _placed(
        self,
        context: Context,
        drafts: tuple[DraftSlice, ...],
        optimum_s: float,
        sync_weight: float = 1.0,
    ) -> Found:
        devices = place(context, drafts, method=self.job.placement, sync_weight=sync_weight)
        plan = assemble(context, drafts, devices, strategy=self.job.name, optimum_s=optimum_s)
        return _hidden(self.whole, self.job, self.job.found(context, plan))

    def _less_synchronized(
        self, context: Context, plan: Plan, drafts: tuple[DraftSlice, ...]
    ) -> list[Found]:
        """Give the drafts placed again with synchronization weighing more."""
        if all(draft.devices is not None for draft in drafts):
            return []
        try:
            return [self._placed(context, drafts, plan.optimum_s, SYNC_WEIGHT)]
        except OutOfMemoryError:
            return []


def _may_end_earlier(choice: Choice, found: Sequence[Found]) -> bool:
    """Tell whether a choice that fits as it is may give a plan that beats those there are."""
    reached_s = min(schedule(one.plan).makespan_s for one in found)
    fits = not choice.settings.recompute and not choice.misfit
    return fits and USUAL * choice.optimum_s <= reached_s


def _is_beaten(least_s: float, known: Sequence[Found]) -> bool:
    """Tell whether what takes at least so long is worse than a plan there is, in either way."""
    return any(least_s >= one.forecast.longest_s for one in known)


def _least_s(context: Context, drafts: tuple[DraftSlice, ...]) -> float:
    """Give what no placement of the drafts can beat.

    Of drafts with devices the longest device's time, else their device-time over all devices.
    """
    busy_s = [0.0] * context.cluster.num_devices
    total_s = 0.0
    for draft in drafts:
        seconds = _seconds(context, draft)
        total_s += draft.num_devices * seconds
        for device in draft.devices or ():
            busy_s[device] += seconds
    return context.micro_batches * max(max(busy_s), total_s / context.cluster.num_devices)


def _seconds(context: Context, draft: DraftSlice) -> float:
    curve = context.curve(draft.metaop, recompute=draft.recompute)
    return draft.num_ops * curve.time_s(draft.num_devices)


def _groupings(context: Context, strategy: NamedStrategy) -> Iterator[tuple[tuple[str, ...], ...]]:
    tasks = tuple(task.name for task in context.workload.tasks)
    if strategy.one_task_a_round:
        yield tuple((task,) for task in tasks)
        return
    yield (tasks,)
    if strategy.chooses_rounds:
        for count in (2, 3, 4, 5, 6, 8, 12, 16, 32):
            if count <= len(tasks):
                yield task_groups(context, count)
