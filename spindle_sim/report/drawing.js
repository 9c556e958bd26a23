"use strict";
// What every chart of the page uses: the data, numbers as text, the looks of axes and colours.
// The page's script is drawing.js, spans.js, gantt.js, charts.js and start.js in one function.
const data = JSON.parse(document.getElementById("data").textContent);
const { runs, categories, kinds, phases } = data;
const C = categories.length, numTasks = data.num_tasks;
const SEND = kinds.indexOf("send"), OPTIMIZER = kinds.indexOf("optimizer");
const COMPUTE = kinds.indexOf("compute"), BACKWARD = phases.indexOf("backward");
const several = runs.length > 1;
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
const pattern = (shape, colour, lines = ink(colour)) => shape
  ? { color: colour, line: { width: 0 }, pattern: { shape, fgcolor: lines, size: 6,
    solidity: 0.25, fillmode: "overlay" } }
  : { color: colour, line: { width: 0 } };
// How spans are drawn: the categories, then the backward of each.
const looks = [...categories, ...categories.map((category) => ({ ...category,
  colour: category.backward ?? category.colour, lines: "#ffffff" }))];
const lookOf = (run, span) => run.category[span]
  + (run.category[span] < numTasks && run.phase[span] === BACKWARD ? C : 0);
const operators = (first, count) => count === 1 ? `${first}` : `${first} to ${first + count - 1}`;
