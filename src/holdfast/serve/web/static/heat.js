// The heat map of ranks × steps: metric, legend, chosen cell, and zoom in time and ranks.
import { chooseCells, drawCells, drawScale, markCell, markArea } from "./charts.js";
import { $, number, percent, clock, median } from "./tables.js";

const MIN_COLUMNS = 4, MIN_ROWS = 2;
let whole = null, shown = null, load = null, chosen = false;
// Times (null: the whole run) and rows (count 0: all) in view.
const zoom = { begin: null, end: null, first: 0, count: 0 };

function bytes(text) {
  const binary = atob(text), values = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) values[at] = binary.charCodeAt(at);
  return values;
}

// Decode the columns, and leave out those at the beginning in which nothing was measured.
export function prepareSeries(series) {
  series.waits = series.waits.map(bytes); series.rates = series.rates.map(bytes);
  const known = (row) => row.some((value) => value !== series.unknown);
  const first = series.at.findIndex((_, at) => known(series.waits[at]) || known(series.rates[at]));
  const cut = first < 0 ? series.at.length : first;
  for (const name of ["at", "generation", "world_size", "step", "rate", "rates", "waits"]) series[name] = series[name].slice(cut);
  series.usual = series.waits.map((row) => median([...row].filter((value) => value !== series.unknown)));
  return series;
}

const allRows = () => Math.max(...shown.waits.map((row) => row.length), 0);
export function heatSize() {
  if (!shown) return { columns: 0, rows: 0 };
  return { columns: shown.at.length, rows: zoom.count || allRows() };
}

function share(column, row) {
  const metric = $("heat-metric").value, values = metric === "rates" ? shown.rates[column] : shown.waits[column];
  const value = values[Math.floor((zoom.first + row) * values.length / allRows())];
  if (value === undefined || value === shown.unknown) return NaN;
  if (metric !== "cost") return value / shown.full;
  return Math.max(shown.usual[column] - value, 0) / shown.full * 2; // half of the time is the end of the scale
}

// Waits are measured later than step rates: a short run shows the latter, unless the user chose.
function chooseMetric() {
  if (chosen || !whole) return;
  const measured = whole.usual.filter((value) => value !== null).length;
  $("heat-metric").value = measured * 2 < whole.at.length ? "rates" : "cost";
}

function ranksOf(world, row) {
  const rows = allRows(), at = zoom.first + row;
  const first = Math.floor(at * world / rows), last = Math.max(Math.floor((at + 1) * world / rows) - 1, first);
  return [first, last];
}

export function showHeat() {
  if (!shown) return;
  const { columns, rows } = heatSize(), end = columns - 1, world = end < 0 ? 0 : shown.world_size[end];
  drawCells($("heat"), columns, rows, share);
  drawScale($("heat-scale"));
  const when = (at) => end < 0 ? "" : `${clock(shown.at[at])}, step ${number(shown.step[at])}`;
  $("heat-first").textContent = end < 0 ? "Nothing is measured yet: it takes some steps, or ten seconds with collectives." : `rank ${ranksOf(world, 0)[0]}`;
  $("heat-last").textContent = end < 0 ? "" : `rank ${Math.max(ranksOf(world, rows - 1)[1], 0)}`;
  [$("heat-begin").textContent, $("heat-end").textContent] = [when(0), when(end)];
  const cost = $("heat-metric").value === "cost";
  const highest = number(Math.max(...shown.rate, 0), 2);
  [$("heat-low").textContent, $("heat-high").textContent] = cost ? ["as the median", "waits 50% less than the median: the others wait for it"] : $("heat-metric").value === "rates" ? ["0", `the highest rate of that moment, at most ${highest} steps/s`] : ["0%", "100%"];
  const part = zoom.begin !== null || zoom.count;
  $("heat").setAttribute("aria-label", `Heat map of ${rows} rows of ranks over ${columns} points in time${part ? ", enlarged" : ""}`);
  $("heat-out").disabled = $("heat-all").disabled = !part;
  $("heat-in").disabled = columns <= MIN_COLUMNS && rows <= MIN_ROWS;
}

