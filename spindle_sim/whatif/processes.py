"""Many independent pieces of work in processes; none outlives the one that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["in_processes"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    done: Callable[[Item], None],
) -> tuple[Result, ...]:
    """Do `work` on all items in `workers` processes; results come in the order of the items.

    `work` must be importable by name. `done` is called as each is done, in whatever order that is.
    With one worker or one item everything happens in this process.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        return tuple(_do_here(work, item, done) for item in items)
    # Spawned, not forked: a fork copies locks that a thread of the caller may hold.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare) as executor:
        try:
            with _interrupts_held_back():
                futures = {executor.submit(work, item): item for item in items}
            _wait(futures, done)
        except BaseException:
            # An interrupt, too. Nobody wants the rest, but leaving the executor would wait for it;
            # without its processes it gives up and clears away.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise
    return tuple(future.result() for future in futures)


def _do_here(work: Callable[[Item], Result], item: Item, done: Callable[[Item], None]) -> Result:
    result = work(item)
    done(item)
    return result


def _wait(futures: dict[Future[Result], Item], done: Callable[[Item], None]) -> None:
    for future in as_completed(futures):
        future.result()  # raises here what went wrong there
        done(futures[future])


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Put Ctrl-C off until the workers are there, who never hear it.

    It reaches every process of a terminal, and is for the one that started them. They inherit what
    this thread blocks; another thread may still catch it here, so it is noted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts go to the main thread
        return
    noted: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
    if noted and callable(handler):
        handler(signal.SIGINT, None)


def _prepare() -> None:
    """End with the process that started this one, however it ends."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has been started by someone"
    parent.join()
    os._exit(1)  # a killed parent can't ask for it, and an idle worker waits for ever
