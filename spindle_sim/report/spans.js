// The spans of a run: unpacked when first shown, found by bisection, and said in words.
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
  run.marks = marks(run);
}

// When passes and stages begin: [time, name, shorter name if any] of each pass, and the times of
// the stages' forwards.
function marks(run) {
  const forward = new Map(), backward = new Map(), stages = new Map();
  const earlier = (map, key, time) => map.set(key, Math.min(map.get(key) ?? Infinity, time));
  let computed = 0, rest = 0;
  for (let span = 0; span < run.start.length; span++) {
    const end = run.start[span] + run.duration[span];
    rest = Math.max(rest, end);
    const item = run.slices[run.slice[span]];
    if (run.kind[span] !== COMPUTE || !item) continue;
    computed = Math.max(computed, end);
    const goesBack = run.phase[span] === BACKWARD;
    earlier(goesBack ? backward : forward, item[2], run.start[span]);
    if (!goesBack) earlier(stages, item[13], run.start[span]);
  }
  const several = forward.size > 1, passes = [];
  [...forward.keys()].sort((a, b) => a - b).forEach((round, i) => {
    const name = several ? `round ${i + 1} ` : "";
    passes.push([forward.get(round), `${name}forward`, name.trim()]);
    if (backward.has(round)) passes.push([backward.get(round), `${name}backward`]);
  });
  if (rest > computed) passes.push([computed, "sync, step"]);
  return { passes: passes.sort((a, b) => a[0] - b[0]), stages: [...stages.values()] };
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
    lines.push(`slice ${safe(item[0])}, operator${item[5] === 1 ? "" : "s"} ${operators(item[4], item[5])}`,
      `stage ${item[13]} of ${run.num_stages} (in the plan: round ${item[2]}, stage ${item[3]})`,
      `devices ${item[8]} (dp ${item[6]} x tp ${item[7]})`);
    if (item[12]) lines.push("recomputes its forward in the backward");
  }
  lines.push(`phase ${phases[run.phase[span]]}`);
  if (run.bytes[span]) lines.push(size(run.bytes[span]));
  if (run.peer[span] >= 0) {
    lines.push(`${run.kind[span] === SEND ? "to" : "from"} device ${run.peer[span]}`);
  }
  lines.push(`start ${time(run.start[span])}`, `duration ${time(run.duration[span])}`);
  return lines.join("<br>");
}

// The longest name of what a span computes that fits into so many characters; "" for none.
function shortName(run, span, room) {
  const item = run.slices[run.slice[span]];
  const full = item ? run.metaops[item[1]] ?? "" : "";
  const parts = full.split("/");
  return [full, parts.slice(-2).join("/"), parts.at(-2) ?? "", parts[0]]
    .find((name) => name && name.length <= room) ?? "";
}
