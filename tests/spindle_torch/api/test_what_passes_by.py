"""What reaches other devices by no module's output: found when a model is split, or taken along."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spindle_sim.errors import ExecutionError, InputError
from spindle_torch.api import SpindleTask, SplitModel, split_tasks
from tests.spindle_torch.api.models import Block, drawing
from tests.spindle_torch.api.stepping import check_split, split_loss


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(kind)


class Plain(Block):
    """A block of the width of all models here."""

    def __init__(self) -> None:
        super().__init__(8)


Body = Callable[["Stacked", torch.Tensor], torch.Tensor]


class Stacked(nn.Module):
    """An entrance, blocks and a loss, joined by the code that is tested."""

    def __init__(self, body: Body, block: Callable[[], nn.Module] = Plain) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.leave = nn.Linear(8, 3)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.leave(self.body(self, self.enter(x)))
        return made.square().mean()


def split(model: nn.Module) -> SplitModel:
    task = SpindleTask.of_model("t", model, batch_size=7, data=drawing(x=(8,)), inputs="x")
    return split_tasks(task)


class Noting(Plain):
    """Keeps what it gave."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        self.noted = made
        self.square = made.square().mean(-1)
        return made


class Remembering(Plain):
    """Adds something of what it gave when it ran before."""

    before: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        made = made if self.before is None else made + self.before
        self.before = made * 0.5
        return made


class Wrapped(nn.Module):
    """A block that is called in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(8)


class Listing(Wrapped):
    """Puts what it made into a list."""

    def forward(self, x: torch.Tensor, into: list[torch.Tensor]) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        into.append(made.mean(-1, keepdim=True))
        return made


@dataclass
class State:
    """Something that torch doesn't look into."""

    rows: torch.Tensor


class OfState(Wrapped):
    """Takes its input in an object."""

    def forward(self, state: State) -> torch.Tensor:
        made: torch.Tensor = self.inner(state.rows)
        return made


class StateToState(Wrapped):
    """Takes its input in an object, and gives one."""

    def forward(self, state: State) -> State:
        return State(self.inner(state.rows))


