"""A backend on torch.distributed: the plan that the simulator replays, run for real (section 3.6).

Nothing here imports torch before it is needed, so that the entry point can be loaded anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.backend import Execution, ExecutionOptions, Validation
from spindle_sim.estimate.probe import Probe, StepProbe
from spindle_sim.plan import Plan
from spindle_sim.timeline import Timeline
from spindle_torch.launch import launch
from spindle_torch.validation import Task, launch_turns

__all__ = ["TorchBackend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBackend:
    """Runs a plan with a process for each device: NCCL on GPUs, gloo on CPUs."""

    name: str = "torch"

    def run(self, plan: Plan) -> Timeline:
        """Give what happened in one iteration, after one that warms up."""
        return self.execute(plan, ExecutionOptions(iterations=2)).timeline

    def execute(self, plan: Plan, options: ExecutionOptions) -> Execution:
        """Run some iterations of a valid plan on this host.

        Raises:
            UsageError: torch isn't installed.
            InputError: the workload or the plan wants what this backend can't do.
            ExecutionError: a rank failed; it says which one and why.
        """
        return launch(plan, options)

    def validate(
        self,
        plans: Sequence[Plan],
        probes: Sequence[Probe],
        steps: Sequence[StepProbe],
        options: ExecutionOptions,
        *,
        num_processes: int,
        time_scales: Sequence[float] = (),
    ) -> Validation:
        """Measure parts and plans in turns, in the same processes of this host's CPUs.

        Raises:
            UsageError: torch isn't installed.
            InputError: a workload or a plan wants what this backend can't do.
            ExecutionError: a rank failed; it says which one and why.
        """
        task = Task(
            plans=tuple(plans),
            probes=tuple(probes),
            steps=tuple(steps),
            options=options,
            num_ranks=num_processes,
            time_scales=tuple(time_scales) or (options.time_scale,) * len(plans),
        )
        return launch_turns(task)
