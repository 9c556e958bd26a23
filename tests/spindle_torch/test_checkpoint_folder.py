"""Finding the checkpoint to go on from, among what runs leave behind."""

import hashlib
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from spindle_sim.errors import InputError, UsageError
from spindle_torch.checkpoint_folder import (
    begin_writing,
    check_files,
    commit,
    find_checkpoint,
    is_whole_or_gone,
    keep_latest,
    make_room,
    read_checkpoint,
    steps_in,
)
from spindle_torch.checkpoint_index import (
    Chunk,
    FileEntry,
    Index,
    Progress,
    TensorEntry,
    dump_index,
)

NAME = "part-00000-00000.safetensors"
ASIDE = "aside-2-0123456789ab"


def write(folder: Path, step: int, aside: str | None = None) -> Path:
    content = save({"model.a": torch.full((3,), float(step))})
    entry = FileEntry(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    chunk = Chunk(offsets=(0,), sizes=(3,), file=NAME)
    index = Index(
        progress=Progress(step=step, seed=0, dtype="float32", cursors={}, aside=aside),
        files={NAME: entry},
        tensors={"model.a": TensorEntry(dtype="float32", shape=(3,), chunks=(chunk,))},
    )
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(content)
    (folder / "index.json").write_text(dump_index(index))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (2, 4, 10):
        write(tmp_path / f"step-{step}", step)
    return tmp_path


def test_the_latest_is_found_by_its_number_or_one_by_its_name(run: Path) -> None:
    assert find_checkpoint(run).folder == run / "step-10"
    assert find_checkpoint(run / "step-4").index.progress.step == 4
    assert steps_in(run) == (2, 4, 10)
    moved = (run / "step-4").rename(run / "a name of my own")
    assert find_checkpoint(moved).index.progress.step == 4


def test_one_that_was_never_finished_is_told_and_passed_over(run: Path) -> None:
    write(run / "step-12.tmp", 12)
    found = find_checkpoint(run)
    assert found.folder == run / "step-10"
    assert found.passed_over == (f"{run / 'step-12.tmp'}: was never finished",)
    with pytest.raises(InputError, match="was never finished"):
        find_checkpoint(run / "step-12.tmp")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / NAME).unlink(), "is missing"),
        (lambda folder: (folder / NAME).write_bytes(b"x"), "has 1 bytes of"),
        (lambda folder: (folder / "index.json").unlink(), "no such file"),
        (lambda folder: (folder / "index.json").write_bytes(b""), "its index isn't JSON"),
        (
            lambda folder: (folder / "index.json").write_bytes(
                (folder / "index.json").read_bytes()[:-20]
            ),
            "its index isn't JSON",
        ),
        (lambda folder: (folder / "index.json").write_bytes(b"\xff\xfe"), "its index isn't JSON"),
        (lambda folder: (folder / "index.json").write_bytes(b"[" * 10**5), "its index isn't JSON"),
    ],
)
def test_a_damaged_one_is_passed_over_and_refused_where_it_is_named(  # type: ignore[no-untyped-def]
    run: Path, damage, reason: str
) -> None:
    damage(run / "step-10")
    found = find_checkpoint(run)
    assert found.folder == run / "step-4"
    (told,) = found.passed_over
    assert reason in told
    with pytest.raises(InputError, match=reason):
        find_checkpoint(run / "step-10")
    for step in (2, 4):
        damage(run / f"step-{step}")
    with pytest.raises(InputError, match="has no whole checkpoint") as caught:
        find_checkpoint(run)
    assert len(caught.value.problems) == 4


