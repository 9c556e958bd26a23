"""Faces of a timeline: the HTML report, the trace for Perfetto, the JSON document."""

from spindle_sim.report.curves import scaling_curves
from spindle_sim.report.curves_page import write_curves
from spindle_sim.report.page import render_report, write_report
from spindle_sim.report.run import Curve, Run
from spindle_sim.report.timeline_file import load_timeline, timeline_schema, timeline_to_json
from spindle_sim.report.trace import trace_events, write_trace

__all__ = [
    "Curve",
    "Run",
    "load_timeline",
    "render_report",
    "scaling_curves",
    "timeline_schema",
    "timeline_to_json",
    "trace_events",
    "write_curves",
    "write_report",
    "write_trace",
]
