"""What can't be split says which module it is, and the way round it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn

from spindle_sim import make_plan, parse_cluster
from spindle_sim.errors import InputError, PlanError
from spindle_torch.api import Loader, SpindleTask, split_tasks
from spindle_torch.api.brought import check_plan
from tests.spindle_torch.api.models import Block, build, drawing


def one(module: nn.Module, *more: Callable[..., torch.Tensor], **entries: tuple[int, ...]) -> None:
    """Split a task of a first module, and of others in a row behind it."""
    task = SpindleTask("t", batch_size=4, data=drawing(**(entries or {"x": (3, 8)})))
    task.add_module("first", module, inputs="x")
    before = "first"
    for number, part in enumerate([*more, lambda x: x.square().mean()]):
        task.add_module(f"part{number}", part).add_flow(before, f"part{number}")
        before = f"part{number}"
    split_tasks(task)


class Flattening(nn.Module):
    """Gives as many rows as there are positive numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return made[x > 0]


class Mixing(nn.Module):
    """Takes the mean over the batch away."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return made - made.mean(0, keepdim=True)


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x.relu_())
        return made


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(8), Block(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = self.blocks[0](x)
        if not seen.isfinite().all():  # the same for all samples
            seen = torch.zeros_like(seen)
        made: torch.Tensor = self.blocks[1](seen)
        return made


def test_batch_normalization_is_named() -> None:
    with pytest.raises(InputError, match=r"first\.1 \(BatchNorm1d\).*GroupNorm"):
        one(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(3)))


def test_batch_normalization_that_does_not_train_is_taken() -> None:
    one(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(3)).eval())


def test_sizes_that_depend_on_the_contents_are_named() -> None:
    with pytest.raises(InputError, match=r"what first gives: has the sizes .* pad them"):
        one(Flattening())


def test_a_module_that_mixes_samples_is_named() -> None:
    with pytest.raises(InputError, match="what first gives for a sample depends on the other"):
        one(Mixing(), nn.Linear(8, 8))


class Recurrent(nn.Module):
    """Runs over the batch as if it were time: a sample depends on those before it only."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], **options: bool) -> None:
        super().__init__()
        self.inner = kind(8, 8, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)[0]
        return made


