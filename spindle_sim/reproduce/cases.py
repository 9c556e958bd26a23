"""What is planned and simulated: workloads, cluster sizes and changes, for each part of section 5.

All clusters are nodes of eight A800 with one 400 Gb/s card each (section 5.1). Parts share cases,
so that each is planned once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spindle_sim.units import counted

__all__ = [
    "ALL_GPUS",
    "CASE_STUDY",
    "FAMILY",
    "PHASES",
    "SCALES",
    "STATED",
    "SYSTEMS",
    "UNCHANGED",
    "Case",
    "Change",
    "merged",
    "part_cases",
]

Tasks = int | tuple[str, ...]

ALL_GPUS = (8, 16, 32, 64)
GPUS_PER_NODE = 8
SCALES = (0.5, 1.0, 2.0)
# The systems of figure 8; those that the planner doesn't have are left out.
SYSTEMS = ("spindle", "megatron", "deepspeed", "seq", "uniform", "optimus", "stmm")
# Spindle and the baselines that the paper built on it: they share the memory settings.
FAMILY = ("spindle", "seq", "uniform", "optimus", "stmm")
_HEADLINE = ("spindle", "megatron", "deepspeed", "seq")

_WORKLOADS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("multitask-clip", (4, 7, 10)),
    ("ofasys", (4, 7)),
    ("qwen-val", (3,)),
)
# The cluster sizes that the paper's text speaks of: its statements are judged over these.
STATED: dict[str, tuple[int, ...]] = {
    "multitask-clip": (8, 16, 32),
    "ofasys": (8, 16, 32),
    "qwen-val": (32, 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an experiment changes; the factors multiply the model's own figures."""

    name: str = ""
    batch: float = 1.0
    built_in_batches: bool = False  # the built-in workloads' instead of the recipes'
    image_tokens: int = 0  # of an image in OFASys, where not 0
    launch: float = 1.0  # CPU time to launch a kernel
    nic: float = 1.0  # bandwidth of a network card
    nics_per_node: int = 1
    memory: float = 1.0  # of a device
    free_network: bool = False  # transfers and collectives cost nothing
    overlap_sync: bool = True  # of all systems
    sequential_plans: bool = False  # the sequential placement with a schedule of its own

    @property
    def is_batch(self) -> bool:
        """Whether it changes the scale of the batches and nothing else."""
        return self.same_but(batch=1.0)

    @property
    def keeps_plans(self) -> bool:
        """Whether every system's plan stays: only how it is simulated changes."""
        return self.same_but(free_network=False, overlap_sync=True)

    def same_but(self, **fields: object) -> bool:
        """Say whether nothing is changed but these fields, whose unchanged values are given."""
        return replace(self, name="", **fields) == UNCHANGED  # type: ignore[arg-type]

    def concerns(self, case: "Case") -> bool:
        """Say whether it can change a case: a network needs nodes, images a task with them."""
        if self.image_tokens and case.workload != "ofasys":
            return False
        return case.num_nodes > 1 or not self.same_but(nic=1.0, nics_per_node=1)


UNCHANGED = Change()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload on one cluster, planned under several strategies."""

    workload: str
    tasks: Tasks
    gpus: int
    batch_scale: float = 1.0
    change: Change = UNCHANGED
    strategies: tuple[str, ...] = SYSTEMS
    sequential: bool = False  # Spindle with sequential placement, too
    also: tuple[Change, ...] = ()  # simulated with the same plans, too

    @property
    def key(self) -> tuple[str, Tasks, int, float, str]:
        """What tells cases apart."""
        return (self.workload, self.tasks, self.gpus, self.batch_scale, self.change.name)

    @property
    def num_nodes(self) -> int:
        """Nodes of eight GPUs."""
        return self.gpus // GPUS_PER_NODE

    @property
    def name(self) -> str:
        """In words."""
        tasks = (
            counted(self.tasks, "task") if isinstance(self.tasks, int) else ", ".join(self.tasks)
        )
        scale = "" if self.batch_scale == 1.0 else f", batches x {self.batch_scale:g}"
        change = f", {self.change.name}" if self.change.name else ""
        return f"{self.workload}, {tasks}, {self.gpus} GPUs{scale}{change}"


CASE_STUDY = Case(workload="multitask-clip", tasks=4, gpus=16)

_TEN = (
    "image-text",
    "video-audio",
    "audio-text",
    "depth-vision",
    "thermal-vision",
    "imu-video",
    "depth-text",
    "thermal-text",
    "imu-text",
    "video-text",
)
# Figure 13 doesn't say which tasks come and go: four, then seven, then ten; then the three with
# the least data (SUN RGB-D, LLVIP, Ego4D) exit early.
PHASES: tuple[Tasks, ...] = (4, 7, 10, tuple(t for t in _TEN if t not in _TEN[3:6]))

_SINGLE: tuple[tuple[str, str], ...] = (
    *(("multitask-clip", task) for task in _TEN[:4]),
    ("ofasys", "image-captioning"),
    ("ofasys", "speech-recognition"),
    ("qwen-val", "vision-language"),
    ("qwen-val", "vision-audio-language"),
)


def part_cases(part: str, gpus: Iterable[int], batch_scale: float) -> tuple[Case, ...]:
    """Give the cases that a part needs, on clusters of these sizes."""
    sizes = tuple(gpus)
    found: list[Case] = []
    if part in ("fig8", "fig10", "fig11"):
        found = _end_to_end(SYSTEMS if part == "fig8" else ("spindle", "seq"))
    elif part == "placement":
        found = [replace(case, sequential=True) for case in _end_to_end(("spindle",))]
    elif part in ("fig9", "fig15"):
        found = [CASE_STUDY]
    elif part == "fig13":
        found = [replace(CASE_STUDY, tasks=tasks) for tasks in PHASES]
    elif part == "fig14":
        found = [
            Case(workload=name, tasks=(task,), gpus=size)
            for name, task in _SINGLE
            for size in STATED[name]
        ]
    scaled = [replace(case, batch_scale=batch_scale) for case in found if case.gpus in sizes]
    if part == "batches":
        scaled = [
            replace(case, batch_scale=batch_scale * scale, strategies=_HEADLINE)
            for scale in SCALES
            for case in _end_to_end(SYSTEMS)
            if case.gpus in sizes and case.gpus in STATED[case.workload]
        ]
    return tuple(scaled)


def merged(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Give each case once, with all strategies that any of them asks for; the largest first."""
    known: dict[tuple[object, ...], Case] = {}
    for case in cases:
        old = known.get(case.key, case)
        wanted = {*old.strategies, *case.strategies}
        known[case.key] = replace(
            old,
            strategies=tuple(name for name in SYSTEMS if name in wanted),
            sequential=old.sequential or case.sequential,
            also=tuple(dict.fromkeys((*old.also, *case.also))),
        )
    # The longest begin first, so that no process is left with one of them at the end.
    return tuple(sorted(known.values(), key=lambda case: (-case.gpus, -_count(case.tasks))))


def _count(tasks: Tasks) -> int:
    return tasks if isinstance(tasks, int) else len(tasks)


def _end_to_end(strategies: tuple[str, ...]) -> list[Case]:
    return [
        Case(workload=name, tasks=tasks, gpus=size, strategies=strategies)
        for name, counts in _WORKLOADS
        for tasks in counts
        for size in ALL_GPUS
    ]
