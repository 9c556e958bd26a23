"""A critical path as rows: what `spindle explain --json` prints of steps, sums and changes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle_sim.metrics import CriticalPath, PathShare, PathStep
    from spindle_sim.whatif import Sensitivity

__all__ = ["change_row", "share_row", "step_row"]


def share_row(share: "PathShare", path: "CriticalPath", key: str) -> dict[str, object]:
    """Give the seconds of one name, "" of none, with its part of the iteration."""
    return {
        key: int(share.name) if key == "device" else share.name,
        "seconds": share.seconds,
        "share": share.seconds / path.iteration_s,
        "compute_s": share.compute_s,
        "transfer_s": share.transfer_s,
        "synchronization_s": share.synchronization_s,
        "step_s": share.step_s,
        "gap_s": share.gap_s,
    }


def step_row(step: "PathStep") -> dict[str, object]:
    """Give one step of the path."""
    return {
        "device": step.device,
        "start_s": step.start_s,
        "end_s": step.end_s,
        "kind": step.kind.value,
        "why": step.why.value,
        "phase": None if step.phase is None else step.phase.value,
        "task": step.task,
        "metaop": step.metaop,
        "slice": step.slice,
        "micro_batch": step.micro_batch,
    }


def change_row(change: "Sensitivity") -> dict[str, object]:
    """Give one change with the iteration that was simulated of it."""
    return {
        "change": change.kind.value,
        "metaop": change.metaop,
        "path_s": change.path_s,
        "expected_s": change.expected_s,
        "simulated_s": change.simulated_s,
        "saved_s": change.saved_s,
    }
