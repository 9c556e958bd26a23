"""The profiler on torch: how long the modules of `layers.py` take on one device of this host.

Imports torch only when something is measured, so that the entry point can be loaded anywhere.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from spindle_sim.backend import ProfilingOptions
from spindle_sim.errors import UsageError, suggestion
from spindle_sim.estimate.probe import Probe, Profiling, StepProbe
from spindle_sim.estimate.profile import LinkPoint

__all__ = ["DEVICES", "DTYPES", "TorchProfiler"]

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchProfiler:
    """Measures operators on one CPU thread or one GPU, links over gloo or NCCL."""

    name: str = "torch"

    def profile(
        self,
        probes: Sequence[Probe],
        options: ProfilingOptions,
        advance: Callable[[str], None],
        steps: Sequence[StepProbe] = (),
    ) -> Profiling:
        """Measure links first, if asked for, then steps and operators with the time that is left.

        Raises:
            UsageError: torch isn't installed, or there is no such device or dtype, or the time
                isn't enough for a single point.
            ExecutionError: the processes that measure links failed.
        """
        deadline_s = time.monotonic() + options.budget_s
        _check(options)
        from spindle_torch.links import measured_links
        from spindle_torch.measuring import measured

        links: tuple[LinkPoint, ...] = ()
        if options.num_processes > 1:
            advance(f"links between {options.num_processes} processes")
            links = measured_links(options)
        return measured(probes, options, advance, deadline_s=deadline_s, links=links, steps=steps)


def _check(options: ProfilingOptions) -> None:
    if options.device not in DEVICES:
        raise UsageError(f"no device {options.device!r}: they are {', '.join(DEVICES)}")
    if options.dtype not in DTYPES:
        raise UsageError(f"no dtype {options.dtype!r}: {suggestion(options.dtype, DTYPES)}")
    if find_spec("torch") is None:
        raise UsageError("profiling needs torch: pip install 'spindle-sim[torch]'")
    import torch

    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.device == "cuda" and available < options.num_processes:
        raise UsageError(
            f"device cuda: {options.num_processes} GPUs are needed, torch sees {available}; measure"
            " on the CPU (--device cpu), or where there are GPUs"
        )
