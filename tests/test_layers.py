"""The one direction of imports: the contracts in pyproject.toml hold, and they can fail."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=root,
        env={"PYTHONPATH": f"{root}:{root / 'backends'}", "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def _copy(root: Path) -> None:
    shutil.copytree(ROOT / "spindle_sim", root / "spindle_sim")
    shutil.copytree(ROOT / "backends", root / "backends")
    shutil.copy(ROOT / "pyproject.toml", root)


def test_each_layer_imports_only_those_below_it() -> None:
    done = _lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_upwards_is_found(tmp_path: Path) -> None:
    _copy(tmp_path)
    units = tmp_path / "spindle_sim" / "units.py"
    units.write_text(units.read_text() + "\n\ndef upwards() -> None:\n    import spindle_sim.cli\n")
    done = _lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "spindle_sim.units -> spindle_sim.cli" in done.stdout


def test_an_import_of_torch_in_the_core_is_found(tmp_path: Path) -> None:
    _copy(tmp_path)
    units = tmp_path / "spindle_sim" / "units.py"
    units.write_text(units.read_text() + "\n\ndef heavy() -> None:\n    import torch\n")
    done = _lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "spindle_sim.units -> torch" in done.stdout


def test_an_import_of_the_planner_in_the_torch_backend_is_found(tmp_path: Path) -> None:
    _copy(tmp_path)
    pool = tmp_path / "backends" / "spindle_torch" / "pool.py"
    pool.write_text(pool.read_text() + "\n\ndef plan() -> None:\n    import spindle_sim.planner\n")
    done = _lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "spindle_torch.pool -> spindle_sim.planner" in done.stdout