class Summing(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).cumsum(0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_module_that_takes_the_batch_for_time_is_named(
    kind: type[nn.LSTM | nn.GRU],
) -> None:
    with pytest.raises(InputError, match=r"what first gives for a sample .*batch_first"):
        one(Recurrent(kind))
    one(Recurrent(kind, batch_first=True))


def test_samples_that_depend_on_those_before_them_alone_are_found() -> None:
    with pytest.raises(InputError, match="what first gives for a sample depends on the other"):
        one(Summing(8, 8))


@pytest.mark.parametrize("mixing", [Mixing, lambda: Summing(8, 8)])
def test_dropout_doesnt_hide_that_samples_are_mixed(mixing: Callable[[], nn.Module]) -> None:
    module = nn.Sequential(nn.Dropout(0.5), mixing())
    with pytest.raises(InputError, match="gives for a sample depends on the other"):
        one(module)
    assert module[0].training


class MixingWhileItTrains(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
        return super().forward(x)


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return made * torch.rand_like(made) + torch.normal(0.0, 1.0, made.shape)


class NoisyMixing(Noisy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return made - made.mean(0)


class Negatives(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return made - made[torch.randint(len(x), (len(x),))]


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.calls * super().forward(x)


@pytest.mark.parametrize("kind", [MixingWhileItTrains, NoisyMixing, Negatives])
def test_samples_that_are_mixed_by_chance_are_found(kind: type[nn.Linear]) -> None:
    with pytest.raises(InputError, match="what first gives for a sample depends on the other"):
        one(kind(8, 8))


def test_noise_of_each_samples_own_is_taken() -> None:
    one(Noisy(8, 8))
    one(Noisy(8, 8).eval())


def test_a_module_that_gives_something_else_each_time_is_named() -> None:
    with pytest.raises(InputError, match="first gives something else for the same samples"):
        one(Counting(8, 8))


def test_a_module_that_is_steady_while_it_evaluates_is_checked_so() -> None:
    class Unsteady(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.training else nn.Linear.forward(self, x)

    module = Unsteady(8, 8)
    one(module)
    assert module.training


@pytest.mark.parametrize("loss", [lambda x: x.sum(), lambda x: x.square().sum(0).mean()])
def test_a_loss_that_is_no_mean_over_the_samples_is_refused(
    loss: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", nn.Linear(8, 8), inputs="x")
    task.add_module("loss", loss).add_flow("model", "loss")
    with pytest.raises(InputError, match=r"task 't': its loss is .* twice; give their mean"):
        split_tasks(task)


def test_a_loss_that_is_no_mean_of_each_samples_is_refused() -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", nn.Linear(8, 8), inputs="x")
    task.add_module("loss", lambda x: x.mean().square()).add_flow("model", "loss")
    with pytest.raises(InputError, match=r"task 't': its loss is .* mean of each one's is"):
        split_tasks(task)


def test_a_module_that_mixes_samples_a_little_is_named() -> None:
    class Leaning(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = super().forward(x)
            return made + 1e-3 * made.mean(0, keepdim=True)

    with pytest.raises(InputError, match="what first gives for a sample depends on the other"):
        one(Leaning(8, 8))


def test_rounding_in_half_precision_is_no_mixing() -> None:
    class Rounding(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    one(Rounding(8, 8))


def test_rounding_in_a_part_of_less_precision_is_no_mixing() -> None:
    class Rounding(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).double()

    one(Rounding(8, 8), lambda x: x.sin())


def test_sparse_data_and_gradients_are_refused() -> None:
    def load(step: int, first: int, last: int) -> dict[str, torch.Tensor]:
        return {"x": torch.eye(4)[first:last].to_sparse()}

    task = SpindleTask("t", batch_size=4, data=load).add_module("a", nn.Linear(4, 4), inputs="x")
    with pytest.raises(InputError, match=r"task 't': entry 'x' .* is sparse or nested"):
        split_tasks(task)
    task = SpindleTask("t", batch_size=4, data=drawing(x=("5", 3)))
    task.add_module("words", nn.Embedding(5, 8, sparse=True), inputs="x")
    task.add_module("loss", lambda x: x.square().mean()).add_flow("words", "loss")
    with pytest.raises(InputError, match="words: gives its parameters sparse gradients"):
        split_tasks(task)


def test_a_mean_over_words_needs_their_count() -> None:
    def loss(given: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (given.square().mean(2) * weights.square()).sum() / weights.square().sum()

    def count(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return batch["weights"].square().sum()

    for known in (None, count):
        data = drawing(x=(3, 8), weights=(3,))
        task = SpindleTask("t", batch_size=4, data=data, loss_count=known)
        task.add_module("model", nn.Linear(8, 8), inputs="x")
        task.add_module("loss", loss, inputs="weights").add_flow("model", "loss")
        if known is None:
            with pytest.raises(InputError, match="loss_count"):
                split_tasks(task)
        else:
            split_tasks(task)


def test_a_coupled_loss_need_be_no_mean() -> None:
    for coupled in (True, False):
        task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)), coupled_loss=not coupled)
        task.add_module("model", nn.Linear(8, 8), inputs="x")
        task.add_module("loss", lambda x: x.sum(), coupled=coupled).add_flow("model", "loss")
        split_tasks(task)


def test_a_module_that_overwrites_its_input_is_named() -> None:
    with pytest.raises(InputError, match=r"part0: overwrites its input .*inplace=False"):
        one(nn.Linear(8, 8), Overwriting())


def test_a_decision_by_what_a_module_gave_is_named() -> None:
    with pytest.raises(InputError, match=r"first\.blocks\.0: the model decides by numbers"):
        one(Deciding())


def test_a_model_that_decides_can_stay_whole() -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", Deciding(), inputs="x", whole=True)
    task.add_module("loss", lambda x: x.square().mean()).add_flow("model", "loss")
    assert [use.name for use in split_tasks(task).uses] == ["model"]


def test_a_task_that_ends_without_a_loss_says_what_it_gives() -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", nn.Linear(8, 8), inputs="x")
    with pytest.raises(InputError, match=r"model ends it.* not \(3, 3, 8\)|not \(2, 3, 8\)"):
        split_tasks(task)


@pytest.mark.parametrize(
    "loss", [lambda x: x.detach().mean(), lambda x: torch.tensor(1.0), lambda x: x.argmax()]
)
def test_a_loss_without_a_gradient_is_told(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", nn.Linear(8, 8), inputs="x")
    task.add_module("loss", loss).add_flow("model", "loss")
    with pytest.raises(InputError, match="task 't': its loss has no gradient"):
        split_tasks(task)


def test_a_task_that_trains_nothing_is_told() -> None:
    with pytest.raises(InputError, match=r"its loss has no gradient: every parameter .* is frozen"):
        one(nn.Linear(8, 8).requires_grad_(False))


def test_a_loss_that_is_no_number_is_told() -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", nn.Linear(8, 8), inputs="x")
    task.add_module("loss", lambda x: x.mean().log() * 0 - torch.inf).add_flow("model", "loss")
    with pytest.raises(
        InputError, match=r"task 't': its loss is (-inf|nan) for the first 3 samples"
    ):
        split_tasks(task)


def test_a_coupled_module_within_another_is_coupled() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Mixing())
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", model, inputs="x")
    task.add_module("loss", lambda x: x.square().mean()).add_flow("model", "loss")
    split = split_tasks(task, coupled=[model[1]])
    assert any(unit.coupled for unit in split.units)
    with pytest.raises(InputError, match="coupled: a Mixing lies within a module that isn't cut"):
        split_tasks(task, coupled=[model[1]], whole=[model])


def test_flows_join_modules_that_are_there_and_form_no_cycle() -> None:
    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("a", nn.Linear(8, 8)).add_module("b", nn.Linear(8, 8))
    with pytest.raises(InputError, match="no module 'c' to join"):
        task.add_flow("a", "c")
    with pytest.raises(InputError, match="two modules named 'a'"):
        task.add_module("a", nn.Linear(8, 8))
    task.add_flow("a", "b").add_flow("b", "a")
    with pytest.raises(InputError, match="the flows among a, b form a cycle"):
        split_tasks(task)


def test_two_modules_of_one_name_are_refused() -> None:
    tasks = []
    for name in ("s", "t"):
        task = SpindleTask(name, batch_size=4, data=drawing(x=(3, 8)))
        task.add_module("a", nn.Linear(8, 8), inputs="x")
        task.add_module("loss", lambda x: x.mean()).add_flow("a", "loss")
        tasks.append(task)
    with pytest.raises(InputError, match="task 't': another module than 'a'"):
        split_tasks(*tasks)


def test_a_loader_that_gives_no_row_for_each_sample_is_told() -> None:
    task = SpindleTask("t", batch_size=4, data=lambda step, first, last: {"x": torch.zeros(7, 8)})
    task.add_module("a", nn.Linear(8, 8), inputs="x")
    with pytest.raises(InputError, match=r"entry 'x' of samples \[0, 2\) of step 0 is \(7, 8\)"):
        split_tasks(task)


@pytest.mark.parametrize(
    "load",
    [
        lambda step, first, last: {
            "x": torch.randn(last - first, 8, generator=torch.Generator().manual_seed(step))
        },
        lambda step, first, last: {"x": torch.randn(last - first, 8)},
    ],
)
def test_data_that_depend_on_which_samples_come_together_are_told(load: Loader) -> None:
    task = SpindleTask("t", batch_size=4, data=load)
    task.add_module("a", nn.Linear(8, 1), inputs="x").add_module("loss", lambda x: x.mean())
    with pytest.raises(InputError, match=r"task 't': its data give another 'x' when asked for"):
        split_tasks(task.add_flow("a", "loss"))


def test_a_plan_for_another_model_is_refused() -> None:
    plan = make_plan(build("two_tasks").workload, parse_cluster("a800:1x2"))
    with pytest.raises(PlanError, match="of another model or other batches"):
        check_plan(build("unified"), plan)


def test_a_plan_with_tensor_parallelism_is_refused() -> None:
    split = build("two_tasks")
    plan = make_plan(split.workload, parse_cluster("a800:1x2"))
    slices = tuple(replace(item, tp=2, dp=1, devices=(0, 1)) for item in plan.slices)
    with pytest.raises(PlanError, match="user's modules run whole"):
        check_plan(split, replace(plan, slices=slices))
