// The Gantt chart. It has two levels of detail: up to LIMIT visible spans are exact bars; more are
// a heat map, binned anew for each window, in which every cell shows what took most of its time,
// idling included. A row has three bands: a strip in the task's colour, the body (in the colour of
// the backward, where it is one), and communication.
const LIMIT = 4000, BINS = 1400, LABELS = 2000;
const TOP = -0.46, BODY = -0.28, LOWER = 0.22, END = 0.46;  // edges of the bands around a row

// A task's pattern lets its name be read; what moves data has no name on it.
const faint = (marker, look) => {
  if (marker.pattern && look % C < numTasks) {
    Object.assign(marker.pattern, { fgopacity: look < C ? 0.3 : 0.5, size: 8 });
  }
  return marker;
};

function bars(run, seen) {
  const bodies = looks.map(() => ({ base: [], x: [], y: [], hovertext: [] }));
  const strips = looks.map(() => ({ base: [], x: [], y: [] }));
  const add = (trace, span, device) => {
    trace.base.push(run.start[span]);
    trace.x.push(run.duration[span]);
    trace.y.push(device);
  };
  for (const { device, which, lane, from, to } of seen.parts) {
    for (let i = from; i < to; i++) {
      const span = lane.spans[i], look = lookOf(run, span);
      bodies[look].which = which;
      add(bodies[look], span, device);
      bodies[look].hovertext.push(details(run, span, device));
      if (look >= C) add(strips[look - C], span, device);
    }
  }
  const all = { type: "bar", orientation: "h", showlegend: false };
  // Widths and offsets are set: Plotly would derive them from the distance between rows.
  const drawn = bodies.map(({ which, ...trace }, look) => ({ ...all, ...trace, hoverinfo: "text",
    width: which ? END - LOWER : LOWER - TOP, offset: which ? LOWER : TOP,
    marker: faint(pattern(looks[look].pattern, looks[look].colour, looks[look].lines), look), name: safe(looks[look].name) }));
  const edges = strips.map((trace, look) => ({ ...all, ...trace, hoverinfo: "skip",
    width: BODY - TOP, offset: TOP, marker: pattern("", looks[look].colour) }));
  return [...drawn, ...edges].filter((trace) => trace.x.length);
}

// What takes most of each bin of one lane: indices of looks, -1 for idle.
function dominant(run, part, view, cover) {
  const width = (view.right - view.left) / BINS, best = new Int16Array(BINS).fill(-1);
  const L = looks.length;
  cover.fill(0);
  for (let i = part ? part.from : 0; part && i < part.to; i++) {
    const span = part.lane.spans[i], start = run.start[span], end = start + run.duration[span];
    const first = Math.max(0, Math.floor((start - view.left) / width));
    const last = Math.min(BINS - 1, Math.floor((end - view.left) / width));
    for (let bin = first; bin <= last; bin++) {
      const from = view.left + bin * width;
      cover[bin * L + lookOf(run, span)] += Math.min(end, from + width) - Math.max(start, from);
    }
  }
  for (let bin = 0; part && bin < BINS; bin++) {
    let most = 0, busy = 0;
    for (let look = 0; look < L; look++) {
      const share = cover[bin * L + look];
      busy += share;
      if (share > most) { most = share; best[bin] = look; }
    }
    if (width - busy > most) best[bin] = -1;
  }
  return best;
}

function cells(run, seen, view) {
  const width = (view.right - view.left) / BINS, rows = [], texts = [], edges = [];
  const L = looks.length, cover = new Float32Array(BINS * L);
  const names = looks.map((look, i) => i >= C ? `${safe(look.name)}, backward` : safe(look.name));
  const lanes = new Map(seen.parts.map((part) => [2 * part.device + part.which, part]));
  const blank = new Array(BINS).fill(null), nothing = new Array(BINS).fill("");
  for (let device = seen.first; device <= seen.last; device++) {
    edges.push(device + TOP, device + BODY, device + LOWER, device + END);
    const [computing, moving] = [0, 1].map((which) => Array.from(dominant(run,
      lanes.get(2 * device + which), view, cover)));
    const say = (idle) => (look) => `device ${device}: ${look < 0 ? idle : names[look]}`;
    rows.push(computing.map((look) => look < 0 ? null : look % C),
      computing.map((look) => look < 0 ? null : look),
      moving.map((look) => look < 0 ? null : look), blank);
    const text = computing.map(say("idle"));
    texts.push(text, text, moving.map(say("no communication")), nothing);
  }
  edges.push(seen.last + 1 + TOP);
  const scale = looks.flatMap((look, i) => [[i / L, look.colour], [(i + 1) / L, look.colour]]);
  return [{ type: "heatmap", z: rows, text: texts, x0: view.left + width / 2, dx: width, y: edges,
    zmin: -0.5, zmax: L - 0.5, colorscale: scale, showscale: false, hoverongaps: true,
    hovertemplate: "%{text}<br>at %{x:.4~g} ms<extra></extra>" }];
}

