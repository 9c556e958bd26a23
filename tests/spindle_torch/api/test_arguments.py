"""Whatever a user gives that can't be is refused in a line that says what, where and what to do."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spindle_sim import make_plan, parse_cluster
from spindle_sim.backend import ExecutionOptions
from spindle_sim.cli.application import application
from spindle_sim.errors import InputError, UsageError
from spindle_sim.plan import save_plan
from spindle_torch.api import SpindleTask, running, save_workload, split_tasks, train
from spindle_torch.api.running import precision_notes
from tests.spindle_torch.api.models import build, drawing

DATA = drawing(x=(8,), y=("3",))


def make(**changed: Any) -> SpindleTask:
    given: dict[str, Any] = {"name": "t", "batch_size": 4, "data": DATA, **changed}
    return SpindleTask(given.pop("name"), **given)


def joined(task: SpindleTask, module: object = None, **added: Any) -> SpindleTask:
    """Give the task with a module and a loss behind it."""
    given: Any = nn.Linear(8, 3) if module is None else module
    task.add_module("m", given, **{"inputs": "x", **added})
    return task.add_module("loss", lambda x: x.square().mean()).add_flow("m", "loss")


class Passing(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([{"x": torch.zeros(8)}])


class Endless(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"x": torch.zeros(8)}


ITEMS = [{"x": torch.zeros(8)}] * 4


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        *(({"batch_size": given}, "batch_size") for given in (0, -1, "8", 8.5, None, True)),
        *(({"loss_weight": given}, "loss_weight") for given in (float("nan"), -1, "1", None, True)),
        *(({"name": given}, "name") for given in ("", "a/b", "a\n", 5, None)),
        ({"loss_count": 5}, "loss_count is an int"),
        ({"coupled_loss": "yes"}, "coupled_loss 'yes'"),
        ({"data": None}, "its data are None"),
        ({"data": "x.csv"}, "its data are a str"),
        ({"data": {"x": torch.zeros(4, 8)}}, "its data are a dict"),
        ({"data": torch.zeros(4, 8)}, "its data are a Tensor"),
        ({"data": []}, "its data are empty"),
        ({"data": 5}, "its data are an int"),
        ({"data": iter(ITEMS)}, "its data can only be run through"),
        ({"data": Passing()}, "its data can only be run through"),
        ({"data": Endless()}, r"the dataset Endless has no len\(\)"),
        ({"data": Endless}, "are the class Endless; make one of it"),
        ({"data": torch.utils.data.DataLoader(ITEMS)}, "DataLoader.*give its dataset"),  # type: ignore[arg-type]
        ({"data": lambda step: {}}, r"takes \(step\), but is called with \(step, first, last\)"),
    ],
)
def test_an_argument_of_a_task_is_named(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=f"task .*{told}"):
        make(**changed)


def test_all_mistakes_of_a_task_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        make(batch_size=0, loss_weight=-1, coupled_loss=1)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([1, 2], r"item 0 of its data is an int; it must be a dict"),
        ([ITEMS[0], {"z": torch.zeros(8)}], "item 1 of its data has the entries z, another one x"),
        ([ITEMS[0], {"x": torch.zeros(5)}], "raised RuntimeError: stack expects each tensor"),
        (lambda step, first, last: None, r"gave None for samples \[0, 2\) of step 0"),
        (lambda step, first, last: {"x": [1]}, "entry 'x' .* is list; .* 2 rows"),
        (lambda step, first, last: {"x": torch.zeros(2, 8)}, r"is \(2, 8\); .* with 3 rows"),
        (lambda step, first, last: {}, "m wants 'x', which its data don't give"),
        (lambda step, first, last: 1 / 0, r"raised ZeroDivisionError: .*test_arguments.py:\d+"),
    ],
)
def test_data_that_give_something_else_are_named(data: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"task 't': .*{told}"):
        split_tasks(joined(make(data=data)))


def test_numbers_in_a_dataset_become_tensors() -> None:
    task = make(data=[{"x": torch.zeros(8), "y": label} for label in range(3)])
    task.add_module("m", nn.Linear(8, 3), inputs="x")
    task.add_module("loss", nn.CrossEntropyLoss(), inputs="y").add_flow("m", "loss")
    assert split_tasks(task).workload.tasks[0].batch_size == 4


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (5, "is an int; give a torch.nn.Module or a function"),
        (None, "is None"),
        (nn.Linear, r"is the class Linear; make one of it: Linear\(...\)"),
        ([nn.Linear(8, 3)], "is a list"),
    ],
)
def test_what_is_no_module_is_named(module: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"task 't': module 'm' {told}"):
        make().add_module("m", module)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", 5, None, "keys", "parameters", "forward"])
def test_what_is_no_name_of_a_module_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match=r"task 't': .*(no name for a module|rename it)"):
        make().add_module(name, nn.Linear(8, 3))


@pytest.mark.parametrize("inputs", [5, None, [5], {"a": 5}, {5: "x"}, b"x"])
def test_inputs_that_are_no_names_are_refused(inputs: Any) -> None:
    with pytest.raises(InputError, match=r"task 't': module 'm': inputs=.* aren't names"):
        make().add_module("m", nn.Linear(8, 3), inputs=inputs)


@pytest.mark.parametrize(
    ("flow", "told"),
    [
        ({"source": None}, "no module None to join"),
        ({"argument": 5}, "argument=5 is no name"),
        ({"output": 1.5}, "output=1.5 is neither"),
        ({"output": "logits"}, "gives a Tensor, which has no 'logits'"),
        ({"output": 0}, "gives one tensor; leave output=0 out"),
        ({"argument": "given"}, r"module 'end' raised TypeError: .*given.*given=\(2, 3\)"),
    ],
)
def test_a_flow_that_cant_be_is_named(flow: dict[str, Any], told: str) -> None:
    task = make().add_module("m", nn.Linear(8, 3), inputs="x").add_module("end", lambda x: x.mean())
    with pytest.raises(InputError, match=f"task 't': .*{told}"):
        split_tasks(task.add_flow(**{"source": "m", "target": "end", **flow}))


def test_an_entry_of_what_a_module_gives_is_looked_for() -> None:
    class Giving(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"logits": super().forward(x)}

    task = make().add_module("m", Giving(8, 3), inputs="x").add_module("end", lambda x: x.mean())
    with pytest.raises(InputError, match="gives a dict, which has no 'logit'; did you mean"):
        split_tasks(task.add_flow("m", "end", output="logit"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "is blank"),
        ({"name": 5}, "is an int"),
        ({"blocks": nn.Linear}, "blocks=.*give a list"),
        ({"blocks": [nn.Linear(8, 3)]}, r"blocks lists .*type\(module\)"),
        ({"blocks": [nn.LSTM]}, "no module is a LSTM"),
        ({"whole": ["m"]}, "whole lists 'm', a str"),
        ({"coupled": nn.Linear(8, 3)}, "coupled=a Linear; give a list"),
        ({"coupled": [nn.Linear(8, 3)]}, "coupled lists a Linear that is no part of any task"),
    ],
)
def test_an_option_of_split_tasks_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        split_tasks(joined(make()), **options)


def test_only_tasks_are_split() -> None:
    given: Any
    for given in (5, nn.Linear(8, 3), [joined(make())]):
        with pytest.raises(InputError, match="give one SpindleTask after the other"):
            split_tasks(given)


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.blocks[0](x)
        return made


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("gone")


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            Breaking(),
            r"module 'm' \(m.blocks.0\) raised KeyError: 'gone' \(test_arguments.py:\d+\)",
        ),
        (nn.Linear(5, 3), r"module 'm' raised RuntimeError: .* it was given \(2, 8\)"),
        (lambda x: 1 / 0, "module 'm' raised ZeroDivisionError"),
    ],
)
def test_what_a_module_raises_names_it_and_keeps_the_cause(module: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"task 't': {told}") as caught:
        split_tasks(joined(make(), module))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("count", [lambda batch: batch["words"], lambda batch: "a", lambda _: -1])
def test_a_loss_count_that_gives_no_number_is_named(count: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match="task 't': its loss_count"):
        split_tasks(joined(make(loss_count=count)))


def test_training_needs_a_split_model_a_plan_and_steps() -> None:
    split = build("two_tasks")
    plan: Any = make_plan(split.workload, parse_cluster("a800:1x1"))
    model: Any = split
    for steps in (0, -1, "5", 2.5, None, True):
        count: Any = steps
        with pytest.raises(UsageError, match="train: steps"):
            train(model, plan, steps=count)
    for wrong in (ExecutionOptions(dtype="float16"), ExecutionOptions(clip_norm=-1.0)):
        with pytest.raises(UsageError, match=r"float16|clip-norm"):
            train(model, plan, steps=1, options=wrong)
    options: Any = {"clip_norm": 1}
    with pytest.raises(UsageError) as caught:
        train(model.workload, "plan.json", steps=1, options=options)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3


def test_a_workload_is_saved_and_nothing_else() -> None:
    split: Any = build("two_tasks")
    with pytest.raises(UsageError, match=r"give model.workload"):
        save_workload(split, "x.yaml")
    path: Any = 5
    with pytest.raises(UsageError, match="is no path"):
        save_workload(split.workload, path)


def test_torchs_way_of_ending_a_recomputation_is_no_mistake() -> None:
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    graph = joined(make(), inner).graph()
    batch = DATA(0, 0, 2)
    loss = checkpoint(graph, batch, use_reentrant=False)
    torch.autograd.backward(loss)
    assert all(parameter.grad is not None for parameter in inner.parameters())


def test_a_plan_for_modules_of_a_script_points_to_the_script(tmp_path: Path) -> None:
    plan = make_plan(split_tasks(joined(make())).workload, parse_cluster("a800:1x1"))
    save_plan(plan, tmp_path / "plan.json")
    with pytest.raises(UsageError, match="plan for torch modules of a script"):
        application()(args=["run", str(tmp_path / "plan.json")], standalone_mode=False)


def test_parameters_that_lose_precision_in_training_are_told() -> None:
    split = build("two_tasks")
    split.root.double()
    (note,) = precision_notes(split, "float32")
    assert "encoder.weight and others are of float64, and are trained in float32" in note
    assert not precision_notes(split, "float64")
    split.root.float()
    assert not precision_notes(split, "float32")


def test_ranks_that_are_started_are_told_before_they_say_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    split = build("two_tasks")
    told: list[str] = []
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/a/folder/script.py", raising=False)
    monkeypatch.setattr(running, "launch", lambda *_: told.append(capsys.readouterr().err))
    assert train(split, make_plan(split.workload, parse_cluster("a800:1x2")), steps=1) is None
    (text,) = told
    assert text.endswith("note: starting 2 ranks, each of which runs script.py up to train()\n")