def all_blocks(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        x = block(x)
    return x


def with_attributes(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    made = all_blocks(model, x)
    for block in model.blocks:
        assert isinstance(block, Noting)
        made = made + block.square[:, None]
    return made


def with_what_it_gave(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    made = all_blocks(model, x)
    assert isinstance(model.blocks[0], Noting)
    return made + model.blocks[0].noted


def with_a_list(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    for block in model.blocks:
        x = block(x, kept)
    return x + torch.cat(kept, dim=1).mean(-1, keepdim=True)


def twice(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        assert isinstance(block, Remembering)
        block.before = None
    return all_blocks(model, all_blocks(model, x))


def with_states(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    state = State(x)
    for block in model.blocks:
        state = block(state)
    return state.rows


@pytest.mark.parametrize(
    ("block", "body"),
    [
        (Noting, with_attributes),
        (Noting, with_what_it_gave),
        (Listing, with_a_list),
        (Remembering, twice),
        (StateToState, with_states),
    ],
)
def test_a_module_that_keeps_what_others_read_is_named(block: type[nn.Module], body: Body) -> None:
    with pytest.raises(InputError, match=r"^model\.blocks\.\d: keeps a tensor that it made"):
        split(Stacked(body, block))


def test_a_loss_that_reads_what_a_module_keeps_is_refused() -> None:
    first = Noting()
    task = SpindleTask("t", batch_size=4, data=drawing(x=(8,)))
    task.add_module("first", first, inputs="x")
    task.add_module("loss", lambda x: x.mean() + first.square.mean())
    with pytest.raises(InputError, match="first: keeps a tensor that it made"):
        split_tasks(task.add_flow("first", "loss"))


def test_a_module_may_keep_what_nobody_else_reads() -> None:
    check_split(split(Stacked(all_blocks, Noting)), seed=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_tensor_in_an_object_is_an_input_as_well(seed: int) -> None:
    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            x = block(State(x))
        return x

    found = split(Stacked(body, OfState))
    assert any(use.parts[0].inputs for use in found.uses if "blocks" in use.name)
    check_split(found, seed=seed)


@pytest.mark.parametrize(
    "reading",
    [
        lambda x: torch.from_numpy(x.detach().numpy() > 0),
        lambda x: torch.tensor(x.detach().tolist()) > 0,
        lambda x: torch.as_tensor(np.asarray(x.detach())) > 0,
    ],
)
def test_numbers_that_leave_torch_between_modules_are_a_decision(
    reading: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        x = model.blocks[0](x)
        return all_blocks(model, x) * reading(x)

    with pytest.raises(InputError, match=r"model\.blocks\.0: the model decides by numbers"):
        split(Stacked(body))


def test_a_parameter_that_no_module_of_a_task_has_is_refused() -> None:
    head = nn.Linear(8, 3)
    task = SpindleTask("t", batch_size=4, data=drawing(x=(8,)))
    task.add_module("body", nn.Linear(8, 8), inputs="x")
    task.add_module("loss", lambda x: head(x).square().mean()).add_flow("body", "loss")
    with pytest.raises(InputError, match=r"a parameter of the shape \(3, 8\) that belongs to no"):
        split_tasks(task)
    head.requires_grad_(requires_grad=False)
    assert split_tasks(task).units


def test_noise_between_modules_that_several_parts_need_is_refused() -> None:
    class Denoising(Stacked):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn_like(x)
            made: torch.Tensor = self.body(self, self.enter(x + noise))
            return (made - noise).square().mean()

    with pytest.raises(InputError, match="random numbers that are drawn between modules") as found:
        split(Denoising(all_blocks))
    assert "the loss" in str(found.value)


def test_dropout_between_modules_that_runs_on_beside_blocks_is_refused() -> None:
    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            x = x + nn.functional.dropout(block(x), 0.1, model.training)
        return x

    with pytest.raises(InputError, match=r"random numbers .* model\.blocks\.\d"):
        split(Stacked(body))
    assert split(Stacked(body).eval()).units


def test_dropout_between_modules_that_one_part_needs_is_taken() -> None:
    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        return all_blocks(model, nn.functional.dropout(x, 0.1))

    assert split(Stacked(body)).units


def test_a_generator_that_goes_on_from_one_forward_to_the_next_is_refused() -> None:
    class Noisy(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.draw = torch.Generator()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.randn(x.shape, generator=self.draw))

    class Fixed(Noisy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.draw.manual_seed(0)
            return super().forward(x)

    with pytest.raises(InputError, match=r"task 't': draws .* torch\.Generator of its own"):
        split(Stacked(all_blocks, Noisy))
    assert split(Stacked(all_blocks, Fixed)).units


def test_complex_numbers_between_modules_are_refused() -> None:
    class Fourier(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = torch.fft.fft(super().forward(x))
            return made

    fourier = Fourier(8, 8)

    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        return all_blocks(model, x) + torch.real(fourier(x))

    model = Stacked(body)
    model.add_module("fourier", fourier)
    with pytest.raises(InputError, match=r"model\.fourier gives: complex numbers"):
        split(model)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_torch_around_a_module_and_other_code_are_refused(reentrant: bool) -> None:
    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            x = checkpoint(lambda y, run=block: run(y).sin(), x, use_reentrant=reentrant)
        return x

    with pytest.raises(InputError, match=r"model\.blocks\.0: lies within torch\.utils\.checkpoint"):
        split(Stacked(body))


def test_a_checkpoint_of_torch_around_a_module_alone_is_taken() -> None:
    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    check_split(split(Stacked(body)), seed=2)


def test_tensors_of_no_numbers_pass_between_modules() -> None:
    class Beside(Wrapped):
        def forward(self, x: torch.Tensor, none: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.inner(x), none * 2

    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        none = x[:, :0] * 1
        for block in model.blocks:
            x, none = block(x, none)
        return x + none.sum(1, keepdim=True)

    check_split(split(Stacked(body, Beside)), seed=3)


class Numbering(Wrapped):
    """Gives a plain number beside its output."""

    def __init__(self, number: Callable[[torch.Tensor, nn.Module], float]) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        return self.inner(x), self.number(x, self.inner)


def with_numbers(model: Stacked, x: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        x, number = block(x)
        x = x * number
    return x


def test_a_plain_number_that_depends_on_the_samples_is_refused() -> None:
    model = Stacked(with_numbers, lambda: Numbering(lambda x, _: 1 / len(x)))
    with pytest.raises(InputError, match=r"model\.blocks\.0 gives has plain numbers of Python"):
        split(model)


def test_a_plain_number_that_training_changes_is_found_where_it_changes() -> None:
    def largest(_: torch.Tensor, inner: nn.Module) -> float:
        return max(item.detach().abs().max().item() for item in inner.parameters())

    found = split(Stacked(with_numbers, lambda: Numbering(largest)))
    check_split(found, seed=4)
    with torch.no_grad():
        for parameter in found.parameters.values():
            parameter.mul_(1.5)
    with pytest.raises(ExecutionError, match=r"model\.blocks\.0: gives other plain numbers"):
        split_loss(found, "t", seed=4)


@pytest.mark.parametrize("seed", range(4))
def test_code_between_modules_may_overwrite_what_they_gave(seed: int) -> None:
    class Adding(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * 1.0) + x * 1.0

    def body(model: Stacked, x: torch.Tensor) -> torch.Tensor:
        first = model.blocks[0](x)
        first.mul_(2.0)
        second = model.blocks[1](first)
        first += 1.0
        third = model.blocks[2](second)
        third.sub_(first)
        made: torch.Tensor = model.blocks[3](third)
        made.add_(first)
        last: torch.Tensor = made + second
        return last

    class Wide(Adding):
        def __init__(self) -> None:
            super().__init__(8, 8)

    check_split(split(Stacked(body, Wide)), seed=seed)
