"""Which devices ranks take, and which groups they make on GPUs, without a GPU."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from spindle_sim.backend import ExecutionOptions
from spindle_sim.errors import UsageError
from spindle_torch import joining
from spindle_torch.groups import make_groups
from spindle_torch.joining import Seat, agreed_device, join
from spindle_torch.worker import Situation, WorkerOptions, run_worker
from tests.spindle_torch.plans import tiny_plan
from tests.spindle_torch.running import run_all

SEATS = tuple(Seat(wanted="auto", host="a", gpu=f"gpu-{n}", visible=4) for n in range(4))


def seats(wanted: str, *gpus: str, visible: int = 2) -> tuple[Seat, ...]:
    return tuple(Seat(wanted=wanted, host="a", gpu=gpu, visible=visible) for gpu in gpus)


def test_ranks_take_gpus_if_each_has_one_of_its_own() -> None:
    assert agreed_device(SEATS) == ("cuda", "")
    assert agreed_device(seats("cuda", "x", "y")) == ("cuda", "")


def test_gpus_of_one_name_on_two_hosts_are_two() -> None:
    found = [Seat(wanted="auto", host=host, gpu="0", visible=1) for host in ("a", "b")]
    assert agreed_device(found) == ("cuda", "")


def test_all_ranks_take_cpus_where_one_has_no_gpu_and_are_told_so() -> None:
    """Each by itself the first two would wait for the others in NCCL, and those in gloo."""
    kind, note = agreed_device(seats("auto", "x", "y", "", ""))
    assert kind == "cpu"
    assert note == "a has 4 ranks, which see 2 GPUs: all ranks run on CPUs"


def test_two_ranks_that_see_the_same_gpu_dont_share_it() -> None:
    assert agreed_device(seats("auto", "x", "x", visible=1))[0] == "cpu"


def test_cpus_without_any_gpu_are_nothing_to_tell() -> None:
    assert agreed_device(seats("auto", "", "", visible=0)) == ("cpu", "")
    assert agreed_device(seats("cpu", "x", "y")) == ("cpu", "")


def test_gpus_that_are_asked_for_and_missing_are_an_error_that_counts_them() -> None:
    with pytest.raises(
        UsageError,
        match=r"--device cuda: rank 2, 3 has no GPU of its own \(a has 4 ranks, which see 2 GPUs\)",
    ):
        agreed_device(seats("cuda", "x", "y", "", ""))


def test_ranks_that_are_told_other_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="rank 1 has another --device than rank 0"):
        agreed_device((*seats("auto", "x"), *seats("cpu", "y")))


def test_an_emulated_run_has_no_use_for_gpus() -> None:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from spindle_sim.plan import save_plan

    with TemporaryDirectory() as name:
        path = Path(name) / "plan.json"
        save_plan(tiny_plan(), path)
        options = WorkerOptions(plan=path, device="cuda", execution=ExecutionOptions(emulate=True))
        with pytest.raises(UsageError, match="an emulated run computes nothing"):
            run_worker(options, Situation())


class FakeGpus:
    """Some GPUs of this host, as far as choosing among them goes; `calls` in order."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, local_rank: int) -> None:
        self.calls: list[object] = []
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: count)
        patch.setattr(
            torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"id{index}")
        )
        patch.setattr(torch.cuda, "set_device", lambda device: self.calls.append(device))
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setattr(dist, "get_node_local_rank", lambda fallback_rank: local_rank)
        patch.setattr(dist, "init_process_group", self.init)

    def init(self, backend: str, *, timeout: timedelta) -> None:
        self.calls.append((backend, timeout.total_seconds()))


def gathering(*others: Seat) -> Callable[[Seat, type], list[Seat]]:
    return lambda own, _: [own, *others]


def test_a_rank_takes_the_gpu_of_its_place_on_the_host_before_it_makes_anything_of_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = FakeGpus(monkeypatch, count=4, local_rank=2)
    monkeypatch.setattr(joining, "all_gather_json", gathering())
    assert join("auto", 30.0).device == torch.device("cuda", 2)
    # Words go over gloo, so that no rank waits for another in NCCL before all know where they are.
    assert gpus.calls == [("gloo", 30.0), torch.device("cuda", 2)]


