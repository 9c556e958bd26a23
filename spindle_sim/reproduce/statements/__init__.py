"""What the paper states, in the order in which it states it: a file for each group of sections."""

from spindle_sim.reproduce.rules import Statement
from spindle_sim.reproduce.statements.baselines import BASELINES
from spindle_sim.reproduce.statements.components import COMPONENTS
from spindle_sim.reproduce.statements.setup import SETUP
from spindle_sim.reproduce.statements.state_of_the_art import STATE_OF_THE_ART
from spindle_sim.reproduce.statements.study import STUDY

__all__ = ["STATEMENTS"]

STATEMENTS: tuple[Statement, ...] = (
    *SETUP,
    *STATE_OF_THE_ART,
    *BASELINES,
    *STUDY,
    *COMPONENTS,
)
