"""What the README promises: its two commands, its Python example, its command lines."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from spindle_sim.cli.application import application

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [
    line
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith("spindle ")
]


def test_the_readme_has_one_command_for_the_main_job_and_one_for_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    patterns = re.findall(r"grep -m 1 -E (?:'([^']*)'|\"([^\"]*)\")", script)
    assert len(patterns) == 2
    for pattern in patterns:
        lines = re.findall("|".join(filter(None, pattern)) + ".*", README, flags=re.MULTILINE)
        assert len(lines) == 1, "this is the line that .ci/run takes"


def test_the_example_runs_and_spindle_is_no_slower_than_seq(tmp_path: Path) -> None:
    examples = [block for language, block in BLOCKS if language == "python"]
    assert len(examples) == 2
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", examples[1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    times_ms = dict(
        re.findall(r"^(\w+): ([\d.]+) ms, \d+% of the peak$", done.stdout, re.MULTILINE)
    )
    assert float(times_ms["spindle"]) <= float(times_ms["seq"])


def test_the_training_script_is_the_example_that_the_tests_run() -> None:
    script = (ROOT / "examples" / "train_two_tasks.py").read_text(encoding="utf-8")
    assert next(block for language, block in BLOCKS if language == "python") == script


@pytest.mark.slow
def test_the_command_lines_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert COMMANDS
    for command in COMMANDS:
        done = CliRunner().invoke(application(), shlex.split(command)[1:], catch_exceptions=False)
        assert done.exit_code == 0, command
    assert {path.name for path in tmp_path.iterdir()} == {
        "out.html",
        "plan.json",
        "profile.json",
        "tiny.json",
        "trace.json",
        "workload.yaml",
    }


def test_every_verb_is_mentioned() -> None:
    verbs = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    for verb in verbs:
        assert f"spindle {verb}" in README.replace("\n", " "), verb


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_named_file_exists() -> None:
    names = re.findall(r"`((?:examples|schemas|traces|docs)/[\w./]*)`", README)
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
