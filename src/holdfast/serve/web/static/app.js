// The pages: fetch the documents when the server reports a change, and draw them.
import { chooseCells, drawCells, drawHealth, drawScale, markCell } from "./charts.js";
import { prepareSeries, setSeries, showHeat, startHeat } from "./heat.js";
import * as tables from "./tables.js";
const { $, element, put, number, percent, duration, clock, median, gib, hidden } = tables;

const run = document.body.dataset.run;
const documents = { live: null, series: null, past: null };
let map = { columns: 0, rows: 0 };

async function load(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  return response.json();
}

function showHead() {
  const { live, past } = documents, head = past?.head, state = live?.state;
  const ended = Boolean(head?.ended), stuck = state && !ended && !live.stale && state.at - state.silent_since > (state.stall_s || 5);
  let text = "No live state yet", tone = "";
  if (ended) [text, tone] = head.status === 0 ? ["The run succeeded", "good"] : [`The run failed with status ${head.status}`, "alarm"];
  else if (live?.stale) [text, tone] = ["The live state is out of date", "alarm"];
  else if (state?.notice) [text, tone] = [state.notice, "alarm"];
  else if (stuck) [text, tone] = [`No rank has advanced for ${duration(state.at - state.silent_since)}`, "alarm"];
  else if (state?.waits.length) text = `The job advances; ${number(state.ranks.wait.filter((wait) => wait >= 0).length)} ranks wait for rank ${state.waits[0][2]}`;
  else if (state) [text, tone] = ["The job advances", "good"];
  $("headline").textContent = hidden(text);
  document.body.className = tone;
  document.body.dataset.live = state ? "yes" : "no";
  $("map-title").textContent = ended ? "All ranks at the end" : "All ranks now";
  $("ranks-state").textContent = ended ? "Last state" : "Now";
  const shown = [state?.job || head?.command, state ? `written by ${state.written_by} at ${clock(state.at)}, every ${number(state.period_s)} s` : ""];
  $("subline").textContent = hidden(shown.filter(Boolean).join(" · "));
  const problems = [...(ended ? [] : live?.problems ?? []), ...(past?.problems ?? [])];
  put($("problems"), problems.map((problem) => element("li", {}, hidden(problem))));
  const ranks = state?.ranks, tile = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  put($("tiles"), [
    tile("Step", number(ranks ? Math.max(...ranks.step.map((step) => step ?? -1), -1) : -1).replace("-1", "–")),
    tile("Steps per second", number(ranks ? median(ranks.rate) : null, 2)),
    tile("Ranks", number(state?.world_size ?? head?.world_size)),
    tile("Nodes", number(state ? state.nodes.length : head?.nodes)),
    tile("In collectives", percent(ranks ? median(ranks.waited) : null)),
    tile("Waiting > 1 s", number(ranks ? ranks.wait.filter((wait) => wait >= 0).length : 0)),
    tile("Since progress", state && !ended ? duration(Math.max(state.at - state.silent_since, 0)) : "–"),
    tile("Starts", number(head?.starts)),
    tile("Failures", number(head?.failures)),
  ]);
}

function mapShare(state, metric, limits, at) {
  if (metric === "life") return { running: 0, unknown: NaN }[state.lives[state.ranks.life[at]]] ?? 1;
  const value = metric === "cost" ? state.ranks.waited[at] : state.ranks[metric][at];
  if (value === null) return NaN;
  if (metric === "cost") return Math.max(limits.usual - value, 0) * 2;
  if (metric === "waited") return value;
  return (value - limits.low) / Math.max(limits.high - limits.low, 1e-9);
}

function showMap() {
  const state = documents.live?.state;
  if (!state) return;
  const metric = $("map-metric").value, count = state.ranks.rank.length, box = $("map").getBoundingClientRect();
  const columns = Math.max(1, Math.min(count, Math.ceil(Math.sqrt(count * box.width / Math.max(box.height, 1)))));
  map = { columns, rows: Math.ceil(count / columns) };
  const known = metric in state.ranks ? state.ranks[metric].filter((value) => value !== null) : [];
  const limits = { usual: median(state.ranks.waited), low: Infinity, high: -Infinity };
  for (const value of known) { limits.low = Math.min(limits.low, value); limits.high = Math.max(limits.high, value); }
  drawCells($("map"), map.columns, map.rows, (column, row) => {
    const at = row * map.columns + column;
    return at < count ? mapShare(state, metric, limits, at) : null;
  });
  drawScale($("map-scale"));
  const ends = { cost: ["as the median", "50% less"], waited: ["0%", "100%"], silent_s: [duration(limits.low), duration(limits.high)], memory: [gib(limits.low * 2 ** 20), gib(limits.high * 2 ** 20)], life: ["running", "not running"] };
  [$("map-low").textContent, $("map-high").textContent] = known.length || metric === "cost" ? ends[metric] : ["", ""];
  $("map").setAttribute("aria-label", `Map of ${count} ranks in ${map.rows} lines`);
}