def test_a_rank_that_is_shown_a_single_gpu_takes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpus(monkeypatch, count=1, local_rank=3)
    monkeypatch.setattr(joining, "all_gather_json", gathering(*SEATS[:3]))
    assert join("auto", 30.0).device == torch.device("cuda", 0)


def test_a_rank_beyond_the_gpus_brings_all_to_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = FakeGpus(monkeypatch, count=2, local_rank=2)
    monkeypatch.setattr(joining, "all_gather_json", gathering(*SEATS[:2]))
    joined = join("auto", 30.0)
    assert joined.device == torch.device("cpu")
    assert "see 2 GPUs: all ranks run on CPUs" in joined.note
    assert gpus.calls == [("gloo", 30.0)]


class RecordingGroups:
    """Process groups that are only asked for; `calls` in order."""

    def __init__(self, patch: pytest.MonkeyPatch, world: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        patch.setattr(dist, "get_world_size", lambda: world)
        patch.setattr(dist, "new_group", self.new_group)
        patch.setattr(dist, "all_reduce", self.all_reduce)
        # There is nowhere to put it.
        patch.setattr(torch, "ones", lambda count, device: torch.full((count,), 1.0))

    def new_group(self, ranks: list[int], **options: Any) -> tuple[int, ...]:
        assert options["timeout"] == timedelta(seconds=30)
        self.calls.append(("made", tuple(ranks), options["backend"], options["device_id"]))
        return tuple(ranks)

    def all_reduce(self, tensor: torch.Tensor, group: tuple[int, ...] | None) -> None:
        self.calls.append(("used", group))


@pytest.mark.parametrize("rank", [0, 3])
def test_groups_on_gpus_are_made_by_all_in_one_order_and_used_by_their_members_at_once(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Messages between some ranks must not be what sets a group up: it would wait for ever."""
    plan = tiny_plan("uniform", ranks=4)
    groups = RecordingGroups(monkeypatch, world=4)
    device = torch.device("cuda", rank)
    found = make_groups(plan, rank, device, 30.0)
    everyone = (0, 1, 2, 3)
    assert found.world == everyone  # type: ignore[comparison-overlap]
    made = [call[1] for call in groups.calls if call[0] == "made"]
    assert made == [everyone, *sorted(made[1:])]
    assert set(found.by_ranks) == {ranks for ranks in made[1:] if rank in ranks}
    for index, call in enumerate(groups.calls):
        if call[0] == "made":
            assert call[2:] == ("nccl", device)
            if rank in call[1]:
                assert groups.calls[index + 1] == ("used", call[1])


def test_groups_on_cpus_are_as_torchs_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = RecordingGroups(monkeypatch, world=4)
    found = make_groups(tiny_plan("uniform", ranks=4), 0, torch.device("cpu"), 30.0)
    assert found.world is None
    assert groups.calls[0] == ("used", None)
    assert all(call[2:] == (None, None) for call in groups.calls if call[0] == "made")


def test_ranks_without_gpus_agree_on_cpus(tmp_path: Any) -> None:
    run_all(_join, [(str(tmp_path), rank) for rank in range(2)], tmp_path)


def _join(folder: str, rank: int) -> None:
    """Join for real, but for how ranks find each other."""
    real = dist.init_process_group

    def init(backend: str, *, timeout: timedelta) -> None:
        real(
            backend,
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=2,
            timeout=timeout,
        )

    patch = pytest.MonkeyPatch()
    patch.setattr(dist, "init_process_group", init)
    patch.setattr(dist, "is_nccl_available", lambda: False)
    assert join("auto", 30.0).device == torch.device("cpu")
    assert dist.get_backend() == "gloo"
    with pytest.raises(UsageError, match="rank 0, 1 has no GPU of its own"):
        agreed_device(seats("cuda", "", ""))
    dist.destroy_process_group()
