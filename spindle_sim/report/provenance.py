"""How far the report's figures may be trusted, in words: what a reader must see first."""

from html import escape

from spindle_sim.plan import Plan
from spindle_sim.timeline import Timeline

__all__ = ["provenance_notice"]

# Mean and median deviations from measurements, by device model: those of docs/estimates.md.
_ERRORS = {
    "a100-1": "Against measurements of A100s on a single node the model was off by, on average,"
    " 6.4 % (median 4.8 %) in products of matrices, 7.4 % in attention, 4.5 % (median 2.3 %) in"
    " all-reduces and 6.5 % in whole iterations (small element-wise kernels: 45 %).",
    "h100-1": "Against measurements of H100s on a single node the model was off by, on average,"
    " 8.5 % in products of matrices, 12.5 % in attention's forward, 11.4 % in its backward and"
    " 14.4 % (median 9.9 %) in all-reduces; kernel launching is that of the A100. Whole iterations"
    " came out too short, all of 43 measured on H100s: by 24.8 % on average, by 10 to 38 %.",
    "a40-1": "Products of matrices deviate from measurements of an A40 by 8.5 % on average;"
    " attention, launching and communication are those of the A100, and no whole iteration was"
    " compared.",
}


def provenance_notice(plan: Plan, timeline: Timeline) -> str:
    """Give the notice at the top: simulated or run, whence the times, and how far off they were."""
    sentences = [_how(plan, timeline), f"Times: {plan.profile or 'source not stated'}."]
    sentences += _trust(plan)
    head, *rest = sentences
    text = escape(" ".join(rest))
    return f'<p class="notice" id="provenance"><strong>{escape(head)}</strong> {text}</p>'


def _how(plan: Plan, timeline: Timeline) -> str:
    if timeline.backend == "simulator":
        modelled = plan.profile.startswith("analytic model")
        return f"Simulated{' from modelled operator times' if modelled else ''}: no GPU ran this."
    return f"Run by {timeline.backend}: spans are as they ran, the plan's own times are estimates."


def _trust(plan: Plan) -> list[str]:
    """Say what is known about the device model of this version, if the plan's times are its."""
    from spindle_sim.estimate import Estimator

    estimator = Estimator(plan.cluster)
    model = estimator.compute.device.name
    if f"analytic model {model}" not in plan.profile:
        return []
    if estimator.extrapolated:
        return [
            f"No {plan.cluster.gpu.name} was measured: its modelled times are an extrapolation from"
            f" {estimator.compute.device.provenance.device}; expect errors of tens of percent."
        ]
    found = [_ERRORS[model]] if model in _ERRORS else []
    unchecked = ["tensor parallelism"] if any(item.tp > 1 for item in plan.slices) else []
    if plan.cluster.num_nodes > 1:
        unchecked.insert(0, "traffic between nodes")
    if unchecked:
        found.append(f"Not compared with any measurement: {' and '.join(unchecked)}.")
    return found
