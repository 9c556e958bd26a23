"""The script that checks a GPU, tried without one."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import Setting, check_links, check_run, check_tests, checked, checks, slug


def setting(output: Path, *, device: str = "cuda", gpus: int = 1) -> Setting:
    return Setting(
        device=device, seconds=60.0, output=output, tiny=False, gpu="NVIDIA H200", gpus=gpus
    )


def test_the_checks_come_in_order_and_profile_every_built_in_workload() -> None:
    names = list(checks())
    assert names[0] == "software"
    assert names[-1] == "tests"  # the longest: what is before it is done by then
    assert [name for name in names if name.startswith("profile-")] == [
        "profile-multitask-clip",
        "profile-ofasys",
        "profile-qwen-val",
    ]


def test_a_check_that_has_no_time_left_is_skipped_and_one_that_takes_too_long_fails(
    tmp_path: Path,
) -> None:
    def slow(_: Setting, left_s: float) -> tuple[str, str]:
        raise subprocess.TimeoutExpired("x", left_s)

    assert str(checked("a", slow, setting(tmp_path), 0.0)).startswith("SKIP a ")
    late = checked("a", slow, setting(tmp_path), 7.0)
    assert (late.state, late.detail) == ("FAIL", "didn't end within 7 s")


class Said:
    """Commands that aren't run; `commands` are what they would have been."""

    def __init__(self, patch: pytest.MonkeyPatch, *ends: tuple[int, str]) -> None:
        self.commands: list[list[str]] = []
        self.ends = list(ends)
        patch.setattr(gpu_check, "_run", self)

    def __call__(self, arguments: list[str], left_s: float, *, last: bool = True) -> Any:
        del left_s, last
        self.commands.append(list(arguments))
        return self.ends.pop(0) if self.ends else (0, "")


def test_a_workload_is_profiled_on_the_gpu_in_bf16_into_a_file_named_after_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"points": 40, "skipped": [{}], "optimizer": [{}], "measured": [{"spread": 0.03}]}
    said = Said(monkeypatch, (0, json.dumps(document)), (0, json.dumps({**document, "points": 0})))
    check = checks()["profile-ofasys"]
    path = tmp_path / "nvidia-h200-ofasys-bf16.json"
    assert check(setting(tmp_path), 500.0) == (
        "PASS",
        f"40 points, 1 left out, spread up to 3.0%: {path}",
    )
    (command,) = said.commands
    assert command[:4] == ["-m", "spindle_sim", "profile", "ofasys"]
    assert {"--device=cuda", "--dtype=bf16", "--seconds=60", str(path)} <= set(command)
    assert "--tiny" not in command
    assert check(setting(tmp_path), 500.0)[0] == "FAIL"  # nothing was measured


def test_a_run_that_fell_back_to_cpus_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda prefix: Folder(tmp_path))
    Said(monkeypatch)
    span = {"start_s": 0.0, "end_s": 0.5, "kind": "compute"}
    for backend, state in (("torch-gloo", "FAIL"), ("torch-nccl", "PASS")):
        document = {"backend": backend, "spans": [span]}
        (tmp_path / "timeline.json").write_text(json.dumps(document))
        assert check_run(setting(tmp_path), 60.0)[0] == state
    (tmp_path / "timeline.json").write_text(
        json.dumps({"backend": "torch-nccl", "spans": [{**span, "end_s": 0.0}]})
    )
    assert check_run(setting(tmp_path), 60.0) == ("FAIL", "a slice took no time")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> str:
        return str(self.path)

    def __exit__(self, *_: object) -> None:
        pass


def test_each_test_has_a_line_and_a_failed_one_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "PASSED tests/a.py::one\nFAILED tests/a.py::two - assert\n1 failed, 1 passed in 9s"
    Said(monkeypatch, (0, ""), (1, said))
    assert check_tests(setting(tmp_path), 60.0) == ("FAIL", "1 failed, 1 passed in 9s")
    shown = capsys.readouterr().out
    assert "     PASSED tests/a.py::one\n     FAILED tests/a.py::two - assert" in shown


def test_links_need_two_gpus(tmp_path: Path) -> None:
    assert check_links(setting(tmp_path), 60.0) == ("SKIP", "needs two GPUs, there are 1")
    assert slug("NVIDIA H200 (PCIe)") == "nvidia-h200-pcie"


@pytest.mark.slow
def test_the_whole_script_runs_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["gpu_check", "--device=cpu", "--seconds=20", f"--output={tmp_path}"]
    only = "--only=software,run,profile-multitask-clip,links"
    monkeypatch.setattr("sys.argv", [*arguments, only])
    assert gpu_check.main() == 0
    states = [line.split()[:2] for line in capsys.readouterr().out.strip().split("\n")]
    assert states == [
        ["PASS", "software"],
        ["PASS", "run"],
        ["PASS", "profile-multitask-clip"],
        ["SKIP", "links"],
    ]
    assert (tmp_path / "cpu-multitask-clip-bf16.json").exists()
