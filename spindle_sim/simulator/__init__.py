"""A backend: replays a plan as discrete events on simpy."""

from spindle_sim.simulator.run import SimulatorBackend, simulate, simulated_s

__all__ = ["SimulatorBackend", "simulate", "simulated_s"]
