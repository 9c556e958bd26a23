// All charts but the Gantt chart: those that compare strategies, and those of the one shown.
const ROWS = 200;
const PARTS = [["forward + backward", "#0072B2"], ["synchronization", "#4D4D4D"],
  ["optimizer step", "#E69F00"], ["send/receive", "#C4C4C4"], ["idle", "#FFFFFF"]];

// A row for each strategy on the same axes: their lines would hide each other on one.
function drawRows(id, xaxis, draw) {
  const gap = runs.length > 1 ? 0.36 : 0, each = 1 / (runs.length + gap * (runs.length - 1));
  const name = (i) => i ? `y${i + 1}` : "y";
  const traces = runs.map((run, i) => ({ name: safe(run.name), showlegend: false, xaxis: "x",
    yaxis: name(i), ...draw(run) }));
  const top = Math.max(1, ...traces.flatMap((trace) => trace.y)) * 1.06;
  const layout = basic({ height: runs.length > 1 ? 70 + 100 * runs.length : 300, hovermode: "closest",
    margin: { l: 60, r: 16, t: several ? 24 : 8, b: 48 }, annotations: [], bargap: 0.2,
    xaxis: { ...xaxis, anchor: name(runs.length - 1) } });
  runs.forEach((run, i) => {
    const high = 1 - i * each * (1 + gap), low = Math.max(0, high - each);
    layout[`yaxis${i ? i + 1 : ""}`] = axis(several ? "" : "% of peak", { domain: [low, high],
      range: [0, top], nticks: 4 });
    if (several) {
      layout.annotations.push({ xref: "paper", yref: "paper", x: 0, y: high, xanchor: "left",
        yanchor: "bottom", text: `<b>${safe(run.name)}</b>`, showarrow: false });
    }
  });
  if (several) {
    layout.annotations.push({ xref: "paper", yref: "paper", x: 1, y: 1, xanchor: "right",
      yanchor: "bottom", text: "model FLOP/s, % of peak", showarrow: false, font: { size: 12 } });
  }
  Plotly.newPlot(byId(id), traces, layout, config);
}

function drawComparisons() {
  const filled = { color: "#0072B2", width: 1, shape: "hvh" };
  drawRows("time", axis("time (ms)", { rangemode: "tozero" }), (run) => ({ type: "scatter",
    mode: "lines", x: run.time_ms, y: run.utilization, line: filled, fill: "tozeroy",
    fillcolor: "rgba(0,114,178,0.25)", hovertemplate: "at %{x:.4~g} ms: %{y:.3~g} %" }));
  drawRows("device", axis("device", { tickformat: "d" }), (run) => ({ type: "bar",
    x: run.device_utilization.map((_, d) => d), y: run.device_utilization,
    marker: { color: "#0072B2", line: { width: 0 } },
    hovertemplate: "device %{x}: %{y:.3~g} %" }));
  Plotly.newPlot(byId("breakdown"), PARTS.map(([name, colour], part) => ({ type: "bar",
    orientation: "h", name, marker: { color: colour, line: { color: "#555", width: 1 } },
    y: runs.map((_, i) => i), x: runs.map((run) => run.breakdown_ms[part]),
    text: runs.map((run) => number(run.breakdown_ms[part])), textposition: "inside",
    insidetextanchor: "middle", width: 0.7, insidetextfont: { color: ink(colour) },
    textangle: 0, hovertemplate: `${name}: %{x:.4~g} ms<extra></extra>` })),
  basic({ height: Math.max(220, 120 + 44 * runs.length), barmode: "stack",
    uniformtext: { minsize: 10, mode: "hide" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    xaxis: axis("ms of an average device", { rangemode: "tozero" }),
    yaxis: axis("", { tickvals: runs.map((_, i) => i), ticktext: runs.map((r) => safe(r.name)),
      range: [runs.length - 0.5, -0.5] }) }), config);
  drawCurves();
}

function drawCurves() {
  if (data.curves) {
    Plotly.newPlot(byId("curves"), data.curves.data, { font, ...data.curves.layout }, config);
    return;
  }
  byId("curves").textContent = "The plan's times come from a profile or another model; "
    + "`spindle curves` draws its curves.";
  byId("curves").style.minHeight = "0";
}

function drawOfRun() {
  const run = runs[shown];
  document.querySelectorAll(".shown").forEach((mark) => {
    mark.textContent = several ? `(${run.name})` : "";
  });
  drawMemory(run);
  drawMetaops(run);
  listStages(ROWS);
}

function drawMemory(run) {
  const devices = run.peak_gib.map((_, d) => d);
  const parts = [["parameters", "parameter", "#0072B2", ""], ["gradients", "gradient", "#E69F00", "/"],
    ["optimizer states", "optimizer", "#009E73", "x"], ["activations", "activation", "#CC79A7", "."]];
  const memory = parts.map(([name, key, colour, shape]) => ({ type: "bar", name, width: 0.8,
    x: devices, y: run.memory_gib[key], marker: pattern(shape, colour),
    hovertemplate: `${name}: %{y:.4~g} GiB<extra></extra>` }));
  memory.push({ type: "scatter", mode: "markers", name: "peak as simulated or run", x: devices,
    y: run.peak_gib, marker: { symbol: "line-ew-open", size: 9, color: "#1b1b1b", line: { width: 2 } },
    hovertemplate: "peak: %{y:.4~g} GiB<extra></extra>" });
  const limit = (y, dash) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y,
    line: { color: "#1b1b1b", width: 1.5, dash } });
  Plotly.react(byId("memory"), memory, basic({ height: 360, barmode: "stack",
    hovermode: "x unified", shapes: [limit(run.capacity_gib, "solid"), limit(run.usable_gib, "dash")],
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    annotations: [{ xref: "paper", x: 1, xanchor: "right", y: run.capacity_gib, yanchor: "bottom",
      showarrow: false, text: "capacity" }], xaxis: axis("device", { tickformat: "d" }),
    yaxis: axis("GiB as planned (dashed: usable)", { range: [0, run.capacity_gib * 1.08] }) }), config);
}

