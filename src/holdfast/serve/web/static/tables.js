// Tables and lists. All text is set as text, never as markup.
export const $ = (id) => document.getElementById(id);

export function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) made[key] = value;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Replace content only if it changed, so that focus, selection and scroll positions stay.
export function put(target, children) {
  const key = children.map((child) => child.outerHTML ?? child).join("");
  if (target.dataset.key === key) return;
  target.dataset.key = key;
  target.replaceChildren(...children);
}

export const number = (value, digits = 1) => value === null || value === undefined ? "–" : Number(value).toLocaleString("en", { maximumFractionDigits: digits });
export const percent = (value) => value === null || value === undefined ? "–" : `${Math.round(value * 100)}%`;
export const gib = (bytes) => bytes === null || bytes === undefined ? "–" : `${(bytes / 2 ** 30).toFixed(bytes < 10 * 2 ** 30 ? 1 : 0)} GiB`;
export const clock = (at) => at ? new Date(at * 1000).toLocaleTimeString("en-GB") : "–";
export const moment = (at) => at ? new Date(at * 1000).toLocaleString("sv-SE") : "–";
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
export function median(values) {
  const known = new Float64Array(values.filter((value) => value !== null && value !== undefined)).sort();
  if (!known.length) return null;
  const at = (known.length - 1) / 2;
  return (known[Math.floor(at)] + known[Math.ceil(at)]) / 2;
}
export const hidden = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

const cell = (text, kind = "number") => element("td", { className: kind }, text);
function fill(id, rows, columns, empty) {
  const body = $(id).tBodies[0];
  put(body, rows.length ? rows : [element("tr", {}, element("td", { colSpan: columns, className: "soft" }, empty))]);
}

export function showRuns(runs) {
  fill("runs", runs.map((run) => {
    const link = element("a", { href: `/run/${encodeURIComponent(run.name)}` }, run.name);
    const [text, kind] = run.live ? ["running", "good-text"] : run.status === 0 ? ["succeeded", ""] : run.ended ? [`failed (${run.status})`, "alarm-text"] : ["no end recorded", "soft"];
    return element("tr", {}, element("td", { className: "number" }, link), cell(text, kind), cell(moment(run.begun)), cell(number(run.world_size)), cell(number(run.starts)), cell(number(run.failures)), cell(hidden(run.command), "text"));
  }), 7, "There is no run in this folder yet. Start one with: holdfast run");
}

export function nowOf(state, at) {
  const ranks = state.ranks, life = state.lives[ranks.life[at]];
  if (life !== "running" && life !== "unknown") return life;
  const wait = ranks.wait[at] >= 0 ? state.waits[ranks.wait[at]] : null;
  const call = ranks.call[at] >= 0 ? state.calls[ranks.call[at]] : null;
  const phase = ranks.phase[at] >= 0 ? `in phase ${state.phases[ranks.phase[at]]}` : "";
  const inside = call ? `in ${call[2]} #${call[1]}` : "";
  const awaited = ranks.awaited[at] ? `awaited by ${number(ranks.awaited[at])} ${ranks.awaited[at] === 1 ? "rank" : "ranks"}` : "";
  return [inside, wait && wait[2] ? `waits for ${wait[2]}` : "", phase, awaited].filter(Boolean).join(", ") || (life === "unknown" ? "unknown" : "computing");
}

export function hostOf(state, at) { return state.ranks.node[at] >= 0 ? state.nodes[state.ranks.node[at]].host : "–"; }

// The ranks that differ most: not running, behind, awaited, slow, silent.
export function differing(state, limit = 14) {
  const ranks = state.ranks, usualWait = median(ranks.waited), usualStep = median(ranks.step), usualMemory = median(ranks.memory);
  const usualSilent = median(ranks.silent_s);
  const scores = ranks.rank.map((_, at) => {
    const life = state.lives[ranks.life[at]];
    return (life === "running" ? 0 : 10) + (ranks.awaited[at] && ranks.wait[at] < 0 ? 6 : 0)
      + (usualStep !== null && ranks.step[at] !== null ? Math.min(Math.abs(ranks.step[at] - usualStep), 5) : 0)
      + (usualWait !== null && ranks.waited[at] !== null ? 4 * Math.max(usualWait - ranks.waited[at] - 0.08, 0) : 0)
      + Math.min(Math.max(ranks.silent_s[at] - usualSilent - 3, 0), 5)
      + (usualMemory && ranks.memory[at] > 1.3 * usualMemory ? 1 : 0)
      + (ranks.phase[at] >= 0 ? 0.1 : 0);
  });
  const few = ranks.rank.length <= limit, order = [...scores.keys()].filter((at) => few || scores[at] > 0.02);
  return order.sort((a, b) => scores[b] - scores[a] || a - b).slice(0, limit);
}

