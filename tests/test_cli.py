"""The command line as a whole: its exit codes and streams.

What a process of its own would add is tried in one: imports, signals, streams that aren't there.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spindle_sim.cli import entry
from spindle_sim.errors import (
    ExecutionError,
    InfeasibleError,
    InputError,
    PlanError,
    SpindleError,
    UsageError,
)
from tests.commands import spindle

ROOT = Path(__file__).parent.parent
TINY = ["multitask-clip", "--tasks", "1", "--cluster", "a800:1x2"]


def process(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spindle_sim", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_exit_codes_are_those_of_the_docs() -> None:
    rows = re.findall(r"^\| (\d+) \| ", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    codes = {
        0,
        SpindleError.exit_code,
        entry.EXIT_BUG,
        UsageError.exit_code,
        InputError.exit_code,
        PlanError.exit_code,
        InfeasibleError.exit_code,
        ExecutionError.exit_code,
        entry.EXIT_INTERRUPTED,
        entry.EXIT_BROKEN_PIPE,
    }
    assert [int(row) for row in rows] == sorted(codes)


def test_help_loads_nothing_heavy() -> None:
    assert process("--help").returncode == 0
    program = "import sys; from spindle_sim.cli.application import application; application()"
    loaded = subprocess.run(
        [sys.executable, "-c", f"{program}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"numpy", "networkx", "plotly", "scipy", "simpy"} & set(loaded)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert process("--version").stdout == f"spindle-sim {version('spindle-sim')}\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("compar", "Did you mean 'compare'?"),
        ("compare --jsn", "--json"),
        ("compare --tasks 99", "99"),
        ("compare --tasks 0", "--tasks 0"),
        ("compare --tasks -3", "--tasks -3"),
        ("compare --tasks imagetext", "did you mean 'image-text'?"),
        ("compare --tasks image-text,image-text", "twice"),
        ("compare --tasks image-text,", "commas"),
        ("compare multitaskclip", "did you mean 'multitask-clip'?"),
        ("compare --cluster a800:0x8", "a800:0x8"),
        ("compare --cluster a80:2x8", "did you mean 'a800'?"),
        ("compare --cluster a800", "a800"),
        ("compare --strategies spindel", "did you mean 'spindle'?"),
        ("compare --strategies foo", "known are: "),
        ("compare --strategies seq,seq", "twice"),
        ("compare --batch-scale -1", "--batch-scale -1"),
        ("compare --batch-scale 0", "--batch-scale 0"),
        ("compare --batch-scale nan", "--batch-scale nan"),
        ("compare --batch-scale inf", "--batch-scale inf"),
        ("compare --batch-scale much", "--batch-scale much"),
        ("compare --jitter -0.1", "--jitter -0.1"),
        ("compare --batch-scale 1e300", "--batch-scale"),
        ("compare --batch-scale 1_0", "--batch-scale 1_0"),
        ("compare --batch-scale \uff11", "--batch-scale"),
        ("compare --jitter 1.5", "--jitter 1.5: expected a number at least 0 and at most 1"),
        ("compare --jitter 1000", "--jitter 1000"),
        ("compare --nics-per-node 1000000000000000", "nics_per_node"),
        (f"compare --nics-per-node {'9' * 400}", "--nics-per-node 999"),
        (f"compare --tasks {'9' * 5000}", "--tasks 999"),
        (f"compare --report {'a' * 300}", "name too long"),
        (f"compare {'a' * 5000}", "neither a built-in workload nor a file"),
        (f"plan multitask-clip -o {'a' * 300}", "name too long"),
        (f"init {'a' * 300}", "name too long"),
        ("compare --oversubscription 1e300", "oversubscription"),
        ("compare --nic-bandwidth 1e99Gb/s", "nic_bandwidth"),
        ("compare --nic-bandwidth 1e-300Gb/s", "nic_bandwidth"),
        ("compare --seed -1", "--seed -1"),
        ("compare --seed 1.5", "--seed 1.5"),
        ("compare --placement best", "--placement best"),
        ("compare --nics-per-node 0", "--nics-per-node 0"),
        ("compare --nic-bandwidth 400", "400"),
        ("compare --oversubscription 0.5", "--oversubscription 0.5"),
        ("compare --oversubscription nan", "--oversubscription nan"),
        ("compare --report /no/such/folder/out.html", "/no/such/folder"),
        ("compare --report /", "is a directory"),
        ("sweep --tasks 2,99", "--tasks 99"),
        ("sweep --tasks 2,2", "twice"),
        ("sweep --tasks two", "--tasks two"),
        ("sweep --batch-scale 1,0", "--batch-scale 0"),
        ("sweep --batch-scale 1,,2", "commas"),
        ("sweep --cluster a800:1x8,a80:2x8", "did you mean 'a800'?"),
        ("sweep --set nics=1", "nics-per-node"),
        ("sweep --set nics-per-node", "NAME=VALUE"),
        ("sweep --set nics-per-node=0", "--set nics-per-node 0"),
        ("sweep --set oversubscription=0.5", "--set oversubscription 0.5"),
        ("sweep --set oversubscription=1 --set oversubscription=2", "given twice"),
        ("sweep --strategies spindel", "did you mean 'spindle'?"),
        ("sweep --csv /no/such/folder/out.csv", "/no/such/folder"),
        ("plan multitask-clip -o /no/such/folder/plan.json", "/no/such/folder"),
        ("plan multitask-clip", "--output"),
        ("plan multitask-clip --strategy spindle,seq -o plan.json", "one strategy"),
        ("simulate plan.json --report a --trace a", "same file"),
        ("run plan.json --nproc 0", "--nproc 0"),
        ("run plan.json --iterations 0", "--iterations 0"),
        ("run plan.json --time-scale 0", "--time-scale 0"),
        ("run plan.json --timeout 0", "--timeout 0"),
        ("run plan.json --checkpoint-every 0", "--checkpoint-every 0"),
        ("run plan.json --checkpoint-keep 0", "--checkpoint-keep 0"),
        ("run plan.json --until-step 0", "--until-step 0"),
        ("run plan.json --dtype float23", "did you mean 'float32'?"),
        ("run plan.json --timeline a --trace a", "same file"),
        ("schema plans", "did you mean 'plan'?"),
    ],
)
def test_a_wrong_flag_exits_2_and_names_it(arguments: str, named: str, tmp_path: Path) -> None:
    done = spindle(*arguments.split(), cwd=tmp_path)
    assert done.returncode == UsageError.exit_code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("compare nosuch.yaml", "nosuch.yaml"),
        ("compare broken.yaml", "broken.yaml:2"),
        ("compare --cluster nosuch.yaml", "nosuch.yaml"),
        ("compare --profile nosuch.json", "nosuch.json"),
        ("curves broken.yaml", "broken.yaml:2"),
        ("validate nosuch.json", "nosuch.json"),
        ("validate broken.yaml", "broken.yaml"),
        ("simulate broken.yaml", "broken.yaml"),
        ("run broken.yaml", "broken.yaml"),
    ],
)
def test_a_wrong_file_exits_3_and_names_it(arguments: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("tasks: [\n")
    done = spindle(*arguments.split(), cwd=tmp_path)
    assert done.returncode == InputError.exit_code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        "compare --tasks 1 --cluster a800:1x2 --strategies seq --json",
        "compar",
        "compare nosuch.yaml",
        "plan qwen-val --cluster a800:1x1 --strategy seq -o plan.json",
    ],
)
def test_a_process_of_its_own_says_and_gives_the_same(arguments: str, tmp_path: Path) -> None:
    done, other = (run(*arguments.split(), cwd=tmp_path) for run in (process, spindle))
    assert (done.returncode, done.stderr) == (other.returncode, other.stderr)
    times = r'"planning_s": [^,]+,'
    assert re.sub(times, "", done.stdout) == re.sub(times, "", other.stdout)


def test_what_cannot_fit_exits_4_and_every_strategy_says_why(tmp_path: Path) -> None:
    arguments = ["qwen-val", "--tasks", "1", "--cluster", "a800:1x1"]
    compared = spindle("compare", *arguments, "--json")
    assert compared.returncode == InfeasibleError.exit_code
    rows = json.loads(compared.stdout)["strategies"]
    assert all("device" in row["error"] and row["iteration_s"] is None for row in rows)
    said = compared.stderr.splitlines()[-1]  # below the progress of a slow machine
    assert said.startswith("error: no feasible plan under any of: spindle, ")
    planned = spindle("plan", *arguments, "-o", "plan.json", cwd=tmp_path)
    assert planned.returncode == InfeasibleError.exit_code
    assert planned.stderr.splitlines()[0].startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_bug_is_one_line_and_its_traceback_is_there_for_the_asking() -> None:
    program = (
        "import spindle_sim.cluster as cluster\n"
        "from spindle_sim.cli import main\n"
        "cluster.GPUS = None\n"
        "main(['gpus'])"
    )
    run = {"capture_output": True, "text": True, "check": False}
    plain = subprocess.run([sys.executable, "-c", program], **run)  # type: ignore[call-overload]
    assert plain.returncode == entry.EXIT_BUG
    assert plain.stderr.count("\n") == 1
    assert "this is a bug in spindle: AttributeError" in plain.stderr
    full = subprocess.run(  # type: ignore[call-overload]
        [sys.executable, "-c", program], env={**os.environ, "SPINDLE_TRACEBACK": "1"}, **run
    )
    assert full.returncode == entry.EXIT_BUG
    assert "Traceback (most recent call last)" in full.stderr


def test_a_reader_that_goes_away_is_met_in_silence() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spindle_sim", "schema", "plan"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == entry.EXIT_BROKEN_PIPE


@pytest.mark.parametrize("delay_s", [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2])
def test_an_interrupt_at_any_moment_exits_130_and_says_so(delay_s: float, tmp_path: Path) -> None:
    # It may fall into imports, planning or simulation; the whole takes seconds. The interpreter
    # itself, which a busy host starts slowly, dies of an interrupt: it says when it has begun.
    program = (
        "import sys\n"
        "from spindle_sim.cli import main\n"
        "print('begun', file=sys.stderr, flush=True)\n"
        "main(['compare', 'ofasys', '--cluster', 'a800:16x8'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"begun\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=60)
    assert process.returncode == entry.EXIT_INTERRUPTED
    assert (printed, told) == (b"", b"interrupted\n")


@pytest.mark.parametrize("during", ["typer", "spindle_sim.errors", "spindle_sim.cli.compare"])
def test_an_interrupt_during_any_import_exits_130_without_a_traceback(during: str) -> None:
    program = (
        "import builtins, signal\n"
        "imported = builtins.__import__\n"
        "def trap(name, *rest, **more):\n"
        f"    if name == {during!r}:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return imported(name, *rest, **more)\n"
        "builtins.__import__ = trap\n"
        "from spindle_sim.cli import main\n"
        "main(['gpus'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == entry.EXIT_INTERRUPTED
    assert (done.stdout, done.stderr) == (b"", b"interrupted\n")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "arguments", [["gpus"], ["schema", "plan"], ["--help"], ["compare", *TINY, "--json"]]
)
def test_a_full_disk_behind_stdout_is_told_in_one_line(arguments: list[str]) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spindle_sim", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == entry.EXIT_NO_OUTPUT
    assert done.stderr == b"error: can't write the output: no space left on device\n"


def test_a_closed_stdout_is_told_in_one_line() -> None:
    command = f"{sys.executable} -m spindle_sim gpus >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.returncode == entry.EXIT_NO_OUTPUT
    assert done.stderr == b"error: can't write the output: stdout is closed\n"


def test_an_interrupt_exits_130_without_a_traceback() -> None:
    program = (
        "import signal\n"
        "import spindle_sim.workload as workload\n"
        "from spindle_sim.cli import main\n"
        "workload.BUILTIN_WORKLOADS = {'x': lambda: signal.raise_signal(signal.SIGINT)}\n"
        "main(['workloads'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert signal.SIGINT == entry.EXIT_INTERRUPTED - 128
    assert done.returncode == entry.EXIT_INTERRUPTED
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("verb", ["compare", "curves"])
def test_a_pipe_gets_no_colour(verb: str) -> None:
    done = spindle(verb, *TINY, TERM="xterm-256color")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_a_terminal_that_knows_only_ascii_is_no_trouble() -> None:
    done = spindle("compare", *TINY, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
