"""What the verbs write to: never over what they read, and to streams as to files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spindle_sim import load_plan
from spindle_sim.cli.application import application
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.errors import UsageError

ROOT = Path(__file__).parents[2]
TINY = ["multitask-clip", "--tasks", "1", "--cluster", "a800:1x2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "examples" / "clip.yaml", tmp_path / "w.yaml")
    shutil.copy(ROOT / "examples" / "cluster.yaml", tmp_path / "c.yaml")
    done = CliRunner().invoke(application(), ["plan", *TINY, "-o", str(tmp_path / "p.json")])
    assert done.exit_code == 0
    (tmp_path / "link.yaml").symlink_to("w.yaml")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "plan w.yaml -o w.yaml",
        "plan w.yaml -o ./w.yaml",
        "plan w.yaml -o link.yaml",
        "plan link.yaml -o w.yaml",
        "plan multitask-clip --cluster c.yaml -o c.yaml",
        "plan w.yaml --profile p.json -o p.json",
        "compare w.yaml --report w.yaml",
        "compare --cluster c.yaml --report c.yaml",
        "simulate p.json --trace p.json",
        "simulate p.json --report p.json",
        "curves w.yaml --report w.yaml",
        "sweep w.yaml --csv w.yaml",
        "sweep --cluster a800:2,c.yaml --csv c.yaml",
        "run p.json --trace p.json",
        "run p.json --timeline p.json",
    ],
)
def test_no_verb_writes_over_what_it_reads(
    arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = CliRunner().invoke(application(), arguments.split())
    assert isinstance(done.exception, UsageError)
    assert "is also what is read" in str(done.exception)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "", " "])
def test_a_name_that_no_file_can_have_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_outputs(report=name)
    assert len(str(caught.value).splitlines()) == 1


def piped(*arguments: str, redirected: str) -> bytes:
    """Give what `spindle ... > file` or `spindle ... | cat` leaves of stdout."""
    command = [sys.executable, "-m", "spindle_sim", *arguments]
    line = " ".join(f"'{word}'" for word in command)
    done = subprocess.run(["bash", "-c", f"{line} {redirected}"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("redirected", ["", "| cat", "> {file}", "> {file} 2>&1"])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_plan_can_be_written_to_stdout(name: str, redirected: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    printed = piped("plan", *TINY, "-o", name, redirected=redirected.format(file=file))
    if not file.exists():
        file.write_bytes(printed)
    text = file.read_text()
    if "2>&1" in redirected:  # the summary comes after the plan, which it doesn't damage
        text, summary = text.rsplit("}\n", 1)[0] + "}\n", text.rsplit("}\n", 1)[1]
        assert "slices" in summary
        file.write_text(text)
    assert load_plan(file).strategy == "spindle"
    assert list(tmp_path.iterdir()) == [file]


def test_a_trace_can_be_written_to_a_named_pipe(folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "spindle_sim", "simulate", "p.json", "--trace", "pipe"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        assert json.loads(pipe.read_bytes())["traceEvents"]
        assert process.wait() == 0
    assert pipe.is_fifo()