export function showRanks(state, open) {
  const ranks = state.ranks, usual = median(ranks.waited);
  fill("ranks", differing(state).map((at) => {
    const button = element("button", { type: "button", title: "Open this rank", onclick: () => open(ranks.rank[at]) }, String(ranks.rank[at]));
    const slow = usual !== null && ranks.waited[at] !== null && usual - ranks.waited[at] > 0.2;
    return element("tr", {}, element("td", {}, button), cell(hidden(hostOf(state, at)), "text"), cell(number(ranks.step[at], 0)), cell(number(ranks.rate[at], 2)), cell(percent(ranks.waited[at]), slow ? "number alarm-text" : "number"), cell(hidden(nowOf(state, at)), "text"), cell(ranks.memory[at] === null ? "–" : gib(ranks.memory[at] * 2 ** 20)));
  }), 7, `All ${number(ranks.rank.length)} ranks are alike.`);
}

export function showWaits(state) {
  put($("waits"), state.waits.length ? state.waits.map(([call, waiters, awaited, since]) => {
    const [group, sequence, operation, site] = state.calls[call];
    return element("p", {}, element("b", {}, `${waiters} wait for ${awaited || "no known rank"}`), ` in ${hidden(operation)} #${sequence} of group ${hidden(group)} for ${duration(Math.max(state.at - since, 0))}`, site ? element("span", { className: "soft" }, ` at ${hidden(site)}`) : null);
  }) : [element("p", { className: "soft" }, "No rank has waited for longer than a second.")]);
}

export function showLatencies(state) {
  const longest = Math.max(...state.latencies.map((each) => each[5]), 1e-9);
  fill("latency", state.latencies.map(([group, operation, calls, shortest, middle, p99]) => {
    const bar = element("span", { className: "bar" });
    bar.style.width = `${Math.max(100 * p99 / longest, 1)}%`;
    return element("tr", {}, cell(hidden(operation), "text"), cell(hidden(group), "text"), cell(number(calls)), cell(duration(shortest)), cell(duration(middle)), cell(duration(p99)), element("td", {}, bar));
  }), 7, "No durations: no recent collective, or the backend does not report completion (NCCL).");
}

export function showNodes(state) {
  const kinds = new Map(), hottestOf = [];
  for (const node of state.nodes) {
    let hottest = -1;
    for (const [, name, temperature, used, , throttled] of node.gpus ?? []) {
      let kind = kinds.get(name);
      if (!kind) kinds.set(name, kind = { count: 0, heat: [], used: [], waited: [], throttled: 0 });
      kind.count++;
      if (temperature !== null) { kind.heat.push(temperature); if (temperature > hottest) hottest = temperature; }
      if (used !== null) kind.used.push(used);
      if (throttled?.length) kind.throttled++;
    }
    hottestOf.push(hottest);
  }
  // With unlike GPUs, the kind that waits least has too much work.
  const ranks = state.ranks;
  ranks.waited.forEach((share, at) => {
    const gpu = state.nodes[ranks.node[at]]?.gpus?.find(([index]) => index === ranks.gpu[at]);
    if (gpu) kinds.get(gpu[1]).waited.push(share);
  });
  put($("kinds"), [...kinds].map(([name, kind]) => element("p", {}, element("b", {}, `${number(kind.count)} × ${hidden(name)}`), ` ${number(median(kind.heat))} °C, at most ${kind.heat.length ? Math.max(...kind.heat) : "–"} °C; ${gib(median(kind.used))} in use`, kind.waited.length ? `, ${percent(median(kind.waited))} of the time in collectives` : "", kind.throttled ? element("span", { className: "alarm-text" }, ` ${kind.throttled} throttled`) : null)));
  // The hottest first; of equally hot ones, those with the least free memory.
  const scores = state.nodes.map((node, at) => hottestOf[at] - (node.memory_available_bytes ?? 0) / 2 ** 60);
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, 14);
  fill("nodes", order.map((index) => {
    const node = state.nodes[index], heat = hottestOf[index];
    const gpus = node.gpus ?? [], used = gpus.map((gpu) => gpu[3]).filter((each) => each !== null);
    const throttled = gpus.filter((gpu) => gpu[5]?.length).map((gpu) => gpu[0]);
    const hottest = heat < 0 ? "–" : `${heat} °C${throttled.length ? ` (GPU ${throttled.join(", ")} throttled)` : ""}`;
    return element("tr", {}, cell(hidden(node.host), "text"), cell(number(node.ranks ?? 0)), cell(gpus.length ? `${gpus.length}` : "none"), cell(hottest, throttled.length ? "alarm-text" : "number"), cell(used.length ? gib(Math.max(...used)) : "–"), cell(gib(node.memory_available_bytes)));
  }), 6, "No node reports yet.");
}

