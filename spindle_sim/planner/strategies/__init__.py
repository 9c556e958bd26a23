"""How devices and time are given to tasks: the paper's Spindle and its baselines, a file each."""
