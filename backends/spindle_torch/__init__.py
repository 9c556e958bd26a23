"""A backend on torch.distributed: the plan that the simulator replays, run for real (section 3.6).

Nothing here imports torch before it is needed, so that the entry point can be loaded anywhere.
"""
