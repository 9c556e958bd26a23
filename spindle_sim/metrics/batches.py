"""Batches that few numbers of devices divide, and which batches nearby would use more devices."""

from itertools import pairwise

from spindle_sim.cluster import Cluster
from spindle_sim.workload import Workload

__all__ = ["batch_notes"]

# A batch is a poor one where its largest divisor leaves more than a quarter of the devices idle...
_LEAST_SHARE = 3 / 4
# ... or where it has nothing between few devices and more than this many times as many.
_LARGEST_GAP = 4
_LISTED = 8


def batch_notes(workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    """Give a sentence for each task whose batch few numbers of the cluster's devices divide.

    Data parallelism needs a divisor of the batch. A batch smaller than the cluster can't use more
    devices than it has samples: that alone is no reason for a note.
    """
    notes = []
    for task in workload.tasks:
        usable = _divisors(task.batch_size, cluster.num_devices)
        most = min(task.batch_size, cluster.num_devices)
        large_enough = usable[-1] >= _LEAST_SHARE * most
        dense = all(larger <= _LARGEST_GAP * smaller for smaller, larger in pairwise(usable))
        if large_enough and dense:
            continue
        noun = "device" if usable == [1] else "devices"
        note = f"task {task.name}: batch {task.batch_size} can be divided over {_listed(usable)}"
        better = _better(task.batch_size, cluster.num_devices)
        notes.append(f"{note} {noun} only" + (f"; {better}" if better else ""))
    return tuple(notes)


def _better(batch: int, num_devices: int) -> str:
    """Give the nearest smaller and larger batch that use more devices, with how many they use.

    They are multiples of the number of devices, or of the largest power of two within it.
    """
    now = _divisors(batch, num_devices)[-1]
    steps = {num_devices, 1 << (min(num_devices, batch).bit_length() - 1)}
    used = {
        near: _divisors(near, num_devices)[-1]
        for step in steps
        for near in (batch // step * step, (batch // step + 1) * step)
        if near not in (0, batch)
    }
    larger = {near: count for near, count in used.items() if count > now}
    nearest = [
        max((near for near in larger if near < batch), default=0),
        min((near for near in larger if near > batch), default=0),
    ]
    found = [near for near in nearest if near]
    counts = [larger[near] for near in found]
    if len(set(counts)) == 1:
        return f"{' or '.join(map(str, found))} would use {counts[0]}"
    return ", ".join(f"{near} would use {larger[near]}" for near in found)


def _divisors(batch: int, most: int) -> list[int]:
    return [n for n in range(1, min(batch, most) + 1) if batch % n == 0]


def _listed(counts: list[int]) -> str:
    names = [str(count) for count in counts]
    if len(names) > _LISTED:
        half = _LISTED // 2
        names = [*names[:half], "...", *names[-half:]]
    return ", ".join(names)
