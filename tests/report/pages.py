"""Reading a report as a program: its data block, its spans, the runs that tests draw."""

import base64
import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np

from spindle_sim.plan import Plan
from spindle_sim.report import Run
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Phase, Span, Timeline
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.stated_plans import stated, two_task_plan

Content = dict[str, Any]


def data_of(html: str) -> Content:
    """Give the data block of a report."""
    begin = html.index('<script type="application/json" id="data">')
    text = html[html.index(">", begin) + 1 : html.index("</script>", begin)]
    content: Content = json.loads(text)
    return content


def decoded(run: Content, content: Content) -> list[tuple[object, ...]]:
    """Give the spans as the page's script reads them, in ticks."""
    raw = gzip.decompress(base64.b64decode(run["spans"]))
    count = sum(run["counts"])
    assert len(raw) == 24 * count
    at, columns = 0, []
    for kind in ("<u4", "<u4", "<u4", "<f4", "<i4", "<u2", "u1", "u1"):
        columns.append(np.frombuffer(raw, kind, count, at).tolist())
        at += count * np.dtype(kind).itemsize
    steps, lasts, slices, sizes, peers, categories, kinds, phases = columns
    spans: list[tuple[object, ...]] = []
    i = 0
    for device, own in enumerate(run["counts"]):
        ticks = 0
        for _ in range(own):
            ticks += steps[i]
            item = run["slices"][slices[i]][0] if slices[i] != 2**32 - 1 else ""
            spans.append(
                (
                    device,
                    ticks,
                    lasts[i],
                    item,
                    sizes[i],
                    None if peers[i] < 0 else peers[i],
                    content["categories"][categories[i]]["name"],
                    content["kinds"][kinds[i]],
                    content["phases"][phases[i]],
                )
            )
            i += 1
    return spans


def stated_spans(timeline: Timeline, tick_s: float) -> list[tuple[object, ...]]:
    """Give the spans of a timeline as `decoded` gives them."""
    return [
        (
            span.device,
            round(span.start_s / tick_s),
            round(span.end_s / tick_s) - round(span.start_s / tick_s),
            span.slice,
            float(np.float32(span.bytes)),
            span.peer,
            span.task if span.kind is Kind.COMPUTE else span.kind.value,
            span.kind.value,
            span.phase.value,
        )
        for span in sorted(timeline.spans, key=lambda s: (s.device, s.start_s, s.stream))
    ]


def two_runs() -> list[Run]:
    """Give two strategies on the two-task plan."""
    plan = two_task_plan()
    other = replace(plan, strategy="other")
    return [Run(plan=item, timeline=simulate(item)) for item in (plan, other)]


def hostile_plan() -> Plan:
    """Give a plan all of whose names try to be markup, templates or Plotly's pseudo-HTML."""
    name = '</script><script>alert("x")</script><b>&amp;$title %{x} ${style}'
    task = name.replace("/", "")  # which joins names to ids
    workload = make_workload({task: ("a",)})
    workload = replace(workload, name=task, note=name)
    cluster = replace(make_cluster(1, 2), name=name)
    plan = stated(make_plan(workload, cluster, [Part(metaop=f"{task}/a/x", devices=(0, 1))]))
    return replace(plan, strategy=name, profile=name, tool=name)


def crowded_run(num_devices: int = 64, spans_per_device: int = 782) -> Run:
    """Give a made-up timeline of many short spans, forward, then backward, with transfers."""
    workload = make_workload({f"t{index}": (f"m{index}",) for index in range(10)})
    parts = [Part(metaop=f"t{i}/m{i}/x", devices=tuple(range(8)), stage=i) for i in range(10)]
    plan = stated(make_plan(workload, make_cluster(num_devices // 8, 8), parts))
    rng = np.random.default_rng(0)
    spans = []
    for device in range(num_devices):
        start_s = 0.0
        for number in range(spans_per_device):
            duration_s = float(rng.gamma(2, 1e-4))
            index = (number // 20 + device // 8) % 10
            spans.append(
                Span(
                    device=device,
                    start_s=start_s,
                    end_s=start_s + duration_s,
                    kind=Kind.SEND if number % 3 == 1 else Kind.COMPUTE,
                    phase=Phase.FORWARD if number < spans_per_device / 3 else Phase.BACKWARD,
                    metaop=plan.metaops[index].id,
                    task=plan.metaops[index].task,
                    slice=f"s{index}",
                    stream=int(number % 3 == 1),
                    bytes=1e6 if number % 3 == 1 else 0.0,
                    peer=(device + 1) % num_devices if number % 3 == 1 else None,
                )
            )
            start_s += 0.0 if number % 3 == 1 else duration_s
    timeline = Timeline(backend="made up", num_devices=num_devices, spans=tuple(spans))
    return Run(plan=plan, timeline=timeline)
