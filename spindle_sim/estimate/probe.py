"""What a profiler measures: single operators at per-device batches, and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.estimate.profile import (
    PROFILE_VERSION,
    LinkPoint,
    OperatorPoint,
    OptimizerPoint,
    Profile,
    ProfiledOperator,
    ProfileProvenance,
)
from spindle_sim.units import counted
from spindle_sim.workload import Operator, OperatorCost, Projection
from spindle_sim.workload.operators import BYTES_PER_ELEMENT

__all__ = ["Probe", "ProbeResult", "Profiling", "SkippedProbe", "StepProbe", "to_profile"]

# Only an order of size: a byte that crosses memory takes about as long as ten FLOP.
_FLOP_PER_BYTE = 10.0
_POOLING = 8.0  # times as long as moving: strided, on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One operator (or one of its `tp` shards) for `samples` items on one device.

    Of its tokens `flowing_tokens` come from other operators, which matters to an embedding; a
    projection pools them if they are more or fewer than its own.
    `batch_size` is set where the operator meets the whole global batch, over `replicas` devices.
    It is to be measured as one of `chained`, one behind the other, where it can follow itself.
    """

    operator: Operator
    tokens: int
    samples: int
    context_tokens: int = 0
    flowing_tokens: int = 0
    tp: int = 1
    batch_size: int | None = None
    replicas: int = 1
    chained: int = 1

    @property
    def signature(self) -> tuple[Operator, int, int, int, int | None]:
        """By what a profile tells operators apart."""
        return (self.operator, self.tokens, self.context_tokens, self.tp, self.batch_size)

    @property
    def cost(self) -> OperatorCost:
        """The cost of one item, not divided by `tp`."""
        return self.operator.cost(
            tokens=self.tokens,
            context_tokens=self.context_tokens,
            batch_size=self.batch_size or 1,
        )

    @property
    def pooled_bytes(self) -> float:
        """What flows into one item of a head, which takes the mean of it over its own tokens."""
        if not isinstance(self.operator, Projection) or self.flowing_tokens in (0, self.tokens):
            return 0.0
        return float(BYTES_PER_ELEMENT * self.operator.inner * self.flowing_tokens)

    @property
    def work(self) -> float:
        """How large it is, roughly, in FLOP: to take small ones first and to guess times."""
        cost = self.cost
        moved = cost.traffic_bytes + cost.output_bytes + _POOLING * self.pooled_bytes
        each = cost.flops + _FLOP_PER_BYTE * moved
        held = _FLOP_PER_BYTE * 2 * self.operator.parameters
        return (each * self.samples + held) / self.tp

    @property
    def name(self) -> str:
        """The operator in words, without its samples."""
        words = [self.operator.kind, counted(self.tokens, "token")]
        if self.context_tokens:
            words.append(f"{self.context_tokens} of context")
        if self.tp > 1:
            words.append(f"tp {self.tp}")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProbe:
    """An optimizer step over the parameters of these operators, each as often as it is listed."""

    operators: tuple[Operator, ...]

    @property
    def parameters(self) -> int:
        """How many are stepped."""
        return sum(operator.parameters for operator in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Medians of `repeats` runs; `spread` is the larger interquartile range over its median."""

    probe: Probe
    point: OperatorPoint
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedProbe:
    """What wasn't measured, and why."""

    probe: Probe
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """All that a profiler found on one device; `method` says how it measured."""

    device: str
    method: str
    tool: str
    elapsed_s: float
    results: tuple[ProbeResult, ...]
    skipped: tuple[SkippedProbe, ...] = ()
    links: tuple[LinkPoint, ...] = ()
    optimizer: tuple[OptimizerPoint, ...] = ()
    element_bytes: float = 2.0  # of what was measured


def to_profile(profiling: Profiling, *, name: str, date: str, tool: str) -> Profile:
    """Give the profile file's content; its source says what was not measured."""
    missing = [] if profiling.links else ["collectives, tensor parallelism's among them"]
    missing += [] if profiling.optimizer else ["the optimizer step"]
    unmeasured = f"not measured: {' and '.join(missing)}" if missing else "with links and steps"
    if profiling.skipped:
        unmeasured += f"; {counted(len(profiling.skipped), 'point')} skipped"
    return Profile(
        format_version=PROFILE_VERSION,
        name=name,
        provenance=ProfileProvenance(
            device=profiling.device,
            source=f"{profiling.method}; {unmeasured}",
            date=date,
            kind="measured",
            tool=tool,
        ),
        operators=_operators(profiling.results),
        links=profiling.links,
        optimizer=profiling.optimizer,
        element_bytes=profiling.element_bytes,
    )


def _operators(results: Sequence[ProbeResult]) -> tuple[ProfiledOperator, ...]:
    points: dict[tuple[Operator, int, int, int, int | None], list[OperatorPoint]] = {}
    for result in results:
        points.setdefault(result.probe.signature, []).append(result.point)
    return tuple(
        ProfiledOperator(
            operator=operator,
            tokens=tokens,
            context_tokens=context_tokens,
            tp=tp,
            batch_size=batch_size,
            points=tuple(sorted(found, key=lambda point: point.samples)),
        )
        for (operator, tokens, context_tokens, tp, batch_size), found in points.items()
    )
