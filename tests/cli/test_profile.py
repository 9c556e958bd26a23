"""`spindle profile`: what is refused before anything is measured."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spindle_sim.cli.application import application
from spindle_sim.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-o p.json --device gpu", "--device gpu: known are: cpu, cuda"),
        ("-o p.json --dtype bf61", "--dtype bf61: did you mean 'bf16'"),
        ("-o p.json --seconds 0", "--seconds 0: expected a number above 0"),
        ("-o p.json --nproc 1", "--nproc 1: expected a whole number, at least 2"),
        ("-o p.json --date today", "--date today: expected a date"),
        ("-o /no/such/folder/p.json", "there is no directory /no/such/folder"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(
            application(),
            ["profile", "multitask-clip", *arguments.split()],
            catch_exceptions=False,
        )
    assert list(tmp_path.iterdir()) == []