const finding = (each) => {
  const where = [each.host, each.rank === null || each.rank === undefined ? "" : `rank ${each.rank}`].filter(Boolean).join(", ");
  return element("p", {}, element("b", { className: each.level === "error" ? "alarm-text" : "" }, `${each.level}: `), hidden(each.message), element("span", { className: "soft" }, ` (${each.code} ${each.cause}${where ? `, ${hidden(where)}` : ""})`));
};

// The result of a command: its checks by state, its findings, and what it could not check.
function report(each) {
  const states = Object.entries(each.states).map(([state, count]) => `${number(count)} ${hidden(state)}`).join(", ");
  const hosts = each.hosts.length > 4 ? `${number(each.hosts.length)} hosts` : each.hosts.map(hidden).join(", ");
  const head = element("h3", {}, `holdfast ${hidden(each.command)}`, element("span", { className: "soft" }, ` ${[hosts, moment(each.at), hidden(each.file)].filter(Boolean).join(" · ")}`));
  const parts = [states ? element("p", { className: "soft" }, states) : null, ...each.findings.map(finding)];
  if (!each.findings.length) parts.push(element("p", { className: "good-text" }, "Nothing wrong was found."));
  if (each.unseen.length) parts.push(element("details", {}, element("summary", {}, `${number(each.unseen.length)} not checked`), element("ul", {}, ...each.unseen.map((text) => element("li", {}, hidden(text))))));
  return element("div", { className: "report" }, head, ...parts.filter(Boolean));
}

export function showFindings(state, past) {
  const live = (state?.findings ?? []).map(([code, cause, level, message, host, rank]) => ({ code, cause, level, message, host, rank }));
  const all = [...live, ...(past?.findings ?? [])], reports = past?.reports ?? [];
  const none = element("p", { className: "soft" }, "No finding while the job ran.");
  const open = [...$("findings").querySelectorAll("details")].map((each) => each.open);
  put($("findings"), [...(all.length ? all.map(finding) : [none]), ...reports.map(report)]);
  $("findings").querySelectorAll("details").forEach((each, at) => { each.open = open[at] ?? false; });
}

export function showVerdicts(past, run) {
  put($("verdicts"), past.incidents.length ? [...past.incidents].reverse().map((incident) => {
    const root = incident.root;
    const parts = [element("h3", {}, `Incident ${incident.number}: `, root ? hidden(root.message) : "no single root cause")];
    if (root) parts.push(element("p", { className: "soft" }, `${root.code} ${root.cause}, confidence ${percent(root.confidence)}; ${number(incident.consequences)} ${incident.consequences === 1 ? "consequence" : "consequences"}`));
    if (root?.evidence.length) parts.push(element("ul", {}, ...root.evidence.map((text) => element("li", {}, hidden(text)))));
    if (root?.remedy) parts.push(element("p", {}, "What to do: ", hidden(root.remedy)));
    if (incident.has_page) parts.push(element("p", {}, element("a", { href: `/run/${encodeURIComponent(run)}/incidents/${incident.number}/report.html` }, `Report of incident ${incident.number}`)));
    return element("div", { className: "verdict" }, ...parts);
  }) : [element("p", { className: "soft" }, "No incident.")]);
}

export function showEvents(past) {
  put($("events"), past.events.length ? [...past.events].reverse().map((event) => {
    const details = element("dl");
    for (const [label, text] of event.details) if (label !== "report") details.append(element("dt", {}, label), element("dd", {}, hidden(text)));
    return element("li", { className: event.kind }, element("time", {}, moment(event.at)), element("b", {}, hidden(event.title)), event.details.length ? details : null);
  }) : [element("li", { className: "soft" }, "No event is recorded.")]);
}
