"""A run as a whole: what is planned, and the experiment on wall times."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from spindle_sim.reproduce import EXPLAIN, Options, cases_of, reproduce
from spindle_sim.reproduce.cases import STATED
from spindle_sim.reproduce.document import document
from spindle_sim.reproduce.experiments import KEEPING
from spindle_sim.reproduce.run import ALONE
from spindle_sim.reproduce.statements import STATEMENTS

PLANNING = next(one for one in STATEMENTS if one.wall_clock)


@contextmanager
def silent(_: str, __: int) -> Iterator[Callable[[str], None]]:
    yield lambda _: None


def test_a_wall_time_beyond_its_bound_is_taken_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statement = replace(PLANNING, paper=(1e-9,))
    monkeypatch.setattr("spindle_sim.reproduce.run.STATEMENTS", (statement,))
    options = Options(parts=("fig9", EXPLAIN), gpus=(16,), batch_scale=0.125)
    found = reproduce(options, 1, silent)
    (trial,) = found.trials
    assert (trial.statement, trial.change, trial.met) == (statement, ALONE, False)
    assert 0 < trial.found.values[0] < 60
    result = document(found)
    assert result.experiments == []  # wall times stand apart
    assert result.wall_clock["experiments"] == {
        PLANNING.id: {ALONE: trial.found.values[0], "case": trial.found.how}
    }
    (row,) = result.statements
    assert row.ours is None
    assert row.experiment is None
    assert "wall_clock" in row.explanation


def test_a_wall_time_within_its_bound_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spindle_sim.reproduce.run.STATEMENTS", (replace(PLANNING, paper=(1e9,)),))
    options = Options(parts=("fig9", EXPLAIN), gpus=(16,), batch_scale=0.125)
    assert reproduce(options, 1, silent).trials == ()


def test_changes_that_keep_the_plans_are_simulated_with_the_cases_that_are_judged() -> None:
    asked = cases_of(Options())
    for case in asked:
        judged = case.batch_scale == 1.0 and case.gpus in STATED[case.workload]
        assert case.also == (KEEPING if judged else ())
    assert all(case.also == () for case in cases_of(Options(parts=("fig8",))))
