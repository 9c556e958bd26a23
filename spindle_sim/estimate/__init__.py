"""HOW LONG, HOW LARGE: scaling curves, device model, collectives, memory, profile files."""

from spindle_sim.estimate.curve import ScalingCurve
from spindle_sim.estimate.estimator import Estimator

__all__ = ["Estimator", "ScalingCurve"]
