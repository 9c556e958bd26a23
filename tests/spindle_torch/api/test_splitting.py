"""How models are split: runs of equal blocks, what is shared, what it all costs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from spindle_sim import make_plan, parse_cluster, simulate
from spindle_sim.errors import InputError, UsageError
from spindle_sim.plan import validate_plan
from spindle_sim.planner.contract import contract
from spindle_sim.workload import Custom, TransformerLayer, load_workload
from spindle_torch.api import SpindleTask, SplitModel, save_workload, split_tasks
from spindle_torch.api.brought import check_plan
from tests.spindle_torch.api.models import Block, build, drawing
from tests.spindle_torch.api.stepping import check_split


def operator(split: SplitModel, module: str) -> Custom:
    found = split.workload.module(module).blocks[0].operator
    assert isinstance(found, Custom)
    return found


def test_repeated_blocks_contract_into_one_metaop() -> None:
    split = build("two_tasks")
    metaops = [node.metaop for node in contract(split.workload).nodes.values()]
    assert {metaop.id: metaop.num_ops for metaop in metaops} == {
        "vision/encoder/layer": 1,
        "vision/trunk/layer": 4,
        "vision/head/layer": 1,
        "text/words/layer": 1,
        "text/trunk/layer": 4,
        "text/text.loss/layer": 1,
    }


def test_modules_in_two_tasks_are_shared_and_tied_ones_borrow() -> None:
    split = build("two_tasks")
    assert [task.uses[1].module for task in split.workload.tasks] == ["trunk", "trunk"]
    assert operator(split, "text.loss").tied_to == ("words/layer",)
    total = sum(parameter.numel() for parameter in split.parameters.values())
    assert split.workload.parameters == total


def test_a_context_that_every_layer_attends_to_is_carried_along() -> None:
    split = build("unified")
    decoder = next(use for use in split.uses if use.unit == "model.decoder.layers")
    assert len(decoder.parts) == 3
    assert len(decoder.carried) == 1
    flows = {(flow.source, flow.target) for flow in split.workload.task("caption").flows}
    assert {target for _, target in flows if _ == "model.encoder.layers"} == {decoder.name}


def test_a_part_of_a_stack_that_one_task_runs_is_a_module_of_its_own() -> None:
    blocks = nn.ModuleList([Block(8) for _ in range(4)])

    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = blocks

        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            for block in self.blocks[:depth]:
                x = block(x)
            return x.square().mean()

    model = Early()
    tasks = [
        SpindleTask.of_model(
            f"depth{depth}",
            model,
            batch_size=4,
            data=drawing(x=(3, 8)),
            inputs="x",
            arguments={"depth": depth},
        )
        for depth in (2, 4)
    ]
    split = split_tasks(*tasks)
    repeats = {module.name: module.blocks[0].repeat for module in split.workload.modules}
    assert repeats["model.blocks.0-1"] == 2
    assert repeats["model.blocks.2-3"] == 2


def test_costs_are_those_of_a_transformer_layer() -> None:
    torch.set_default_dtype(torch.float32)
    layer = nn.TransformerEncoderLayer(
        64, 4, 256, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    task = SpindleTask.of_model("t", model, batch_size=4, data=drawing(x=(16, 64)), inputs="x")
    task.add_module("loss", lambda x: x.square().mean()).add_flow("model", "loss")
    known = TransformerLayer(width=64, heads=4, mlp_width=256)
    measured = operator(split_tasks(task), "model.layers")
    assert measured.parameters == known.parameters
    cost, expected = measured.cost(tokens=16), known.cost(tokens=16)
    assert cost.flops == expected.flops
    assert sum(item.flops for item in cost.attentions) == sum(
        item.flops for item in expected.attentions
    )
    assert cost.output_bytes == expected.output_bytes
    saved = expected.saved_bytes + expected.saved_replicated_bytes
    assert cost.saved_replicated_bytes == pytest.approx(saved, rel=0.15)


def test_an_operator_has_the_figures_of_each_tasks_token_count() -> None:
    split = build("two_tasks")
    trunk = operator(split, "trunk")
    rows = {task.name: task.uses[1].tokens for task in split.workload.tasks}
    assert rows == {"vision": 3, "text": 4}
    assert [trunk.cost(tokens=rows[name]).gemms[0].rows for name in ("vision", "text")] == [3, 4]


def test_convolutions_are_counted_as_products() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 36, 1))
    task = SpindleTask.of_model("t", model, batch_size=4, data=drawing(x=(3, 6, 6)), inputs="x")
    task.add_module("loss", lambda x: x.square().mean()).add_flow("model", "loss")
    assert operator(split_tasks(task), "model").cost(tokens=1).flops == 2 * (36 * 27 * 8 + 288)


def speaking(device: str) -> SplitModel:
    with torch.device(device):
        words, layer = nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    task = SpindleTask("t", batch_size=4, data=drawing(ids=("11", 5)))
    task.add_module("words", words, inputs="ids").add_module("encoder", encoder)
    task.add_module("loss", lambda x: x.square().mean())
    return split_tasks(task.add_flow("words", "encoder").add_flow("encoder", "loss"))


def test_a_model_without_memory_has_the_workload_of_one_with_memory() -> None:
    shadow = speaking("meta")
    assert shadow.workload == speaking("cpu").workload
    assert all(parameter.is_meta for parameter in shadow.parameters.values())
    plan = make_plan(shadow.workload, parse_cluster("a800:1x2"))
    with pytest.raises(UsageError, match="has no numbers to train"):
        check_plan(shadow, plan)


def test_a_frozen_module_is_frozen_in_the_workload() -> None:
    split = build("matching")
    assert {module.name: module.frozen for module in split.workload.modules} == {
        "a": True,
        "b": False,
        "loss": False,
    }
    metaop = next(
        n.metaop for n in contract(split.workload).nodes.values() if n.metaop.module == "loss"
    )
    assert metaop.batch_coupled


def test_torch_fx_checks_the_flows_of_what_it_can_trace() -> None:
    assert build("two_tasks").traced == {"vision", "text"}
    assert build("unified").traced == set()  # TransformerEncoder looks at its tensors


@pytest.mark.parametrize("strategy", ["spindle", "seq", "uniform"])
def test_split_models_are_planned_and_simulated(strategy: str) -> None:
    for name in ("two_tasks", "matching", "unified"):
        plan = make_plan(build(name).workload, parse_cluster("a800:2x4"), strategy)
        assert not validate_plan(plan)
        assert all(item.tp == 1 for item in plan.slices)
        assert simulate(plan).iteration_s > 0


def test_a_workload_can_be_saved_for_the_command_line(tmp_path: Path) -> None:
    for name in ("two_tasks", "unified"):
        workload = build(name).workload
        save_workload(workload, tmp_path / "workload.yaml")
        assert load_workload(tmp_path / "workload.yaml") == workload


def test_an_entry_that_the_data_lack_is_named() -> None:
    def load(step: int, first: int, last: int) -> dict[str, torch.Tensor]:
        return {"image": torch.full((4, 3), float(step))[first:last]}

    task = SpindleTask("vision", batch_size=4, data=load)
    task.add_module("head", nn.Linear(3, 1), inputs="images")
    task.add_module("loss", lambda x: x.mean()).add_flow("head", "loss")
    message = "task 'vision': head wants 'images', which its data don't give; did you mean 'image'"
    with pytest.raises(InputError, match=message):
        split_tasks(task)


def test_splitting_leaves_buffers_and_random_numbers_as_they_were() -> None:
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            made: torch.Tensor = self.inner(x)
            return made

    model = Counting()
    task = SpindleTask("t", batch_size=4, data=drawing(x=(8,)))
    task.add_module("model", model, inputs="x", coupled=True)
    task.add_module("loss", lambda x: x.square().mean()).add_flow("model", "loss")
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    split_tasks(task)
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def test_a_coupled_module_may_normalize_over_the_batch() -> None:
    """It gets the whole batch, wherever it runs."""
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        task = SpindleTask("t", batch_size=5, data=drawing(x=(8,)))
        task.add_module("first", nn.Linear(8, 8), inputs="x")
        task.add_module("norm", nn.Sequential(nn.BatchNorm1d(8)), coupled=True)
        task.add_module("last", nn.Linear(8, 3)).add_module("loss", lambda x: x.sin().mean())
        task.add_flow("first", "norm").add_flow("norm", "last").add_flow("last", "loss")
        check_split(split_tasks(task), seed=0)
    finally:
        torch.set_default_dtype(kind)
