"""What is said beside the data while something lasts."""

import pytest

from spindle_sim.cli.console import progress


def test_in_a_log_a_long_piece_of_work_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("spindle_sim.cli.console.time.monotonic", lambda: now_s[0])
    with progress(4) as advance:
        for number in range(4):
            advance(f"part {number}")
            now_s[0] += 20.0
    assert capsys.readouterr().err == "2 of 4 done; now: part 2\n"


def test_in_a_log_a_short_piece_of_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1) as advance:
        advance("it")
    assert capsys.readouterr() == ("", "")
