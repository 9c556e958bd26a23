"""Random models under every strategy: the losses and gradients of one plain process."""

import json
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from zlib import crc32

import pytest
import torch
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from spindle_sim import make_plan, parse_cluster
from spindle_sim.cluster import Cluster
from spindle_sim.plan import Plan, save_plan, validate_plan
from spindle_sim.planner import STRATEGIES
from spindle_sim.workload import ContrastiveLoss, Workload
from spindle_torch.intervals import held_samples
from tests.pipelines import with_rounds
from tests.spindle_torch.plans import dealt, refusal
from tests.spindle_torch.random_models import models
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.rounding import Rounding
from tests.spindle_torch.running import check_replicas
from tests.spindle_torch.standing import StandingRanks
from tests.spindle_torch.test_gradients import TOLERANCE, check, shape

MODELS = 20
REFUSED = r"can be simulated but not run yet"
# What fails is drawn again alike. To shrink it takes minutes: only where there is time.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
PHASES = [Phase.generate, Phase.shrink] if THOROUGH else [Phase.generate]


@dataclass
class Tried:
    """Which plans were run, which were refused and why, and what was among them."""

    ran: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    gradients: int = 0  # compared
    rounded: int = 0  # of them only as close to exact ones as rounding lets them be

    def plans(self, model: Workload, cluster: Cluster, seed: int) -> list[Plan]:
        """Give what differs of the plans of all strategies, and two whose slices are dealt."""
        found: dict[object, Plan] = {}
        for strategy in STRATEGIES:
            plan = make_plan(model, cluster, strategy)
            assert validate_plan(plan) == ()
            if reason := refusal(plan):
                self.refused[f"{strategy}: {reason}"] += 1
                continue
            self.ran[strategy] += 1
            found.setdefault(shape(plan), plan)
        _, plan = next(dealt(model, cluster, first=seed))
        assert validate_plan(plan) == ()
        found.setdefault(shape(plan), plan)
        _, plan = next(dealt(model, cluster, uneven=True, first=seed))
        drawn = crc32(repr((model, seed)).encode())
        plan = with_rounds(plan, plan.rounds, zero_stage=drawn % 4)
        found.setdefault(shape(plan), replace(plan, overlap_sync=bool(drawn // 4 % 2)))
        for plan in found.values():
            self.features.update(features(plan))
        return list(found.values())

    def check(self, ranks: int) -> None:
        """See that enough was tried, and that what is refused has a reason that is known."""
        plans = self.ran.total() + self.refused.total()
        assert plans >= MODELS * len(STRATEGIES)
        assert self.ran.keys() == set(STRATEGIES)
        assert self.refused.total() < 0.1 * plans
        assert all(REFUSED in reason for reason in self.refused), self.refused
        assert self.rounded < 0.01 * self.gradients
        wanted = {"frozen", "coupled", "two pairs", "shared", "recomputed", "several consumers"}
        wanted |= {"tp"} if ranks > 1 else set()
        wanted |= {"divided states", "beside"}
        wanted |= {"uneven", "coupled and uneven"} if ranks > 1 else set()
        wanted |= {"no samples"} if ranks > 2 else set()
        assert wanted <= self.features.keys(), self.features


def features(plan: Plan) -> set[str]:
    """Say what a plan has that could go wrong."""
    metaops = plan.metaop_by_id()
    found = {
        "frozen": any(module.frozen for module in plan.workload.modules),
        "coupled": any(
            isinstance(block.operator, ContrastiveLoss)
            for module in plan.workload.modules
            for block in module.blocks
        ),
        "shared": len({metaop.parameter_set for metaop in plan.metaops}) < len(plan.metaops),
        "tp": any(item.tp > 1 for item in plan.slices),
        "recomputed": any(item.recompute for item in plan.slices),
        "divided states": plan.zero_stage > 0,
        "beside": plan.overlap_sync,
        "several consumers": max(Counter(flow.source_slice for flow in plan.flows).values()) > 1,
    }
    for item in plan.slices:
        metaop = metaops[item.metaop]
        pairs = metaop.batch if metaop.batch_coupled else 0
        found["two pairs"] = found.get("two pairs", False) or pairs == 2
        batch = metaop.batch // plan.micro_batches(item.round)
        spans = [held_samples(item, device, batch) for device in item.devices]
        samples = {last - first for first, last in spans}
        found["no samples"] = found.get("no samples", False) or 0 in samples
        kind = "coupled and uneven" if metaop.batch_coupled else "uneven"
        found[kind] = found.get(kind, False) or len(samples) > 1
    return {name for name, is_there in found.items() if is_there}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_random_models_have_the_losses_and_gradients_of_one_process_under_every_strategy(
    ranks: int, tmp_path: Path
) -> None:
    cluster, tried, numbers = parse_cluster(f"a800:1x{ranks}"), Tried(), count()

    with StandingRanks(tmp_path, ranks) as standing:

        @settings(max_examples=MODELS, database=None, phases=PHASES)
        @given(model=models(), seed=st.integers(0, 99))
        def run(model: Workload, seed: int) -> None:
            plans = {
                tmp_path / f"{next(numbers)}.json": plan
                for plan in tried.plans(model, cluster, seed)
            }
            for path, plan in plans.items():
                save_plan(plan, path)
                given = {"steps": 1} | ({"bucket_mb": 0.001} if plan.overlap_sync else {})
                path.with_suffix(".options").write_text(json.dumps(given))
            left = standing.run(list(plans))
            rounding = Rounding(model)
            for dtype in TOLERANCE:
                step = Reference(model, getattr(torch, dtype)).step(0)
                for path, plan in plans.items():
                    note(f"{plan.strategy} plan in {dtype}: {path}")
                    tried.gradients += len(step[1])
                    tried.rounded += check(
                        [step],
                        dtype,
                        left[path][dtype],
                        rounding if dtype == "float32" else None,
                    )
                    check_replicas(left[path][dtype])

        run()
    tried.check(ranks)
