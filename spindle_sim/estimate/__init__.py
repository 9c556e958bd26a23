"""HOW LONG, HOW LARGE: scaling curves, device model, collectives, memory, profile files."""

from spindle_sim.estimate.curve import ScalingCurve
from spindle_sim.estimate.estimator import Estimator
from spindle_sim.estimate.memory import activation_bytes, state_bytes, working_bytes

__all__ = ["Estimator", "ScalingCurve", "activation_bytes", "state_bytes", "working_bytes"]
