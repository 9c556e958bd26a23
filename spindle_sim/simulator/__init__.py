"""A backend: replays a plan as discrete events on simpy."""

from spindle_sim.simulator.run import SimulatorBackend, simulate

__all__ = ["SimulatorBackend", "simulate"]
