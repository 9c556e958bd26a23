"""All that can be checked on one GPU, in ten minutes: a line for each check, and profiles.

    pip install -e '.[test,torch]'
    python -m benchmarks.gpu_check [--limit 570] [--seconds 60] [--output traces] [--only NAME,...]

Checks, in order: `software`; `run`, a tiny plan on one rank over NCCL; `profile-WORKLOAD` in bf16
for each built-in workload, into the output folder; with two GPUs and more `links`; `tests`, those
that are marked for GPUs. A check has what is left of the limit. The exit code is the number of
checks that failed. With `--device cpu` the script itself can be tried where there is no GPU.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = ("multitask-clip", "ofasys", "qwen-val")
CLUSTER = "h200:1x8"  # of whose devices' batches operators are measured
STARTUP_S = 60.0  # of a command, above what it measures for
PASSED, FAILED, SKIPPED = "PASS", "FAIL", "SKIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a check ended, and what there is to say."""

    name: str
    state: str
    seconds: float
    detail: str

    def __str__(self) -> str:
        return f"{self.state} {self.name:24s} {self.seconds:6.1f} s  {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all checks are told."""

    device: str
    seconds: float
    output: Path
    tiny: bool
    gpu: str
    gpus: int


Check = Callable[[Setting, float], tuple[str, str]]  # state and detail, within so many seconds