// Names on what is wide enough for them, as points of text: Plotly's own need far taller bars.
function names(run, seen, window, pixels) {
  const font = Math.min(11, Math.floor(0.68 * pixels.row) - 2), room = pixels.width / 0.6 / font;
  const found = { x: [], y: [], text: [], color: [] };
  const width = window.right - window.left;
  for (const { device, which, lane, from, to } of font < 8 ? [] : seen.parts) {
    for (let i = from; i < to && !which && found.x.length < LABELS; i++) {
      const span = lane.spans[i], left = Math.max(run.start[span], window.left);
      const right = Math.min(run.start[span] + run.duration[span], window.right);
      const text = run.kind[span] === COMPUTE
        && shortName(run, span, (right - left) / width * room - 1);
      if (!text) continue;
      found.x.push((left + right) / 2);
      found.y.push(device + (TOP + LOWER) / 2 + 0.04);
      found.text.push(safe(text));
      found.color.push(ink(looks[lookOf(run, span)].colour));
    }
  }
  return { type: "scatter", mode: "text", x: found.x, y: found.y, text: found.text,
    hoverinfo: "skip", showlegend: false, textfont: { size: font, color: found.color } };
}

// The critical path as a line through the rows that it comes by, broken where it is a gap. What is
// narrower than half a pixel is passed over.
function pathLine(run, window, pixels) {
  const { devices, bands, ends_ms: ends } = run.path, narrow = (window.right - window.left) / pixels / 2;
  const found = { x: [], y: [] };
  const first = bisect(ends.length, (i) => ends[i] > window.left);
  let reached = -Infinity;
  for (let i = first; i < ends.length && (ends[i - 1] ?? 0) < window.right; i++) {
    if (ends[i] - reached < narrow) continue;
    reached = ends[i];
    // Below the names.
    const row = devices[i] + (bands[i] ? (LOWER + END) / 2 : LOWER - 0.08);
    found.x.push(ends[i - 1] ?? 0, ends[i]);
    found.y.push(...(bands[i] === 2 ? [null, null] : [row, row]));
  }
  const line = (color, width) => ({ type: "scatter", mode: "lines", ...found, line: { color, width },
    connectgaps: false, hoverinfo: "skip", showlegend: false });
  return [line("#ffffff", 5), line("#000000", 2)];
}

let shown = 0, view = null, busy = false;
// A little beyond the end, so that the line there is seen.
const everything = () => ({ left: 0, top: -0.6, bottom: runs[shown].num_devices - 0.4,
  right: 1.01 * (byId("same")?.checked ? slowest : Math.max(runs[shown].iteration_ms, 1e-9)) });

function boundaries(run, window, width) {
  const shapes = [], notes = [], step = run.devices_per_node;
  const line = (place, look) => ({ type: "line", layer: "above", ...place, line: look });
  for (let device = step; device < run.num_devices && shapes.length < 128; device += step) {
    shapes.push(line({ xref: "paper", x0: 0, x1: 1, y0: device - 0.5, y1: device - 0.5 },
      { color: "#666", width: 1, dash: "dot" }));
  }
  const across = (x) => ({ yref: "paper", y0: 0, y1: 1, x0: x, x1: x });
  const pixel = (window.right - window.left) / width;
  const inside = (x) => x >= window.left && x <= window.right;
  const stages = run.marks.stages.filter(inside);
  if (stages.length * 8 < width) {
    stages.forEach((x) => shapes.push(line(across(x), { color: "rgba(0,0,0,0.25)", width: 0.6 })));
  }
  const passes = run.marks.passes, begin = (i) => passes[i]?.[0] ?? run.iteration_ms;
  let taken = -Infinity;  // where the last name ends
  passes.forEach(([x, text, shorter], i) => {
    const left = Math.max(x, window.left), right = Math.min(begin(i + 1), window.right);
    if (inside(x) && right - left > 4 * pixel) {
      shapes.push(line({ ...across(x), y1: 1.02 }, { color: "#1b1b1b", width: 1.2 }));
    }
    const fits = (name, end) => name && left >= taken
      && (Math.min(end, window.right) - left) / pixel > 6.5 * name.length + 6;
    // The shorter name stands for the whole round, its backward included.
    const name = fits(text, right) ? text : fits(shorter, begin(i + 2)) ? shorter : "";
    if (!name) return;
    taken = left + 6.5 * name.length * pixel;
    notes.push({ x: left, y: 1, yref: "paper", xanchor: "left", yanchor: "bottom", text: name,
      showarrow: false, font: { size: 11 } });
  });
  shapes.push(line(across(run.iteration_ms), { color: "#1b1b1b", width: 1.5, dash: "dash" }));
  return { shapes, notes };
}

