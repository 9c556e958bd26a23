"""`spindle validate-run` for real, on one rank: what it says, not how well it fares here."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from spindle_sim.backend import Execution, ExecutionOptions, Validation, find_validator
from spindle_sim.cli.application import application
from spindle_sim.cli.fidelity import Case, executed_cases, orders, percentile
from spindle_sim.errors import UsageError
from spindle_sim.estimate.probe import Probe, ProbeResult, Profiling, StepProbe
from spindle_sim.estimate.profile import OperatorPoint
from spindle_sim.plan import Plan
from spindle_sim.simulator import simulate
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny

MOST = 20.0  # a busy host may be several times slower in one half: only what is absurd fails


def validated(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(application(), ["validate-run", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def case(strategy: str, simulated_s: float, executed_s: float, ranks: int = 2) -> Case:
    return Case(
        workload="w",
        strategy=strategy,
        ranks=ranks,
        simulated_s=simulated_s,
        executed_s=executed_s,
        spread=0.0,
        long_share=1.0,
        engine_share=0.01,
    )


@dataclass(slots=True)
class Stated:
    """Measures nothing: in round k an operator takes k + 1 ms, on each rank times its factor."""

    factors: tuple[float, ...]
    name: str = "stated"

    def execute(self, plan: Plan, options: ExecutionOptions) -> Execution:
        raise AssertionError("not asked for")

    def validate(
        self,
        plans: Sequence[Plan],
        probes: Sequence[Probe],
        steps: Sequence[StepProbe],
        options: ExecutionOptions,
        *,
        num_processes: int,
        time_scales: Sequence[float] = (),
    ) -> Validation:
        del steps, time_scales
        assert num_processes == len(self.factors)
        return Validation(
            executions=tuple(
                Execution(
                    timeline=simulate(plan), iterations_s=(1.0,) * options.iterations, losses=()
                )
                for plan in plans
            ),
            profiling=_measured(probes, 1e-3),
            rounds=tuple(
                tuple(_measured(probes, 1e-3 * factor * (k + 1)) for factor in self.factors)
                for k in range(options.iterations)
            ),
        )


def _measured(probes: Sequence[Probe], time_s: float) -> Profiling:
    results = tuple(
        ProbeResult(
            probe=probe,
            point=OperatorPoint(
                samples=float(probe.samples),
                forward_s=time_s,
                backward_s=time_s,
                input_backward_s=time_s,
                weight_backward_s=time_s,
            ),
            spread=0.0,
            repeats=1,
        )
        for probe in probes
    )
    return Profiling(device="none", method="stated", tool="none", elapsed_s=0.0, results=results)


def simulated_s(strategy: str, *factors: float, rounds: int = 3) -> float:
    workload = tiny(builtin_workload("multitask-clip")).with_first_tasks(3)
    options = ExecutionOptions(iterations=rounds)
    (found,) = executed_cases(workload, len(factors), [strategy], Stated(factors), options)
    return found.simulated_s


def test_ranks_that_share_slices_go_at_the_pace_of_the_slower() -> None:
    assert simulated_s("seq", 1.0, 3.0) == pytest.approx(simulated_s("seq", 3.0, 3.0))
    assert simulated_s("seq", 3.0, 1.0) == pytest.approx(simulated_s("seq", 3.0, 3.0))
    assert simulated_s("seq", 1.0, 1.0) < 0.9 * simulated_s("seq", 3.0, 3.0)


def test_slices_of_one_rank_take_what_it_measured() -> None:
    """Of tasks apart, the rank with less to do may be slower without anybody's waiting longer."""
    alike = simulated_s("optimus", 1.0, 1.0)
    one, other = simulated_s("optimus", 1.0, 1.01), simulated_s("optimus", 1.01, 1.0)
    assert min(one, other) == pytest.approx(alike)
    assert alike < max(one, other) < 1.01 * alike