function describeMap(column, row) {
  const state = documents.live?.state, at = row * map.columns + column;
  if (!state || at >= state.ranks.rank.length) return;
  showMap();
  markCell($("map"), map.columns, map.rows, column, row);
  const ranks = state.ranks;
  $("map-value").textContent = hidden(`rank ${ranks.rank[at]} on ${tables.hostOf(state, at)}: step ${number(ranks.step[at])}, ${percent(ranks.waited[at])} in collectives, ${tables.nowOf(state, at)}`);
}

function showHealth() {
  const { series, past } = documents;
  if (!series || !past) return;
  const points = series.at.map((at, index) => ({ at, rate: series.rate[index], generation: series.generation[index], wait: series.usual[index] === null ? null : series.usual[index] / series.full }));
  const drawn = drawHealth($("health"), points, past.events, clock);
  $("health-legend").textContent = drawn ? "Line: steps per second. Dashed: median share of the time in collectives. Green: start, orange: failure." : "No history yet.";
}

async function openRank(rank) {
  const dialog = $("rank-dialog");
  $("rank-title").textContent = `Rank ${rank}`;
  try {
    const found = await api(`rank/${rank}`), now = found.now;
    const rows = now ? [["host", now.node?.host], ["process", now.life], ["step", number(now.step)], ["steps per second", number(now.rate, 2)], ["time in collectives", percent(now.waited)], ["since progress", duration(now.silent_s)], ["call", now.call ? `${now.call[2]} #${now.call[1]} of group ${now.call[0]} at ${now.call[3]}` : "none"], ["waits for", now.wait ? now.wait[2] : "none"], ["memory", now.memory === null ? "–" : gib(now.memory * 2 ** 20)], ["GPU", now.gpu ?? "–"]] : [];
    const list = element("dl");
    for (const [name, value] of rows) list.append(element("dt", {}, name), element("dd", {}, hidden(String(value ?? "–"))));
    const { origin, frames, why } = found.stack;
    const stack = [why ? element("p", { className: "soft" }, `No sample of now: ${hidden(why)}`) : null, frames.length ? element("h3", {}, `Stack ${origin}`) : null, frames.length ? element("pre", {}, frames.map(hidden).join("\n")) : null].filter(Boolean);
    $("rank-body").replaceChildren(rows.length ? list : element("p", {}, "There is no such rank in the live state."), ...stack);
  } catch (error) {
    $("rank-body").replaceChildren(element("p", {}, error.message));
  }
  if (!dialog.open) dialog.showModal();
}

const show = {
  live() {
    const state = documents.live?.state;
    if (state) {
      state.nodes.forEach((node) => { node.gpus ??= []; });
      tables.showRanks(state, openRank); tables.showWaits(state); tables.showLatencies(state); tables.showNodes(state);
      showMap();
    }
    tables.showFindings(state, documents.past);
  },
  async series() { await setSeries(documents.series); showHealth(); },
  past() { tables.showVerdicts(documents.past, run); tables.showEvents(documents.past); tables.showFindings(documents.live?.state, documents.past); showHealth(); },
};

let busy = Promise.resolve();
const api = (path) => load(`/api/run/${encodeURIComponent(run)}/${path}`);
const showError = (error) => put($("problems"), [element("li", {}, hidden(error.message))]);
const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

function refresh(names) {
  const begun = performance.now();
  busy = busy.then(async () => {
    for (const name of names) {
      try {
        const found = await api(name);
        documents[name] = name === "series" ? prepareSeries(found) : found;
        await show[name](); showHead();
      } catch (error) {
        showError(error);
      }
    }
    await painted();
    document.body.dataset.firstPaint ??= String(Math.round(performance.now())); // for benchmarks
    document.body.dataset.painted = String(Math.round(performance.now() - begun));
  });
}

function follow() {
  const source = new EventSource(`/api/run/${encodeURIComponent(run)}/events`);
  source.onmessage = (event) => { $("link-state").textContent = ""; refresh(event.data.split(" ")); };
  source.onerror = () => {
    $("link-state").textContent = "· connection lost, retrying";
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
}

if (document.body.dataset.page === "runs") {
  const update = () => load("/api/runs").then((runs) => { tables.showRuns(runs); $("problems").textContent = ""; }).catch((error) => { $("problems").textContent = error.message; });
  update();
  setInterval(update, 5000);
} else {
  startHeat(async (begin, end) => api(`series?begin=${begin}&end=${end}`), showError);
  $("map-metric").addEventListener("change", showMap);
  chooseCells($("map"), () => map, false, describeMap, (column, row) => {
    const state = documents.live?.state, at = row * map.columns + column;
    if (state && at < state.ranks.rank.length) openRank(state.ranks.rank[at]);
  });
  $("open-rank").addEventListener("submit", (event) => { event.preventDefault(); if ($("rank-number").value) openRank(Number($("rank-number").value)); });
  window.addEventListener("resize", () => { showHeat(); showMap(); showHealth(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { showHeat(); showMap(); });
  follow();
}
