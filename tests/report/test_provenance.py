"""The notice at the top: simulated or run, whence the times, how far the model was off."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from spindle_sim.cluster import parse_cluster
from spindle_sim.estimate import Estimator
from spindle_sim.report.provenance import provenance_notice
from spindle_sim.timeline import Timeline
from tests.report.pages import two_runs

ESTIMATES = Path(__file__).parents[2] / "docs" / "estimates.md"


def notice(cluster: str, *, backend: str = "simulator") -> str:
    run = two_runs()[0]
    parsed = parse_cluster(cluster)
    plan = replace(run.plan, cluster=parsed, profile=Estimator(parsed).profile_name)
    return provenance_notice(plan, Timeline(backend=backend, num_devices=8, spans=()))


def test_simulated_and_modelled_are_said_first() -> None:
    text = notice("a100:1x8")
    assert "<strong>Simulated from modelled operator times: no GPU ran this.</strong>" in text
    assert "analytic model" in text


def test_what_ran_is_not_called_simulated() -> None:
    text = notice("a100:1x8", backend="torch-nccl")
    assert "Simulated" not in text
    assert "Run by torch-nccl" in text


@pytest.mark.parametrize("cluster", ["a100:1x8", "h100:1x8", "a40:1x8"])
def test_the_errors_are_those_of_the_page_on_estimates(cluster: str) -> None:
    figures = re.findall(r"[0-9.]+ %", notice(cluster))
    known = ESTIMATES.read_text(encoding="utf-8")
    assert figures
    assert all(figure in known for figure in figures)


def test_the_caution_and_the_notice_on_h100s_state_the_same_error() -> None:
    caution = Estimator(parse_cluster("h100:1x8")).caution
    figures = re.findall(r"[0-9.]+ %", caution)
    assert len(figures) == 2
    assert all(figure in notice("h100:1x8") for figure in figures)


def test_a_gpu_without_measurements_is_an_extrapolation() -> None:
    text = notice("b200:1x8")
    assert "No B200" in text
    assert "extrapolation" in text
    assert "median" not in text


def test_traffic_between_nodes_was_never_compared() -> None:
    assert "traffic between nodes" in notice("a100:2x8")
    assert "traffic between nodes" not in notice("a100:1x8")


def test_times_from_elsewhere_come_without_the_models_errors() -> None:
    run = two_runs()[0]
    plan = replace(run.plan, profile="measured elsewhere <b>")
    text = provenance_notice(plan, run.timeline)
    assert "measured elsewhere &lt;b&gt;" in text
    assert "%" not in text