function drawMetaops(run) {
  const tasks = run.metaops.map((name) => categories.findIndex((c, i) => i < numTasks
    && name.startsWith(`${c.name}/`)));
  const style = tasks.map((task) => categories[task] ?? { colour: "#999999", pattern: "" });
  Plotly.react(byId("metaop"), [{ type: "bar", orientation: "h", width: 0.8,
    y: run.metaops.map((_, i) => i), x: run.metaop_utilization,
    marker: { color: style.map((s) => s.colour), line: { width: 0 }, pattern: {
      shape: style.map((s) => s.pattern), fgcolor: style.map((s) => ink(s.colour)), size: 6,
      solidity: 0.25, fillmode: "overlay" } },
    text: run.metaops.map(safe), textposition: "none",
    hovertemplate: "%{text}: %{x:.3~g} %<extra></extra>" }],
  basic({ height: Math.min(1400, Math.max(260, 90 + 17 * run.metaops.length)), showlegend: false,
    margin: { l: 60, r: 16, t: 8, b: 48 },
    xaxis: axis("model FLOP/s, % of the peak of its own devices", { rangemode: "tozero" }),
    yaxis: axis("", { tickvals: run.metaops.map((_, i) => i), ticktext: run.metaops.map(safe),
      tickfont: { size: 11 }, range: [run.metaops.length - 0.5, -0.5] }) }), config);
}

function listStages(limit) {
  const run = runs[shown], body = byId("stages");
  const order = [...run.slices].sort((a, b) => a[13] - b[13] || a[9] - b[9]);
  const three = (ms) => ms.toLocaleString("en-US", { minimumFractionDigits: 3,
    maximumFractionDigits: 3 });
  body.replaceChildren(...order.slice(0, limit).map((item) => {
    const row = document.createElement("tr");
    const values = [item[13], item[0], run.metaops[item[1]] ?? "", operators(item[4], item[5]),
      item[8], item[6], item[7], three(item[9]), three(item[10]), three(item[11]),
      item[12] ? "yes" : "no", `${item[2]}, ${item[3]}`];
    values.forEach((value, i) => {
      const cell = document.createElement("td");
      cell.textContent = value;
      if ([1, 2, 4].includes(i)) cell.className = "text";
      row.append(cell);
    });
    return row;
  }));
  byId("more").hidden = order.length <= limit;
  byId("more").textContent = `Show all ${order.length} slices`;
}
