"""The command `spindle`: a file per verb; each parses, calls the layers below and prints."""

from spindle_sim.cli.entry import main

__all__ = ["main"]
