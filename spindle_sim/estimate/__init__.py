"""HOW LONG, HOW LARGE: scaling curves, device model, collectives, memory, profile files."""

from spindle_sim.estimate.collectives import Collective, CollectiveDemand
from spindle_sim.estimate.curve import PiecewiseAlphaBeta, ScalingCurve
from spindle_sim.estimate.estimator import EXTRAPOLATED, Estimator
from spindle_sim.estimate.links import MeasuredLink
from spindle_sim.estimate.memory import activation_bytes, state_bytes, working_bytes
from spindle_sim.estimate.profile import Profile, load_profile, profile_schema, save_profile
from spindle_sim.estimate.software import EAGER, SoftwareModel, software_model

__all__ = [
    "EAGER",
    "EXTRAPOLATED",
    "Collective",
    "CollectiveDemand",
    "Estimator",
    "MeasuredLink",
    "PiecewiseAlphaBeta",
    "Profile",
    "ScalingCurve",
    "SoftwareModel",
    "activation_bytes",
    "load_profile",
    "profile_schema",
    "save_profile",
    "software_model",
    "state_bytes",
    "working_bytes",
]
