"""What is said beside the data while something lasts."""

import time

import pytest

from spindle_sim.cli.console import progress


def told(capsys: pytest.CaptureFixture[str], least: int) -> str:
    """Give what stderr has got once there are so many lines."""
    text, ends_s = "", time.monotonic() + 30
    while text.count("\n") < least and time.monotonic() < ends_s:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text


def test_in_a_log_a_long_piece_of_work_says_how_far_it_is_even_within_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spindle_sim.cli.console._LINE_EVERY_S", 0.02)
    with progress(4) as advance:
        advance("part 0")
        assert set(told(capsys, 2).splitlines()) == {"0 of 4 done; now: part 0"}
        advance("part 1")
        advance("part 2")
        assert told(capsys, 2).splitlines()[-1] == "2 of 4 done; now: part 2"
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_in_a_log_work_that_tells_its_own_steps_says_nothing_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spindle_sim.cli.console._LINE_EVERY_S", 0.01)
    with progress(1, in_logs=False) as advance:
        advance("it")
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_in_a_log_a_short_piece_of_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1) as advance:
        advance("it")
    assert capsys.readouterr() == ("", "")