function describe(column, row) {
  showHeat();
  const { columns, rows } = heatSize(), [first, last] = ranksOf(shown.world_size[column], row);
  markCell($("heat"), columns, rows, column, row);
  const value = share(column, row), shownValue = $("heat-metric").value === "cost" ? value / 2 : value;
  const text = Number.isNaN(value) ? "not measured" : percent(shownValue);
  $("heat-value").textContent = `${clock(shown.at[column])}, step ${number(shown.step[column])}, ${first === last ? `rank ${first}` : `ranks ${first}-${last}`}: ${text}`;
}

// Show the columns from..to and the rows above..below of the present view.
async function zoomTo(from, to, above, below) {
  const { columns, rows } = heatSize();
  const widened = (low, high, least, count) => {
    const more = Math.max(least - (high - low + 1), 0), start = Math.max(Math.min(low - Math.floor(more / 2), count - least), 0);
    return [start, Math.min(Math.max(high + more, start + least - 1), count - 1)];
  };
  [from, to] = widened(from, to, MIN_COLUMNS, columns); [above, below] = widened(above, below, MIN_ROWS, rows);
  if (to - from + 1 < columns) [zoom.begin, zoom.end] = [shown.at[from], shown.at[to]];
  [zoom.first, zoom.count] = below - above + 1 < rows ? [zoom.first + above, below - above + 1] : [zoom.first, zoom.count];
  await reload();
}

async function reload() {
  shown = zoom.begin === null ? whole : prepareSeries(await load(zoom.begin, zoom.end));
  chooser.clamp();
  showHeat();
}

function zoomIn() {
  const { columns, rows } = heatSize(), [column, row] = chooser.at();
  const half = (at, count) => { const size = Math.ceil(count / 2), start = Math.min(Math.max(at - Math.floor(size / 2), 0), count - size); return [start, start + size - 1]; };
  return zoomTo(...half(column, columns), ...(rows > 16 ? half(row, rows) : [0, rows - 1]));
}

function zoomOut() {
  if (zoom.begin !== null) {
    const first = whole.at[0], last = whole.at[whole.at.length - 1], span = zoom.end - zoom.begin;
    const half = span * (1 + 1 / Math.max(shown.at.length - 1, 1)) / 2; // of the columns, not of their centres
    const begin = zoom.begin - half, end = zoom.end + half;
    [zoom.begin, zoom.end] = [begin - Math.max(end - last, 0), end + Math.max(first - begin, 0)];
    if (zoom.begin <= first && zoom.end >= last) zoom.begin = zoom.end = null;
  }
  if (zoom.count) {
    const rows = allRows(), count = zoom.count * 2;
    [zoom.first, zoom.count] = count >= rows ? [0, 0] : [Math.min(Math.max(zoom.first - Math.floor(zoom.count / 2), 0), rows - count), count];
  }
  return reload();
}

function zoomAll() { zoom.begin = zoom.end = null; zoom.first = zoom.count = 0; return reload(); }

export async function setSeries(series) {
  whole = series;
  chooseMetric();
  if (zoom.begin === null) shown = whole;
  else shown = prepareSeries(await load(zoom.begin, zoom.end));
  showHeat();
}

let chooser = { at: () => [0, 0], clamp() {} };
// `loadSeries(begin, end)` returns the series of a part of the run, in more detail.
export function startHeat(loadSeries, onError) {
  load = loadSeries;
  const run = (action) => () => action().catch(onError);
  $("heat-metric").addEventListener("change", () => { chosen = true; showHeat(); });
  $("heat-in").addEventListener("click", run(zoomIn));
  $("heat-out").addEventListener("click", run(zoomOut));
  $("heat-all").addEventListener("click", run(zoomAll));
  $("heat").addEventListener("dblclick", run(zoomAll));
  $("heat").addEventListener("keydown", (event) => {
    const action = { "+": zoomIn, "=": zoomIn, "-": zoomOut, 0: zoomAll, Escape: zoomAll }[event.key];
    if (action && !event.ctrlKey && !event.metaKey) { event.preventDefault(); run(action)(); }
  });
  chooser = chooseCells($("heat"), heatSize, true, describe, null, {
    drag: (from, to) => { showHeat(); markArea($("heat"), heatSize().columns, heatSize().rows, from, to); },
    drop: (from, to) => run(() => zoomTo(...sorted(from[0], to[0]), ...sorted(from[1], to[1])))(),
  });
}
const sorted = (a, b) => a < b ? [a, b] : [b, a];
