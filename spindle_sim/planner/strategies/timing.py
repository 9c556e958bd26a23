"""Times of operators under parallel configurations, each computed once."""

from dataclasses import dataclass, field

from spindle_sim.estimate import Estimator
from spindle_sim.planner.metagraph import MetaNode

__all__ = ["OperatorTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Forward and backward seconds of one operator for some samples on each data-parallel rank.

    And where pipelines are cut on their account.
    """

    estimator: Estimator
    cuts: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def of(
        self,
        node: MetaNode,
        *,
        samples: float,
        dp: int,
        tp: int,
        recompute: bool = False,
        selective: bool = False,
        sequence_parallel: bool = False,
    ) -> tuple[float, float]:
        """Give both times of an operator of the MetaOp."""
        operator = node.operator
        key = (
            operator.operator,
            operator.tokens,
            operator.context_tokens,
            operator.items,
            # Only a coupled loss knows of the other ranks and of the whole batch.
            (operator.batch_size, dp) if node.metaop.batch_coupled else None,
            node.metaop.backward,
            samples,
            tp,
            recompute,
            selective and bool(node.cost.attentions),
            sequence_parallel and tp > 1,
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self.estimator.operation_s(
                operator,
                node.metaop.backward,
                samples=samples,
                dp=dp,
                tp=tp,
                recompute=recompute,
                selective=selective,
                sequence_parallel=sequence_parallel and tp > 1,
            )
        return known
