"""A script that trains modules of its own saves them, and goes on to the same bits."""

import subprocess
import sys
from pathlib import Path

import pytest

from spindle_torch.checkpoint_folder import read_checkpoint

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_two_tasks.py"
TRAINS = "result = train(model, plan, steps=5)\n"
SAVES = """
import sys
from spindle_sim.backend import CheckpointOptions, ExecutionOptions
asked = CheckpointOptions(folder=sys.argv[1], every=1, resume=sys.argv[3] or None)
options = ExecutionOptions(dtype="float64", checkpoints=asked)
result = train(model, plan, steps=int(sys.argv[2]), options=options)
"""


@pytest.mark.slow
def test_modules_with_dropout_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert TRAINS in text
    script = tmp_path / "script.py"
    script.write_text(text.replace(TRAINS, SAVES).replace("dropout=0.0", "dropout=0.1"))
    told = [
        subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for arguments in (("straight", "2", ""), ("resumed", "1", "straight/step-1"))
    ]
    assert "55 parameters (head 2, patches 2, speak 2, trunk 48, words 1)" in told[1]
    straight, resumed = tmp_path / "straight" / "step-2", tmp_path / "resumed" / "step-2"
    assert "model.trunk.layers.0.linear1.weight" in read_checkpoint(straight).tensors
    files = sorted(path.name for path in straight.iterdir())
    assert files == sorted(path.name for path in resumed.iterdir())
    for name in files:
        assert (straight / name).read_bytes() == (resumed / name).read_bytes(), name