def main() -> int:
    """Run the checks; give how many failed."""
    options = _options()
    begun_s = time.monotonic()
    gpu, gpus = _gpus() if options.device == "cuda" else ("cpu", 0)
    if options.device == "cuda" and not gpus:
        print("no GPU: torch sees none here (try the script itself with --device cpu)")
        return 1
    setting = Setting(
        device=options.device,
        seconds=options.seconds,
        output=options.output,
        tiny=options.device == "cpu",
        gpu=gpu,
        gpus=gpus,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, check in checks().items():
        if options.only and name not in options.only:
            continue
        left_s = options.limit - (time.monotonic() - begun_s)
        result = checked(name, check, setting, left_s)
        print(result, flush=True)
        failed += result.state == FAILED
    return failed


def checks() -> Mapping[str, Check]:
    """Give all checks by name, in order; the cheap ones first."""
    found: dict[str, Check] = {"software": check_software, "run": check_run}
    for workload in WORKLOADS:
        found[f"profile-{workload}"] = profile_of(workload)
    return {**found, "links": check_links, "tests": check_tests}


def checked(name: str, check: Check, setting: Setting, left_s: float) -> Result:
    """Run one check in what is left of the time."""
    begun_s = time.monotonic()
    if left_s <= 0:
        return Result(name=name, state=SKIPPED, seconds=0.0, detail="no time is left")
    try:
        state, detail = check(setting, left_s)
    except subprocess.TimeoutExpired as error:
        state, detail = FAILED, f"didn't end within {error.timeout:.0f} s"
    return Result(name=name, state=state, seconds=time.monotonic() - begun_s, detail=detail)


def check_software(setting: Setting, left_s: float) -> tuple[str, str]:
    """Say what is here, and that the backend is found."""
    program = (
        "import torch, torch.distributed as dist;"
        "from spindle_sim.backend import find_executor, find_profiler;"
        "find_executor('torch'), find_profiler('torch');"
        "nccl = torch.cuda.nccl.version() if dist.is_nccl_available() else None;"
        "print(f'torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}')"
    )
    code, said = _run(["-c", program], left_s)
    if code:
        return FAILED, f"{said} (pip install -e '.[test,torch]')"
    return PASSED, f"{said}; {setting.gpus} x {setting.gpu}"


def check_run(setting: Setting, left_s: float) -> tuple[str, str]:
    """Run a tiny plan for one device under autocast, and look at what came of it."""
    with tempfile.TemporaryDirectory(prefix="spindle-check-") as name:
        plan = str(Path(name) / "plan.json")
        planning = ["plan", "multitask-clip", "--tiny", "--tasks", "4", "--cluster", "a800:1x1"]
        code, said = _spindle([*planning, "-o", plan], left_s)
        if code:
            return FAILED, said
        timeline = Path(name) / "timeline.json"
        running = ["run", plan, "--iterations", "5", "--autocast", "bf16", "--clip-norm", "1"]
        code, said = _spindle([*running, "--timeline", str(timeline)], left_s)
        if code:
            return FAILED, said
        document = json.loads(timeline.read_text(encoding="utf-8"))
    wanted = "torch-nccl" if setting.device == "cuda" else "torch-gloo"
    if document["backend"] != wanted:
        return FAILED, f"ran on {document['backend']}, expected {wanted}"
    lengths = [s["end_s"] - s["start_s"] for s in document["spans"] if s["kind"] == "compute"]
    if not lengths or min(lengths) <= 0:
        return FAILED, "a slice took no time"
    end_s = max(span["end_s"] for span in document["spans"])
    return (
        PASSED,
        f"{wanted}, {1e3 * end_s:.1f} ms an iteration, {1e3 * sum(lengths):.1f} in slices",
    )


def profile_of(workload: str) -> Check:
    """Give the check that measures a workload's operators and steps in bf16."""

    def check(setting: Setting, left_s: float) -> tuple[str, str]:
        seconds = min(setting.seconds, max(1.0, left_s - STARTUP_S))
        path = setting.output / f"{slug(setting.gpu)}-{workload}-bf16.json"
        command = ["profile", workload, "--cluster", CLUSTER, "-o", str(path), "--json"]
        command += [f"--device={setting.device}", "--dtype=bf16", f"--seconds={seconds:.0f}"]
        code, said = _spindle([*command, *(["--tiny"] if setting.tiny else [])], left_s, last=False)
        if code:
            return FAILED, said.strip().split("\n")[-1]
        found = json.loads(said)
        state = PASSED if found["points"] and found["optimizer"] else FAILED
        skipped = f", {len(found['skipped'])} left out" if found["skipped"] else ""
        widest = max((point["spread"] for point in found["measured"]), default=0.0)
        return state, f"{found['points']} points{skipped}, spread up to {widest:.1%}: {path}"

    return check


def check_links(setting: Setting, left_s: float) -> tuple[str, str]:
    """Measure messages and all-reduces over NCCL, where there are ranks for it."""
    if setting.gpus < 2:  # NCCL takes no two ranks on one
        return SKIPPED, f"needs two GPUs, there are {setting.gpus}"
    path = setting.output / f"{slug(setting.gpu)}-links.json"
    command = ["profile", "multitask-clip", "--tiny", "--links", f"--nproc={setting.gpus}"]
    command += ["--cluster", CLUSTER, "--device=cuda", "--dtype=bf16", "--seconds=60"]
    code, said = _spindle([*command, "-o", str(path)], left_s)
    return (FAILED, said) if code else (PASSED, str(path))


def check_tests(setting: Setting, left_s: float) -> tuple[str, str]:
    """Run the tests that are marked for GPUs; each of them has a line of its own."""
    del setting
    if _run(["-c", "import pytest, hypothesis"], left_s)[0]:
        return SKIPPED, "pytest and hypothesis aren't installed (spindle-sim[test])"
    command = ["-m", "pytest", "-m", "gpu", "-q", "-rA", "--no-header", "--tb=short"]
    code, said = _run([*command, "tests/spindle_torch/test_on_gpus.py"], left_s, last=False)
    ends = re.findall(r"^(?:PASSED|FAILED|ERROR|SKIPPED) .*$", said, flags=re.MULTILINE)
    for line in ends:
        print(f"     {line}")
    if code:
        print(said)
    summary = said.strip().split("\n")[-1].strip("= ")
    return (FAILED if code else PASSED), summary


def slug(name: str) -> str:
    """Give a name as part of a file's: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _gpus() -> tuple[str, int]:
    """Give the name of the GPUs and how many there are, asked in a process of its own."""
    program = (
        "import torch; count = torch.cuda.device_count() if torch.cuda.is_available() else 0;"
        "print(torch.cuda.get_device_name(0) if count else 'none', count, sep='|')"
    )
    code, said = _run(["-c", program], 120.0)
    if code:
        return "none", 0
    name, count = said.split("|")
    return name, int(count)


def _spindle(arguments: Sequence[str], left_s: float, *, last: bool = True) -> tuple[int, str]:
    return _run(["-m", "spindle_sim", *arguments], left_s, last=last)


def _run(arguments: Sequence[str], left_s: float, *, last: bool = True) -> tuple[int, str]:
    """Give a Python command's exit code and what it said, by its last line if that is enough."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=left_s,
        check=False,
    )
    said = (done.stdout + done.stderr if done.returncode else done.stdout).strip()
    return done.returncode, said.split("\n")[-1] if last else said


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsItStands)
    parser.add_argument("--limit", type=float, default=570.0, help="seconds for all checks")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each profile")
    parser.add_argument("--output", type=Path, default=ROOT / "traces", help="folder of profiles")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of checks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


class _AsItStands(argparse.RawDescriptionHelpFormatter):
    """The docstring as it is."""


if __name__ == "__main__":
    sys.exit(main())