def test_other_folders_and_files_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="doesn't exist"):
        find_checkpoint(tmp_path / "nothing")
    (tmp_path / "model.pt").write_bytes(pickle.dumps({}))
    with pytest.raises(InputError, match="is a file, not a folder"):
        find_checkpoint(tmp_path / "model.pt")
    with pytest.raises(InputError, match="has no checkpoint of spindle"):
        find_checkpoint(tmp_path)
    torchs = tmp_path / "step-1"  # as torch.distributed.checkpoint writes it by itself
    torchs.mkdir()
    (torchs / ".metadata").write_bytes(pickle.dumps({}))
    (torchs / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(InputError, match=r"no whole checkpoint of spindle: index.json"):
        find_checkpoint(torchs)


def test_a_file_with_one_bit_turned_is_found_by_its_hash(run: Path) -> None:
    folder = run / "step-10"
    files = read_checkpoint(folder).files.items()
    check_files(folder, files)
    content = bytearray((folder / NAME).read_bytes())
    content[-1] ^= 1
    (folder / NAME).write_bytes(content)
    read_checkpoint(folder)  # it is as long as ever
    with pytest.raises(InputError, match=f"is corrupt: {NAME} isn't what was written"):
        check_files(folder, files)


def test_one_whose_kept_parameters_are_gone_is_passed_over(run: Path) -> None:
    aside = write(run / ASIDE, 2)
    write(run / "step-12", 12, aside=ASIDE)
    assert find_checkpoint(run).aside == aside
    shutil.rmtree(aside)
    found = find_checkpoint(run)
    assert found.folder == run / "step-10"
    assert any(ASIDE in told for told in found.passed_over)


def test_only_the_latest_and_what_they_need_stay(run: Path) -> None:
    write(run / ASIDE, 2)
    write(run / "aside-1-0123456789ab", 1)
    write(run / "step-12", 12, aside=ASIDE)
    keep_latest(run, 2)
    assert {item.name for item in run.iterdir()} == {"step-10", "step-12", ASIDE}


@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_damaged_ones_stay_and_none_that_is_whole_goes_in_their_place(
    run: Path, number: int
) -> None:
    write(run / ASIDE, 2)
    write(run / "step-12", 12)
    (run / "step-10" / NAME).unlink()
    keep_latest(run, number)
    whole = ["step-2", "step-4", "step-12"][-number:]
    assert {item.name for item in run.iterdir()} == {*whole, "step-10", ASIDE}
    assert find_checkpoint(run).folder == run / "step-12"


def test_of_linked_checkpoints_the_links_are_removed_not_what_they_lead_to(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for step in (2, 4):
        write(run / f"step-{step}", step)
    (run / "step-2").rename(elsewhere)
    (run / "step-2").symlink_to(elsewhere)
    (run / "step-6.tmp").symlink_to(elsewhere)
    (run / "step-8.tmp").symlink_to(tmp_path / "nowhere")
    (run / ASIDE).symlink_to(elsewhere)
    keep_latest(run, 1)
    for step in (6, 8):
        assert not list(begin_writing(run / f"step-{step}").iterdir())
    assert {item.name for item in run.iterdir()} == {"step-4", "step-6.tmp", "step-8.tmp"}
    assert find_checkpoint(elsewhere).index.progress.step == 2


def test_a_file_named_like_a_checkpoint_stays(run: Path) -> None:
    (run / "step-3").write_text("notes of mine")
    keep_latest(run, 2)
    assert (run / "step-3").read_text() == "notes of mine"


def test_one_under_another_steps_name_is_passed_over(run: Path) -> None:
    (run / "step-2").rename(run / "step-12")
    found = find_checkpoint(run)
    assert found.folder == run / "step-10"
    assert "is the checkpoint of step 2; give its folder that name" in found.passed_over[0]


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file name too long"):
        find_checkpoint(tmp_path / ("x" * 300))
    with pytest.raises(UsageError, match="file name too long"):
        make_room(tmp_path / ("x" * 300) / "new", None)


def test_a_folder_that_cant_be_written_to_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "new"):
        with pytest.raises(UsageError, match="file is a file, not a folder"):
            make_room(folder, None)
    assert make_room(tmp_path / "a" / "b", None) == ()
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UsageError, match=f"{tmp_path} can't be written to"):
        make_room(tmp_path / "a" / "b", None)


def test_a_new_run_doesnt_mix_with_the_checkpoints_of_another(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has another run's checkpoints, up to step 10"):
        make_room(run, None)
    with pytest.raises(UsageError, match="has later checkpoints, up to step 10; go on from there"):
        make_room(run, 4)
    assert make_room(run, 10) == ()
    assert make_room(tmp_path / "new", None) == ()


def test_damaged_later_ones_are_renamed_out_of_the_way(run: Path) -> None:
    (run / "step-10" / NAME).unlink()
    assert make_room(run, 4) == (f"{run / 'step-10'}: isn't whole; now step-10.damaged-1",)
    assert (run / "step-10.damaged-1").is_dir()
    write(run / "step-10", 10)
    (run / "step-10" / NAME).unlink()
    make_room(run, 4)
    assert (run / "step-10.damaged-2").is_dir()


def test_what_a_killed_run_left_is_in_no_ones_way(run: Path) -> None:
    write(run / "step-12.tmp", 11)
    unfinished = begin_writing(run / "step-12")
    assert not list(unfinished.iterdir())
    unfinished.rmdir()
    write(unfinished, 12)
    assert commit(unfinished) == run / "step-12"
    assert find_checkpoint(run).index.progress.step == 12
    with pytest.raises(UsageError, match="can't be made"):
        begin_writing(run / "step-12" / NAME / "step-1")


def test_a_damaged_aside_is_removed_so_that_it_is_written_anew(tmp_path: Path) -> None:
    aside = write(tmp_path / ASIDE, 2)
    assert is_whole_or_gone(aside)
    (aside / NAME).unlink()
    assert not is_whole_or_gone(aside)
    assert not aside.exists()
    assert not is_whole_or_gone(aside)


def test_an_index_of_another_folder_is_no_index_of_this_one(run: Path) -> None:
    index = read_checkpoint(run / "step-4")
    taken = replace(index, progress=replace(index.progress, step=10))
    (run / "step-10" / "index.json").write_text(dump_index(taken))
    with pytest.raises(InputError, match="isn't what was written"):
        check_files(run / "step-10", read_checkpoint(run / "step-10").files.items())
