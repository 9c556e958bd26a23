"use strict";
// Draws the report from the data in the page. The Gantt chart has two levels of detail: up to LIMIT
// visible spans are exact bars; more are a heat map, binned anew for each window, in which every
// cell shows what took most of its time, idling included.
(() => {
  const LIMIT = 4000, LABELS = 300, BINS = 1400, ROWS = 200;
  const LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross"];
  const data = JSON.parse(document.getElementById("data").textContent);
  const { runs, categories, kinds, phases } = data;
  const C = categories.length, numTasks = data.num_tasks;
  const SEND = kinds.indexOf("send"), SYNC = kinds.indexOf("sync");
  const OPTIMIZER = kinds.indexOf("optimizer"), COMPUTE = kinds.indexOf("compute");
  const NONE = 0xffffffff;
  const slowest = Math.max(...runs.map((run) => run.iteration_ms), 1e-9);
  const byId = (id) => document.getElementById(id);
  // Plotly reads some HTML in its texts: names are shown as they are.
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;")
    .replace(/>/g, "&gt;");
  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en-US",
    { maximumSignificantDigits: 6 });
  const time = (ms) => ms >= 1000 ? `${number(ms / 1000)} s` : ms >= 1 || ms === 0
    ? `${number(ms)} ms` : `${number(ms * 1000)} us`;
  const size = (bytes) => bytes >= 1e9 ? `${number(bytes / 1e9)} GB` : bytes >= 1e6
    ? `${number(bytes / 1e6)} MB` : `${number(bytes / 1e3)} kB`;
  const config = { displaylogo: false, responsive: true, doubleClick: false,
    displayModeBar: false };
  const font = { family: "system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif", size: 13,
    color: "#1b1b1b" };
  const axis = (title, more) => ({ title: { text: title }, gridcolor: "#e4e4e4", zeroline: false,
    linecolor: "#888", automargin: true, ...more });
  const basic = (more) => ({ font, margin: { l: 60, r: 16, t: 64, b: 48 }, paper_bgcolor: "#fff",
    plot_bgcolor: "#fff", hoverlabel: { align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, ...more });
  // What is seen on a colour: white on dark ones.
  const ink = (colour) => [1, 3, 5].reduce((sum, at, i) => sum
    + [0.3, 0.59, 0.11][i] * parseInt(colour.slice(at, at + 2), 16), 0) < 90 ? "#ffffff" : "#1b1b1b";
  const pattern = (shape, colour) => shape
    ? { color: colour, line: { width: 0 }, pattern: { shape, fgcolor: ink(colour), size: 6,
      solidity: 0.25, fillmode: "overlay" } }
    : { color: colour, line: { width: 0 } };

  async function decode(run) {
    if (run.lanes) return;
    const packed = Uint8Array.from(atob(run.spans), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const raw = await new Response(stream).arrayBuffer();
    const n = run.counts.reduce((sum, count) => sum + count, 0);
    const steps = new Uint32Array(raw, 0, n), lasts = new Uint32Array(raw, 4 * n, n);
    run.slice = new Uint32Array(raw, 8 * n, n);
    run.bytes = new Float32Array(raw, 12 * n, n);
    run.peer = new Int32Array(raw, 16 * n, n);
    run.category = new Uint16Array(raw, 20 * n, n);
    run.kind = new Uint8Array(raw, 22 * n, n);
    run.phase = new Uint8Array(raw, 23 * n, n);
    run.start = new Float64Array(n);
    run.duration = new Float64Array(n);
    run.lanes = [];
    for (let device = 0, at = 0; device < run.num_devices; device++) {
      const lanes = [[], []];
      for (let ticks = 0, end = at + run.counts[device]; at < end; at++) {
        ticks += steps[at];
        run.start[at] = ticks * run.tick_ms;
        run.duration[at] = lasts[at] * run.tick_ms;
        const computes = run.kind[at] === COMPUTE || run.kind[at] === OPTIMIZER;
        lanes[computes ? 0 : 1].push(at);
      }
      run.lanes.push(lanes.map((spans) => indexed(run, spans)));
    }
  }

  // Spans of a lane by start; `reach` is the latest end so far, so that both ends of the visible
  // part can be found by bisection even where transfers overlap.
  function indexed(run, spans) {
    const reach = new Float64Array(spans.length);
    let latest = 0;
    spans.forEach((span, i) => {
      latest = Math.max(latest, run.start[span] + run.duration[span]);
      reach[i] = latest;
    });
    return { spans: Uint32Array.from(spans), reach };
  }

  function bisect(length, isRight) {
    let low = 0, high = length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isRight(middle)) high = middle; else low = middle + 1;
    }
    return low;
  }

  function visible(run, view) {
    const parts = [];
    let count = 0;
    const first = Math.max(0, Math.ceil(view.top - 0.5));
    const last = Math.min(run.num_devices - 1, Math.floor(view.bottom + 0.5));
    for (let device = first; device <= last; device++) {
      run.lanes[device].forEach((lane, which) => {
        const from = bisect(lane.spans.length, (i) => lane.reach[i] > view.left);
        const to = bisect(lane.spans.length, (i) => run.start[lane.spans[i]] >= view.right);
        if (to > from) parts.push({ device, which, lane, from, to });
        count += Math.max(0, to - from);
      });
    }
    return { parts, count, first, last };
  }

  function label(run, span) {
    const kind = kinds[run.kind[span]], item = run.slices[run.slice[span]];
    if (!item) return kind;
    const metaop = run.metaops[item[1]] ?? "";
    return run.kind[span] === COMPUTE ? `${metaop} ${phases[run.phase[span]]}` : `${kind} ${metaop}`;
  }

  function details(run, span, device) {
    const lines = [`<b>${safe(label(run, span))}</b>`, `device ${device}`];
    const item = run.slices[run.slice[span]];
    if (run.category[span] < numTasks) lines.push(`task ${safe(categories[run.category[span]].name)}`);
    if (item) {
      lines.push(`slice ${safe(item[0])}, operators ${item[4]} to ${item[4] + item[5] - 1}`,
        `round ${item[2]}, stage ${item[3]}`, `devices ${item[8]} (dp ${item[6]} x tp ${item[7]})`);
    }
    lines.push(`phase ${phases[run.phase[span]]}`);
    if (run.bytes[span]) lines.push(size(run.bytes[span]));
    if (run.peer[span] >= 0) {
      lines.push(`${run.kind[span] === SEND ? "to" : "from"} device ${run.peer[span]}`);
    }
    lines.push(`start ${time(run.start[span])}`, `duration ${time(run.duration[span])}`);
    return lines.join("<br>");
  }

  function bars(run, seen) {
    const labelled = seen.count <= LABELS;
    const traces = categories.map((category) => ({ type: "bar", orientation: "h", base: [], x: [],
      y: [], hovertext: [], text: [], hoverinfo: "text", showlegend: false,
      marker: pattern(category.pattern, category.colour), name: safe(category.name),
      textposition: labelled ? "inside" : "none", insidetextanchor: "middle" }));
    for (const { device, which, lane, from, to } of seen.parts) {
      for (let i = from; i < to; i++) {
        const span = lane.spans[i], trace = traces[run.category[span]];
        // Widths and offsets are set: Plotly would derive them from the distance between rows.
        trace.width = which ? 0.25 : 0.65;
        trace.offset = which ? 0.2 : -0.45;
        trace.base.push(run.start[span]);
        trace.x.push(run.duration[span]);
        trace.y.push(device);
        trace.hovertext.push(details(run, span, device));
        if (labelled) trace.text.push(safe(label(run, span)));
      }
    }
    return traces.filter((trace) => trace.x.length);
  }

  function cells(run, seen, view) {
    const width = (view.right - view.left) / BINS, rows = [], texts = [], edges = [];
    const cover = new Float32Array(BINS * C), names = categories.map((c) => safe(c.name));
    const lanes = new Map(seen.parts.map((part) => [2 * part.device + part.which, part]));
    const blank = new Array(BINS).fill(null), nothing = new Array(BINS).fill("");
    for (let device = seen.first; device <= seen.last; device++) {
      edges.push(device - 0.45, device + 0.2, device + 0.45);
      for (const which of [0, 1]) {
        const part = lanes.get(2 * device + which);
        cover.fill(0);
        for (let i = part ? part.from : 0; part && i < part.to; i++) {
          const span = part.lane.spans[i], start = run.start[span], end = start + run.duration[span];
          const first = Math.max(0, Math.floor((start - view.left) / width));
          const last = Math.min(BINS - 1, Math.floor((end - view.left) / width));
          for (let bin = first; bin <= last; bin++) {
            const from = view.left + bin * width;
            cover[bin * C + run.category[span]] += Math.min(end, from + width) - Math.max(start, from);
          }
        }
        const row = new Array(BINS), text = new Array(BINS);
        for (let bin = 0; bin < BINS; bin++) {
          let best = -1, most = 0, busy = 0;
          for (let c = 0; c < C; c++) {
            const share = cover[bin * C + c];
            busy += share;
            if (share > most) { most = share; best = c; }
          }
          const idles = best < 0 || width - busy > most;
          row[bin] = idles ? null : best;
          text[bin] = `device ${device}: ${idles ? (which ? "no communication" : "idle") : names[best]}`;
        }
        rows.push(row);
        texts.push(text);
      }
      rows.push(blank);
      texts.push(nothing);
    }
    edges.push(seen.last + 0.55);
    const scale = categories.flatMap((c, i) => [[i / C, c.colour], [(i + 1) / C, c.colour]]);
    return [{ type: "heatmap", z: rows, text: texts, x0: view.left + width / 2, dx: width, y: edges,
      zmin: -0.5, zmax: C - 0.5, colorscale: scale, showscale: false, hoverongaps: true,
      hovertemplate: "%{text}<br>at %{x:.4~g} ms<extra></extra>" }];
  }

  let shown = 0, view = null, busy = false;
  // A little beyond the end, so that the line there is seen.
  const everything = () => ({ left: 0, top: -0.6, bottom: runs[shown].num_devices - 0.4,
    right: 1.01 * (byId("same").checked ? slowest : Math.max(runs[shown].iteration_ms, 1e-9)) });

  function nodeLines(run) {
    const shapes = [], step = run.devices_per_node;
    for (let device = step; device < run.num_devices && shapes.length < 128; device += step) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: device - 0.475,
        y1: device - 0.475, line: { color: "#888", width: 1, dash: "dot" }, layer: "above" });
    }
    shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: run.iteration_ms,
      x1: run.iteration_ms, line: { color: "#1b1b1b", width: 1.5, dash: "dash" } });
    return shapes;
  }

  async function drawGantt(next) {
    if (busy) return;
    busy = true;
    const run = runs[shown];
    await decode(run);
    view = next ?? view ?? everything();
    const seen = visible(run, view), exact = seen.count <= LIMIT;
    const traces = exact ? bars(run, seen) : cells(run, seen, view);
    if (!traces.length) traces.push({ type: "scatter", x: [], y: [], showlegend: false });
    const rows = Math.min(run.num_devices, 96);
    const height = Math.max(260, 90 + rows * (rows > 24 ? 13 : 22));
    await Plotly.react(byId("gantt"), traces, basic({ height, barmode: "overlay",
      hovermode: "closest", dragmode: "zoom", margin: { l: 60, r: 16, t: 8, b: 48 },
      uniformtext: { minsize: 9, mode: "hide" }, shapes: nodeLines(run),
      xaxis: axis("time since the iteration began (ms)", { range: [view.left, view.right] }),
      yaxis: axis("device", { range: [view.bottom, view.top], showgrid: false,
        tickformat: "d", dtick: Math.ceil((seen.last - seen.first + 1) / 16) }) }), config);
    byId("gantt-note").textContent = `${run.name}: ${seen.count.toLocaleString("en-US")} spans in`
      + ` view, ${exact ? "drawn exactly" : "each cell shows what took most of its time; zoom in for"
      + " the spans themselves"}. Computing above, communication below; dotted lines part nodes, the`
      + " dashed line ends the iteration. Drag to zoom, double-click for all, hover for details.";
    document.body.dataset.detail = exact ? "bars" : "heatmap";
    busy = false;
  }

  function follow() {
    const chart = byId("gantt");
    chart.on("plotly_relayout", () => {
      if (busy) return;
      const x = chart.layout.xaxis.range, y = chart.layout.yaxis.range;
      const now = { left: x[0], right: x[1], top: Math.min(...y), bottom: Math.max(...y) };
      if (Object.keys(now).some((key) => Math.abs(now[key] - view[key]) > 1e-12)) drawGantt(now);
    });
    chart.on("plotly_doubleclick", () => { drawGantt(everything()); });
    document.querySelectorAll("[data-zoom]").forEach((button) => {
      button.addEventListener("click", () => {
        const width = view.right - view.left, quarter = width / 4;
        const moves = { in: [quarter, -quarter], out: [-width / 2, width / 2],
          left: [-quarter, -quarter], right: [quarter, quarter] };
        const move = moves[button.dataset.zoom];
        drawGantt(move ? { ...view, left: view.left + move[0], right: view.right + move[1] }
          : everything());
      });
    });
  }

  function drawLegend() {
    const bands = { "/": "135deg", "\\": "45deg", "x": "135deg", "+": "0deg", "|": "90deg" };
    categories.forEach((category, i) => {
      if (i === numTasks + COMPUTE) return;  // of no task: no plan of ours has it
      const entry = document.createElement("li"), swatch = document.createElement("i");
      swatch.style.backgroundColor = category.colour;
      if (category.pattern === ".") {
        swatch.style.backgroundImage = `radial-gradient(${ink(category.colour)} 1px, transparent 1.2px)`;
        swatch.style.backgroundSize = "5px 5px";
      } else if (category.pattern) {
        const band = (angle) => `repeating-linear-gradient(${angle}, ${ink(category.colour)} 0 1px, transparent 1px 5px)`;
        swatch.style.backgroundImage = band(bands[category.pattern])
          + ("x+".includes(category.pattern) ? `, ${band(category.pattern === "x" ? "45deg" : "90deg")}` : "");
      }
      entry.append(swatch, category.name);
      byId("legend").append(entry);
    });
    const idle = document.createElement("li"), white = document.createElement("i");
    idle.append(white, "idle");
    byId("legend").append(idle);
  }

  const line = (i) => ({ color: LINES[i % LINES.length], dash: DASHES[i % DASHES.length], width: 2 });

  function drawComparisons() {
    Plotly.newPlot(byId("time"), runs.map((run, i) => ({ type: "scatter", mode: "lines",
      name: safe(run.name), x: run.time_ms, y: run.utilization, line: { ...line(i), shape: "hvh" } })),
    basic({ height: 340, hovermode: "x unified", xaxis: axis("time (ms)"),
      yaxis: axis("model FLOP/s, % of peak", { rangemode: "tozero" }) }), config);
    Plotly.newPlot(byId("device"), runs.map((run, i) => ({ type: "scatter", mode: "lines+markers",
      name: safe(run.name), x: run.device_utilization.map((_, d) => d), y: run.device_utilization,
      line: { ...line(i), width: 1 }, marker: { symbol: SYMBOLS[i % SYMBOLS.length], size: 7 } })),
    basic({ height: 340, xaxis: axis("device", { tickformat: "d" }),
      yaxis: axis("model FLOP/s, % of peak", { rangemode: "tozero" }) }), config);
    const parts = [["forward + backward", "#0072B2", ""], ["synchronization", "#4D4D4D", "x"],
      ["send/receive", "#B3B3B3", "/"], ["idle", "#FFFFFF", ""]];
    Plotly.newPlot(byId("breakdown"), parts.map(([name, colour, shape], part) => {
      const marker = pattern(shape, colour);
      marker.line = { color: "#555", width: 1 };
      return { type: "bar", orientation: "h", name, marker, y: runs.map((_, i) => i),
        x: runs.map((run) => run.breakdown_ms[part]),
        text: runs.map((run) => `${number(run.breakdown_ms[part])}`), textposition: "inside",
        insidetextanchor: "middle", width: 0.7,
        insidetextfont: { color: colour === "#0072B2" ? "#fff" : "#1b1b1b" },
        textangle: 0, hovertemplate: `${name}: %{x:.4~g} ms<extra></extra>` };
    }), basic({ height: Math.max(220, 120 + 44 * runs.length), barmode: "stack",
      uniformtext: { minsize: 10, mode: "hide" },
      xaxis: axis("ms of an average device", { rangemode: "tozero" }),
      yaxis: axis("", { tickvals: runs.map((_, i) => i), ticktext: runs.map((r) => safe(r.name)),
        range: [runs.length - 0.5, -0.5] }) }), config);
    if (!data.curves.length) {
      byId("curves").textContent = "The plan's times come from a profile or another model; "
        + "`spindle curves` draws its curves.";
      byId("curves").style.minHeight = "0";
      return;
    }
    Plotly.newPlot(byId("curves"), data.curves.map((curve, i) => ({ type: "scatter",
      mode: "lines+markers", name: safe(curve.name), x: curve.n, y: curve.ms,
      line: { color: LINES[i % LINES.length], width: 1.5,
        dash: DASHES[Math.floor(i / LINES.length) % DASHES.length] },
      marker: { symbol: SYMBOLS[Math.floor(i / LINES.length) % SYMBOLS.length], size: 6 },
      hovertemplate: `${safe(curve.name).replace(/[%$]/g, "")}<br>%{x} devices: %{y:.4~g} ms<extra></extra>` })),
    basic({ height: 460, hovermode: "closest", margin: { l: 60, r: 16, t: 12, b: 48 },
      legend: { orientation: "v", x: 1.02, y: 1, font: { size: 11 } },
      xaxis: axis("devices", { type: "log", dtick: Math.log10(2) }),
      yaxis: axis("ms of one operator, both passes", { type: "log" }) }), config);
  }

  function drawOfRun() {
    const run = runs[shown], devices = run.peak_gib.map((_, d) => d);
    document.querySelectorAll(".shown").forEach((mark) => { mark.textContent = `(${run.name})`; });
    const parts = [["parameters", "parameter", "#0072B2", ""], ["gradients", "gradient", "#E69F00", "/"],
      ["optimizer states", "optimizer", "#009E73", "x"], ["activations", "activation", "#CC79A7", "."]];
    const memory = parts.map(([name, key, colour, shape]) => ({ type: "bar", name, width: 0.8,
      x: devices, y: run.memory_gib[key], marker: pattern(shape, colour),
      hovertemplate: `${name}: %{y:.4~g} GiB<extra></extra>` }));
    memory.push({ type: "scatter", mode: "markers", name: "peak as it ran", x: devices,
      y: run.peak_gib, marker: { symbol: "line-ew-open", size: 9, color: "#1b1b1b", line: { width: 2 } },
      hovertemplate: "peak: %{y:.4~g} GiB<extra></extra>" });
    const limit = (y, text, dash) => ({ shape: { type: "line", xref: "paper", x0: 0, x1: 1, y0: y,
      y1: y, line: { color: "#1b1b1b", width: 1.5, dash } },
    note: { xref: "paper", x: 1, xanchor: "right", y, yanchor: "bottom", showarrow: false, text } });
    const limits = [limit(run.capacity_gib, "capacity", "solid"),
      limit(run.usable_gib, "", "dash")];
    Plotly.react(byId("memory"), memory, basic({ height: 360, barmode: "stack",
      hovermode: "x unified", shapes: limits.map((l) => l.shape),
      annotations: limits.slice(0, 1).map((l) => l.note), xaxis: axis("device", { tickformat: "d" }),
      yaxis: axis("GiB as planned (dashed: usable)", { range: [0, run.capacity_gib * 1.08] }) }), config);
    const tasks = run.metaops.map((name) => categories.findIndex((c, i) => i < numTasks
      && name.startsWith(`${c.name}/`)));
    const style = tasks.map((task) => categories[task] ?? { colour: "#999999", pattern: "" });
    Plotly.react(byId("metaop"), [{ type: "bar", orientation: "h", width: 0.8,
      y: run.metaops.map((_, i) => i), x: run.metaop_utilization,
      marker: { color: style.map((s) => s.colour), line: { width: 0 }, pattern: {
        shape: style.map((s) => s.pattern), fgcolor: style.map((s) => ink(s.colour)), size: 6, solidity: 0.25,
        fillmode: "overlay" } },
      text: run.metaops.map(safe), textposition: "none",
      hovertemplate: "%{text}: %{x:.3~g} %<extra></extra>" }],
    basic({ height: Math.min(1400, Math.max(260, 90 + 17 * run.metaops.length)), showlegend: false,
      margin: { l: 60, r: 16, t: 8, b: 48 },
      xaxis: axis("model FLOP/s, % of the peak of its own devices", { rangemode: "tozero" }),
      yaxis: axis("", { tickvals: run.metaops.map((_, i) => i), ticktext: run.metaops.map(safe),
        tickfont: { size: 11 }, range: [run.metaops.length - 0.5, -0.5] }) }), config);
    listStages(ROWS);
  }

  function listStages(limit) {
    const run = runs[shown], body = byId("stages");
    const order = [...run.slices].sort((a, b) => a[2] - b[2] || a[3] - b[3] || a[9] - b[9]);
    body.replaceChildren(...order.slice(0, limit).map((item) => {
      const row = document.createElement("tr");
      const values = [item[2], item[3], item[0], run.metaops[item[1]] ?? "",
        `${item[4]} to ${item[4] + item[5] - 1}`, item[8], `${item[6]} x ${item[7]}`,
        number(item[9]), number(item[10]), number(item[11]), item[12] ? "yes" : "no"];
      values.forEach((value, i) => {
        const cell = document.createElement("td");
        cell.textContent = value;
        if ([2, 3, 5].includes(i)) cell.className = "text";
        row.append(cell);
      });
      return row;
    }));
    byId("more").hidden = order.length <= limit;
    byId("more").textContent = `Show all ${order.length} slices`;
  }

  async function start() {
    if (typeof DecompressionStream === "undefined") {
      byId("trouble").textContent = "This browser is too old for the charts (it lacks"
        + " DecompressionStream); the tables are complete.";
      byId("trouble").hidden = false;
      return;
    }
    drawLegend();
    await drawGantt(everything());
    follow();
    drawComparisons();
    drawOfRun();
    byId("same").addEventListener("change", () => drawGantt(everything()));
    byId("more").addEventListener("click", () => listStages(Infinity));
    document.querySelectorAll("input[name=run]").forEach((choice) => {
      choice.addEventListener("change", async () => {
        const was = everything(), zoomed = view.left !== was.left || view.right !== was.right;
        shown = Number(choice.value);
        const all = everything();
        await drawGantt(zoomed ? { ...all, left: view.left, right: view.right } : all);
        drawOfRun();
      });
    });
    document.body.dataset.ready = String(Math.round(performance.now()));
  }

  start();
})();