def test_the_simulated_iteration_is_the_median_of_rounds() -> None:
    middle = simulated_s("seq", 2.0, 2.0, rounds=1)
    assert simulated_s("seq", 1.0, 1.0, rounds=3) == pytest.approx(middle)


@pytest.mark.slow
def test_a_case_is_profiled_planned_simulated_and_executed() -> None:
    document = validated(
        *("--workload", "multitask-clip", "--strategies", "seq,optimus", "--ranks", "1"),
        *("--iterations", "2"),
    )
    cases = document["cases"]
    assert isinstance(cases, list)
    assert [item["strategy"] for item in cases] == ["seq", "optimus"]
    for item in cases:
        assert item["ranks"] == 1
        assert item["executed_s"] > 0
        assert item["error"] == pytest.approx(item["simulated_s"] / item["executed_s"] - 1)
        assert 1 / MOST < item["simulated_s"] / item["executed_s"] < MOST
        assert item["paired_error"] > -1
        assert item["long_share"] > 0.5
        assert 0 < item["engine_share"] < 1
    shares = [item["engine_share"] for item in cases]
    assert document["largest_engine_share"] == max(shares)
    assert document["median_engine_share"] == pytest.approx(sum(shares) / 2)
    # On one rank both run the same slices one behind the other: one profile, one simulated time.
    assert cases[0]["simulated_s"] == pytest.approx(cases[1]["simulated_s"])
    assert document["median_error"] == pytest.approx(sum(abs(i["error"]) for i in cases) / 2)


@pytest.mark.slow
def test_an_emulated_iteration_takes_its_planned_time() -> None:
    document = validated(
        *("--emulate", "--workload", "multitask-clip", "--strategies", "seq", "--ranks", "2"),
        *("--iterations", "2"),
    )
    cases = document["cases"]
    assert isinstance(cases, list)
    (item,) = cases
    # Waiting takes at least as long as it should, and each forward or backward is to take 11 ms.
    assert item["executed_s"] >= item["simulated_s"] > 20 * 11e-3
    assert item["paired_error"] is None


def test_strategies_are_in_order_only_if_the_same_one_is_faster_in_both() -> None:
    found = list(
        orders(
            [
                case("a", 1.0, 1.0),
                case("b", 1.1, 1.2),
                case("c", 1.02, 0.9),
                case("a", 3.0, 1.0, ranks=1),
            ]
        )
    )
    assert {(o.strategies, o.is_same) for o in found} == {
        (("a", "b"), True),
        (("a", "c"), False),
        (("b", "c"), True),
    }


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(30, 0, -1)]
    assert percentile(values, 0.95) == 29.0
    assert percentile(values, 0.5) == 15.0
    assert percentile([4.0], 0.95) == 4.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "0"], "--ranks 0: expected a whole number, at least 1"),
        (["--ranks", "-2"], "--ranks -2: expected a whole number, at least 1"),
        (["--ranks", "2,1,2"], "--ranks 2: given 2 times; once is enough"),
        (["--ranks", "100000"], "ranks that compute (more with --emulate)"),
        (["--ranks", "100000", "--emulate"], "emulated ranks"),
        (["--ranks", "12", "--emulate"], "must be a multiple"),
        (["--time-scale", "2"], "add --emulate"),
        (["--strategies", "magic"], "no strategy 'magic'"),
        (["--strategies", ""], "--strategies '': expected names"),
        (["--ranks", ""], "--ranks : expected a whole number"),
        (["--workload", "nothing"], "neither a built-in workload nor a file"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], said: str) -> None:
    from spindle_sim.errors import SpindleError

    done = CliRunner().invoke(application(), ["validate-run", *arguments])
    error = done.exception
    text = str(error) if isinstance(error, SpindleError) else done.output
    assert said in text


def test_a_backend_that_only_simulates_measures_no_parts() -> None:
    with pytest.raises(UsageError, match="has no processes"):
        find_validator("programs")
