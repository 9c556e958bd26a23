"""What was trained and saved is loaded into plain modules, which give what plain PyTorch gives."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

from spindle_sim.errors import InputError, UsageError
from spindle_torch.api import SplitModel, load_into
from spindle_torch.checkpoint_folder import INDEX_NAME
from spindle_torch.checkpoint_index import (
    Chunk,
    Cursor,
    FileEntry,
    Index,
    Progress,
    TensorEntry,
    dump_index,
    piece_name,
)
from tests.spindle_torch.api.models import build
from tests.spindle_torch.api.stepping import whole_loss

STEPS = 2
SCRIPT = f"""
import sys, torch
torch.set_default_dtype(torch.float64)
from spindle_sim import make_plan, parse_cluster
from spindle_sim.backend import CheckpointOptions, ExecutionOptions
from spindle_torch.api import train
from tests.spindle_torch.api.models import build
split = build("two_tasks")
plan = make_plan(split.workload, parse_cluster("a800:1x1"))
options = ExecutionOptions(
    dtype="float64", checkpoints=CheckpointOptions(folder=sys.argv[1])
)
train(split, plan, steps={STEPS}, options=options)
"""
ONE_RANK = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "TORCHELASTIC_RUN_ID": "1",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model on one rank and give the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "saved")],
        env={**os.environ, **ONE_RANK, "PYTHONPATH": os.pathsep.join([root, f"{root}/backends"])},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return folder / "saved"


def plainly_trained() -> SplitModel:
    split = build("two_tasks")
    optimizer = torch.optim.AdamW(split.root.parameters(), lr=1e-3, foreach=False)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [
            task.loss_weight * whole_loss(split, task.name, step=step) for task in split.tasks
        ]
        torch.autograd.backward(torch.stack(losses).sum())
        optimizer.step()
    return split


def test_loaded_modules_give_what_plain_pytorch_gives(saved: Path) -> None:
    expected = plainly_trained()
    split, parts = build("two_tasks"), build("two_tasks")
    loaded = load_into(split, saved)
    assert loaded.step == STEPS
    assert set(loaded.parameters) == split.parameters.keys()
    trunk, words = (parts.root.get_submodule(name) for name in ("trunk", "words"))
    load_into({"trunk": trunk, "words": words}, str(saved / f"step-{STEPS}"))
    load_into({"encoder": parts.root.get_submodule("encoder")}, saved)
    load_into({"head": parts.root.get_submodule("head")}, saved)
    for task in ("vision", "text"):
        theirs = whole_loss(expected, task, step=7).item()
        for ours in (split, parts):
            assert whole_loss(ours, task, step=7).item() == pytest.approx(theirs, rel=1e-12)
        assert theirs != pytest.approx(whole_loss(build("two_tasks"), task, step=7).item())


def test_a_module_of_another_name_or_shape_is_named_and_nothing_changes(saved: Path) -> None:
    trunk = build("two_tasks").root.get_submodule("trunk")
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    with pytest.raises(InputError, match=r"has no stem\.\S+.* it has the modules encoder, head"):
        load_into({"stem": trunk.requires_grad_(requires_grad=False)}, saved)
    with pytest.raises(InputError, match=r"head.weight has the shape \(4, 8\) there and \(5, 8\)"):
        load_into({"head": nn.Linear(8, 5), "trunk": trunk}, saved)
    assert all(torch.equal(before[name], item) for name, item in trunk.state_dict().items())


def test_what_no_task_runs_stays_as_it_is(saved: Path) -> None:
    """Such as the pooler of a model of transformers whose output nobody takes."""
    split = build("two_tasks")
    split.root["head"].add_module("spare", nn.Linear(2, 2))
    loaded = load_into(split, saved)
    assert loaded.left == ("head.spare.weight", "head.spare.bias")
    with pytest.raises(InputError, match=r"has no head\.spare\.weight.*what no task runs isn't"):
        load_into({"head": split.root["head"]}, saved)


def test_wrong_arguments_are_named(saved: Path) -> None:
    given: Any
    for given in (nn.Linear(8, 4), {}, {"head": 5}, [nn.Linear(8, 4)]):
        with pytest.raises(UsageError, match="load_into"):
            load_into(given, saved)
    nowhere: Any = None
    with pytest.raises(UsageError, match="None is no path"):
        load_into({"head": nn.Linear(8, 4)}, nowhere)
    with pytest.raises(InputError, match="doesn't exist"):
        load_into({"head": nn.Linear(8, 4)}, saved / "nowhere")


def test_a_flipped_byte_is_found(saved: Path, tmp_path: Path) -> None:
    for path in (saved / f"step-{STEPS}").iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= path.name != INDEX_NAME
        (tmp_path / path.name).write_bytes(content)
    with pytest.raises(InputError, match=r"is corrupt: part-.* isn't what was written"):
        load_into({"head": nn.Linear(8, 4)}, tmp_path)


def test_a_tensor_in_boxes_is_put_together_and_tied_ones_are_found(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    boxes = {(0, 0): whole[:1], (1, 0): whole[1:, :3], (1, 3): whole[1:, 3:]}
    key, name = "model.words.weight", "part-00000-00000.safetensors"
    content = save({piece_name(key, at): item.contiguous() for at, item in boxes.items()})
    (tmp_path / name).write_bytes(content)
    chunks = tuple(
        Chunk(offsets=at, sizes=tuple(item.shape), file=name) for at, item in boxes.items()
    )
    index = Index(
        progress=Progress(step=3, seed=0, dtype="float32", cursors={"t": Cursor()}),
        files={name: FileEntry(size_bytes=len(content), sha256=_sha256(content))},
        tensors={key: TensorEntry(dtype="float32", shape=(3, 4), chunks=chunks)},
    )
    (tmp_path / INDEX_NAME).write_text(dump_index(index))
    words, speak = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
    speak.weight = words.weight
    loaded = load_into({"speak": speak, "words": words}, tmp_path)
    assert loaded.parameters == ("words.weight",)
    assert torch.equal(speak.weight.float(), whole)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