async function drawGantt(next) {
  if (busy) return;
  busy = true;
  const run = runs[shown], chart = byId("gantt");
  await decode(run);
  view = next ?? view ?? everything();
  const seen = visible(run, view), exact = seen.count <= LIMIT;
  const traces = exact ? bars(run, seen) : cells(run, seen, view);
  const rows = Math.min(run.num_devices, 96);
  const each = rows > 64 ? 13 : rows > 24 ? 16 : 24, height = Math.max(260, 90 + rows * each);
  const width = Math.max(100, chart.clientWidth - 76);
  const critical = byId("critical").checked;
  if (critical) traces.push(...pathLine(run, view, width));
  traces.push(names(run, seen, view, { width, row: (height - 78) / (view.bottom - view.top) }));
  const { shapes, notes } = boundaries(run, view, width);
  await Plotly.react(chart, traces, basic({ height, barmode: "overlay", hovermode: "closest",
    dragmode: "zoom", margin: { l: 60, r: 16, t: 30, b: 48 }, shapes, annotations: notes,
    xaxis: axis("time since the iteration began (ms)", { range: [view.left, view.right] }),
    yaxis: axis("device", { range: [view.bottom, view.top], showgrid: false,
      tickformat: "d", dtick: Math.ceil((seen.last - seen.first + 1) / 16) }) }), config);
  byId("gantt-note").textContent = `${several ? `${run.name}: ` : ""}`
    + `${seen.count.toLocaleString("en-US")} spans in view, ${exact ? "drawn exactly"
      : "each cell shows what took most of its time; zoom in for the spans themselves"}.`
    + (critical ? " The black line is the critical path." : "")
    + " Computing above, communication below; dotted lines part nodes, thin lines are where stages"
    + " begin, the dashed line ends the iteration. Drag to zoom, double-click for all, hover for"
    + " details.";
  document.body.dataset.detail = exact ? "bars" : "heatmap";
  document.body.dataset.critical = critical ? String(traces.at(-2).x.length) : "";
  document.body.dataset.labels = String(traces.at(-1).x.length);
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

function swatch(look) {
  const bands = { "/": "135deg", "\\": "45deg", "x": "135deg", "+": "0deg", "|": "90deg" };
  const box = document.createElement("i"), { colour, pattern: shape, lines = ink(colour) } = look;
  const band = (angle) => `repeating-linear-gradient(${angle}, ${lines} 0 1px, transparent 1px 5px)`;
  box.style.backgroundColor = colour;
  if (shape === ".") {
    box.style.backgroundImage = `radial-gradient(${lines} 1px, transparent 1.2px)`;
    box.style.backgroundSize = "5px 5px";
  } else if (shape) {
    box.style.backgroundImage = band(bands[shape])
      + ("x+".includes(shape) ? `, ${band(shape === "x" ? "45deg" : "90deg")}` : "");
  }
  return box;
}

function drawLegend() {
  const entry = (...parts) => {
    const item = document.createElement("li");
    item.append(...parts);
    byId("legend").append(item);
  };
  categories.forEach((category, i) => {
    if (i === numTasks) {
      entry("(left: forward; right, another shade under a strip of the task's colour: backward)");
    }
    if (i === numTasks + COMPUTE) return;  // of no task: no plan of ours has it
    if (i >= numTasks) { entry(swatch(category), category.name); return; }
    const back = swatch(looks[C + i]);
    back.style.borderTop = `4px solid ${category.colour}`;
    entry(swatch(category), back, category.name);
  });
  entry(document.createElement("i"), "idle");
}
