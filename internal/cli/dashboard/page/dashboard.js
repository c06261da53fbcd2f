"use strict";

// What daemons report is text: it is only ever set as textContent.
const svgNS = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const e = svgNames.has(name) ? document.createElementNS(svgNS, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "style") Object.assign(e.style, value);
    else e.setAttribute(key, value);
  }
  e.append(...children.filter((c) => c !== undefined && c !== null));
  return e;
}
const svgNames = new Set(["svg", "g", "rect", "line", "path", "text", "polyline", "title"]);

function bits(rate) {
  for (const unit of ["bit/s", "kbit/s", "Mbit/s"]) {
    if (rate < 999.5) return rate.toPrecision(rate < 1 ? 1 : 3).replace(/\.0+$/, "") + " " + unit;
    rate /= 1000;
  }
  return rate.toPrecision(3) + " Gbit/s";
}

function age(seconds) {
  if (seconds < 120) return seconds + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
  return Math.floor(seconds / 86400) + " d";
}

// table replaces the content of a table. A column is [title, cell, class]; cell returns text or an
// element.
function table(target, columns, rows) {
  const head = element("tr", null, ...columns.map(([title, , kind]) => element("th", { class: kind || "", scope: "col" }, title)));
  const body = rows.map((row) => element("tr", null, ...columns.map(([title, cell, kind]) => element("td", { class: kind || "", "data-title": title }, cell(row) ?? ""))));
  target.replaceChildren(element("thead", null, head), element("tbody", null, ...body));
  target.hidden = rows.length === 0;
}

const colors = new Map();
function color(path) {
  if (!colors.has(path)) colors.set(path, "var(--p" + (colors.size % 8) + ")");
  return colors.get(path);
}
const swatch = (path) => element("span", { class: "swatch", style: { background: color(path) } });
const named = (path) => element("span", null, swatch(path), path);
const last = (list) => (list.length ? list[list.length - 1] : 0);

function levelOf(d) {
  if (d.fault) return "bad";
  if (!d.status.ready) return "bad";
  return d.status.degraded ? "fair" : "good";
}
const words = { good: "ready", fair: "degraded", bad: "not ready" };

function showVerdict(s) {
  byId("host").textContent = s.host;
  document.title = "tabane " + s.host;
  const levels = s.daemons.map(levelOf);
  const worst = levels.includes("bad") ? "bad" : levels.includes("fair") ? "fair" : "good";
  const verdict = byId("verdict");
  const text = s.daemons.length === 0 ? "no daemon answers on this host" : worst === "good" ? "all ready" : words[worst];
  const level = s.daemons.length === 0 ? "bad" : worst;
  if (verdict.textContent !== text) verdict.textContent = text;
  verdict.className = level;
  const problems = s.daemons.filter((d) => levelOf(d) !== "good").map((d) =>
    element("li", { class: levelOf(d) }, element("strong", null, d.name), " ", d.fault ? "does not answer: " + d.fault : words[levelOf(d)] + ": " + d.status.reason));
  byId("problems").hidden = problems.length === 0;
  byId("problems").firstElementChild.replaceChildren(...problems);
}

// showTopology draws each daemon with what it is connected to: sessions to the left, egress peers to
// the right. The width of a line grows with the rate over the path.
function showTopology(s) {
  const rates = new Map(s.paths.map((p) => [p.path, last(p.out)]));
  const answering = s.daemons.filter((d) => d.status);
  const section = byId("topology"), rowHeight = 38;
  section.hidden = answering.length === 0;
  // Drawn at the width that it is shown with where that is less, so that text keeps its size. Three
  // columns need more than a phone has.
  const least = answering.every((d) => d.status.role === "gateway") ? 280 : 480;
  const width = Math.min(720, Math.max(least, roomIn(section))), box = Math.min(170, Math.floor(0.28 * width));
  const parts = [];
  let top = 8;
  const frame = (x, y, title, note, down) => {
    if (box < 140) note = ""; // no room beside the title
    parts.push(element("rect", { x, y, width: box, height: 28, rx: 5, class: "frame" + (down ? " down" : "") }));
    parts.push(element("text", { x: x + 8, y: y + 18 }, clip(title, Math.floor(box / (note ? 11 : 7)))));
    if (note) parts.push(element("text", { x: x + box - 8, y: y + 18, "text-anchor": "end", class: "muted" }, note));
  };
  for (const d of answering) {
    if (d.status.role === "gateway") {
      top = gatewayTopology(d, s.lines.filter((l) => l.daemon === d.name), { parts, frame, top, rowHeight, width, box });
      continue;
    }
    const peers = d.status.peers || [];
    const peerNames = new Set(peers.map((p) => p.name));
    const sessions = (d.status.sessions || []).filter((n) => !peerNames.has(n.neighbor));
    const rows = Math.max(sessions.length, peers.length, 1);
    const middle = top + (rows * rowHeight) / 2 - 14;
    const center = (width - box) / 2;
    const spread = (n, i) => top + ((rows - n) * rowHeight) / 2 + i * rowHeight;
    const lines = [], labels = [];
    sessions.forEach((n, i) => {
      const y = spread(sessions.length, i);
      lines.push(element("path", { d: curve(box, y + 14, center, middle + 14), fill: "none", stroke: n.up ? "var(--muted)" : "var(--bad)",
        "stroke-width": 1.5, "stroke-dasharray": n.up ? "none" : "4 3" }));
      frame(0, y, n.neighbor, n.up ? "" : "down", !n.up);
    });
    peers.forEach((p, i) => {
      const y = spread(peers.length, i), down = p.routes === 0, rate = rates.get(p.name) || 0;
      lines.push(element("path", { d: curve(center + box, middle + 14, width - box, y + 14), fill: "none", stroke: down ? "var(--bad)" : color(p.name),
        "stroke-width": 1.5 + Math.min(6, Math.log10(1 + rate / 1e5) * 2), "stroke-dasharray": down ? "4 3" : "none" }));
      if (rate > 0) labels.push(element("text", { x: width - box - 12, y: y + 18, "text-anchor": "end", class: "muted halo" }, bits(rate)));
      frame(width - box, y, p.name, down ? "no route" : p.routes + (p.routes === 1 ? " route" : " routes"), down);
    });
    parts.unshift(...lines, ...labels);
    frame(center, middle, d.name, words[levelOf(d)], levelOf(d) === "bad");
    top += rows * rowHeight + 14;
  }
  const view = element("svg", { viewBox: `0 0 ${width} ${Math.max(top, 40)}`, role: "img", "aria-label": "daemons, their sessions and egress peers" }, ...parts);
  view.style.minWidth = least + "px";
  section.querySelector(".scroll").replaceChildren(view);
}

// gatewayTopology draws a gateway with its peers, and each path to them as a line; it returns where the
// next daemon begins.
function gatewayTopology(d, lines, { parts, frame, top, rowHeight, width, box }) {
  const peers = (d.status.peers || []).map((p) => ({ ...p, lines: lines.filter((l) => l.peer === p.name) }));
  const rows = Math.max(1, peers.reduce((n, p) => n + Math.max(1, p.lines.length), 0));
  const middle = top + (rows * rowHeight) / 2 - 14;
  let row = 0;
  const labels = []; // above all lines
  for (const p of peers) {
    const own = Math.max(1, p.lines.length), y = top + (row + own / 2) * rowHeight - 14;
    p.lines.forEach((l, i) => {
      const level = lineState(l)[1], rate = last(l.out) + last(l.in), at = top + (row + i) * rowHeight + 14;
      const name = new Set(lines.map((one) => one.peer)).size > 1 ? l.path + " to " + l.peer : l.path;
      parts.push(element("path", { d: curve(box, middle + 14, width / 2, at) + curve(width / 2, at, width - box, y + 14), fill: "none",
        stroke: level === "bad" ? "var(--bad)" : color(name), "stroke-dasharray": level === "good" ? "none" : "4 3",
        "stroke-width": 1.5 + Math.min(6, Math.log10(1 + rate / 1e5) * 2) }));
      labels.push(element("text", { x: width / 2, y: at - 7, "text-anchor": "middle", class: "halo" },
        clip(l.path, width < 500 ? 8 : 14) + (level === "good" ? " " + bits(rate) : " " + lineState(l)[0])));
    });
    frame(width - box, y, p.name, p.up ? "" : "no session", !p.up);
    row += own;
  }
  parts.push(...labels);
  frame(0, middle, d.name, words[levelOf(d)], levelOf(d) === "bad");
  return top + rows * rowHeight + 14;
}
const roomIn = (section) => section.clientWidth - 34; // without its padding
const clip = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);
const curve = (x1, y1, x2, y2) => `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;

// drawChart draws rates over the last five minutes: lists of [name, samples], each in the color of its name.
function drawChart(section, label, lists) {
  const chart = section.querySelector(".chart");
  // Drawn at the width that it is shown with, so that text keeps its size.
  const width = Math.max(200, roomIn(section)), height = 200, left = 64, bottom = 22, total = 300;
  const most = Math.max(1, ...lists.flatMap(([, samples]) => samples));
  const step = Math.pow(10, Math.floor(Math.log10(most)));
  const ceiling = Math.ceil(most / step) * step;
  const x = (i, n) => left + ((total - n + i) / (total - 1)) * (width - left - 6);
  const y = (v) => height - bottom - (v / ceiling) * (height - bottom - 10);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(element("line", { x1: left, x2: width - 6, y1: y(share * ceiling), y2: y(share * ceiling), class: "rule" }));
    parts.push(element("text", { x: left - 6, y: y(share * ceiling) + 4, "text-anchor": "end", class: "muted" }, bits(share * ceiling)));
  }
  for (const [seconds, text] of [[300, "5 min ago"], [150, "2.5 min"], [0, "now"]]) {
    const at = left + ((total - seconds) / total) * (width - left - 6);
    parts.push(element("text", { x: at, y: height - 6, "text-anchor": seconds === 300 ? "start" : seconds === 0 ? "end" : "middle", class: "muted" }, text));
  }
  for (const [name, samples] of lists) {
    const points = samples.map((v, i) => x(i, samples.length).toFixed(1) + "," + y(v).toFixed(1)).join(" ");
    parts.push(element("polyline", { points, fill: "none", stroke: color(name), "stroke-width": 1.8 }, element("title", null, name)));
  }
  chart.replaceChildren(element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts));
  chart.hidden = lists.length === 0;
}

// showRates shows egress paths, which a host of gateways alone has none of.
function showRates(s) {
  const section = byId("rates");
  section.hidden = s.paths.length === 0 && s.lines.length > 0;
  section.querySelector(".note").textContent = s.uncounted ? "Not measured: " + s.uncounted : s.paths.length ? "" : "Nothing was measured yet.";
  drawChart(section, "bits per second towards the clients over each path, last five minutes", s.paths.map((p) => [p.path, p.out]));
  const sum = s.paths.reduce((n, p) => n + last(p.out), 0);
  table(section.querySelector("table"), [
    ["path", (p) => named(p.path)],
    ["to clients", (p) => bits(last(p.out)), "number"],
    ["share", (p) => (sum > 0 ? Math.round((100 * last(p.out)) / sum) + " %" : ""), "number"],
    ["from clients", (p) => bits(last(p.in)), "number"],
  ], s.paths);
}

// linksOf returns the egress links that a daemon knows the load of: a server from reports, a border router
// its own.
function linksOf(d) {
  if (!d.status || d.status.role === "gateway") return [];
  const own = (d.status.peers || []).filter((p) => p.load && p.load.capacity_bps > 0).map((p) => ({ name: p.name, ...p.load }));
  return [...(d.status.links || []), ...own].map((l) => ({ ...l, daemon: d.name }));
}

const full = 0.9; // docs/delivery.md#full-links

// showLinks shows what egress links carry and can carry; the bar is as long as the share.
function showLinks(s) {
  const links = s.daemons.flatMap(linksOf);
  byId("links").hidden = links.length === 0;
  const share = (l) => l.used_bps / l.capacity_bps;
  const level = (l) => (l.stuck ? "bad" : share(l) >= full ? "fair" : "good");
  const percent = (l) => Math.round(100 * share(l)) + " %";
  table(byId("links").querySelector("table"), [
    ["link", (l) => l.name],
    ["carries", (l) => bits(l.used_bps), "number"], ["capacity", (l) => bits(l.capacity_bps), "number"],
    ["", (l) => element("span", { class: "load " + level(l), role: "img", "aria-label": percent(l) + " used" },
      element("span", { style: { width: Math.min(100, 100 * share(l)) + "%" } }))],
    ["share", (l) => element("span", { class: level(l) }, percent(l)), "number"],
    ["networks that avoid it", (l) => (l.avoiding === undefined ? "" : String(l.avoiding)), "number"],
    ["", (l) => (l.stuck ? "full, and networks have nowhere else to go" : ""), "long"],
    ...(new Set(links.map((l) => l.daemon)).size > 1 ? [["reported by", (l) => l.daemon]] : []),
  ], links);
}

function bytes(n) {
  for (const unit of ["B", "kB", "MB"]) {
    if (n < 999.5) return (unit === "B" ? n : n.toPrecision(3)) + " " + unit;
    n /= 1000;
  }
  return n.toPrecision(3) + " GB";
}

// lineState returns the state of a gateway's path, its level, and why it is so.
function lineState(l) {
  if (!l.up) return [l.state, "bad", l.reason || ""];
  return l.resting ? ["resting", "fair", l.resting] : ["up", "good", ""];
}

// showLines shows the paths of gateways; the chart has what each sends and receives.
function showLines(s) {
  const section = byId("lines");
  section.hidden = s.lines.length === 0;
  if (section.hidden) return;
  section.querySelector(".note").textContent = s.lines_left_out > 0 ? `${s.lines_left_out} more are not shown.` : "";
  const peers = new Set(s.lines.map((l) => l.peer));
  const name = (l) => (peers.size > 1 ? l.path + " to " + l.peer : l.path);
  const both = (l) => l.out.map((v, i) => v + l.in[i]);
  drawChart(section, "bits per second over each line in both directions, last five minutes", s.lines.map((l) => [name(l), both(l)]));
  table(section.querySelector("table"), [
    ["line", (l) => named(name(l))],
    ["state", (l) => element("span", { class: lineState(l)[1] }, lineState(l)[0])],
    ["to the peer", (l) => bits(last(l.out)), "number"], ["from the peer", (l) => bits(last(l.in)), "number"],
    ["round trip", (l) => (l.rtt_ms ? l.rtt_ms.toFixed(1) + " ms" : ""), "number"],
    ["loss", (l) => (100 * l.loss).toFixed(l.loss && l.loss < 0.01 ? 2 : 1) + " %", "number"],
    ["last day", (l) => bytes(l.sent_bytes + l.received_bytes), "number"],
    ...(s.lines.some((l) => l.quota) ? [["quota", (l) => l.quota || ""]] : []),
    ["why", (l) => lineState(l)[2], "long"],
  ], s.lines);
}

function showSubflows(s) {
  const section = byId("subflows");
  section.hidden = Boolean(s.uncounted) || (s.paths.length === 0 && s.lines.length > 0);
  section.querySelector(".note").textContent = s.subflows.length === 0 ? "No packet was sent in the last second."
    : s.subflows_left_out > 0 ? `${s.subflows_left_out} more with lower rates are not shown.` : "";
  table(section.querySelector("table"), [
    ["path", (f) => named(f.path)], ["rate", (f) => bits(f.rate), "number"], ["connection", (f) => f.connection || f.protocol],
    ["client", (f) => f.remote], ["local address", (f) => f.local],
    ["RTT", (f) => (f.rtt ? f.rtt.toFixed(1) + " ms" : ""), "number"], ["window", (f) => (f.window ? String(f.window) : ""), "number"],
    ["retransmitted", (f) => (f.rtt ? String(f.retransmitted || 0) : ""), "number"], ["", (f) => (f.backup ? "backup" : "")],
  ], s.subflows);
}

// showNetworks hides client networks where no server has any with a mode.
function showNetworks(s) {
  byId("networks").hidden = !s.daemons.some((d) => d.status && d.status.delivery && d.status.delivery.networks > 0);
}

const signed = (percent) => (percent >= 0 ? "+" : "−") + Math.abs(percent) + " %";

// broughtBy says what a mode of a network brought.
const broughtBy = [
  ["mode", (m) => m.mode],
  ["against best", (m) => (m.mode === "best" ? "" : m.trials ? `${signed(m.gain_percent)} ± ${m.uncertainty_percent}` : "not measured"), "number"],
  ["comparisons", (m) => String(m.trials), "number"],
  ["goodput", (m) => (m.goodput_bytes_per_second ? bits(8 * m.goodput_bytes_per_second) : ""), "number"],
  ["bytes", (m) => bytes(m.bytes), "number"],
  ["least RTT", (m) => (m.min_rtt_ns ? (m.min_rtt_ns / 1e6).toFixed(1) + " ms" : ""), "number"],
  ["retransmitted", (m) => (m.segments ? ((100 * m.retransmitted) / m.segments).toFixed(2) + " %" : ""), "number"],
  ["", (m) => (m.rest_seconds ? "rests for " + age(m.rest_seconds) : "")],
];

// drawNetworks shows what a server answered: its networks, what each mode brought, and the last changes.
function drawNetworks(a) {
  const title = element("h3", null, a.daemon);
  if (a.fault) return element("div", null, title, element("p", { class: "note" }, "does not answer: " + a.fault));
  const n = a.networks, list = n.list || [];
  const more = n.networks - list.length;
  const note = (n.dry_run ? "Dry run: no route is changed. " : "") + (list.length === 0 ? "No network has a mode." : more > 0 ? `${list.length} of ${n.networks} networks.` : "");
  const networks = element("table"), changes = element("table");
  table(networks, [
    ["network", (row) => row.prefix], ["mode", (row) => row.mode], ["through", (row) => (row.through || []).join(", ")],
    ["since", (row) => age(row.seconds), "number"],
    ["why", (row) => [row.rule && "rule for " + row.rule, row.why, row.trying && "trying " + row.trying, row.state !== "in use" && row.state].filter(Boolean).join("; "), "long"],
    ["what each mode brought", (row) => modesOf(a.daemon, row)],
  ], list);
  table(changes, [
    ["ago", (c) => age(c.seconds_ago), "number"], ["network", (c) => c.prefix], ["from", (c) => c.from], ["to", (c) => c.to], ["why", (c) => c.why, "long"],
  ], n.changes || []);
  return element("div", null, title, element("p", { class: "note" }, note), element("div", { class: "scroll" }, networks),
    element("p", { class: "note" }, (n.changes || []).length ? "Last changes of modes" : ""), element("div", { class: "scroll" }, changes));
}

function modesOf(daemon, row) {
  if (!row.modes) return "";
  const details = element("details"), inside = element("table"), key = daemon + " " + row.prefix;
  table(inside, broughtBy, row.modes);
  details.append(element("summary", null, row.modes.length + " modes"), inside);
  details.open = open.has(key);
  details.addEventListener("toggle", () => (details.open ? open.add(key) : open.delete(key)));
  return details;
}

// asked counts requests, so that a late answer does not replace a newer one.
let asked = 0;

// refreshNetworks asks for networks every few seconds: a server may have 100,000.
async function refreshNetworks(event) {
  if (event) event.preventDefault();
  const section = byId("networks"), mine = ++asked;
  try {
    const destination = new FormData(section.querySelector("form")).get("destination").trim();
    const response = section.hidden ? null : await fetch("networks?" + new URLSearchParams(destination ? { destination } : {}));
    if (response && mine === asked) {
      section.querySelector(".note").textContent = response.ok ? "" : await response.text();
      section.querySelector(".list").replaceChildren(...(response.ok ? (await response.json()).map(drawNetworks) : []));
    }
  } catch (e) {
    section.querySelector(".note").textContent = "The dashboard does not answer: " + e.message;
  }
  if (!event) setTimeout(refreshNetworks, section.hidden ? 1000 : 5000);
}

// open keeps which daemons' details are shown.
const open = new Set();

function showDaemons(s) {
  const list = s.daemons.map((d) => {
    const level = levelOf(d);
    const title = element("h3", null, d.name, " ", element("span", { class: "pill " + level }, d.fault ? "does not answer" : words[level]));
    const note = element("p", { class: "note" }, d.at + (d.status && d.status.asn ? ", AS " + d.status.asn : "") + (d.fault ? ": " + d.fault : ""));
    const block = element("div", null, title, note);
    if (!d.status) return block;
    const isGateway = d.status.role === "gateway";
    const sessions = element("table"), peers = element("table"), details = element("details");
    table(sessions, [
      ["session", (n) => n.neighbor], ["state", (n) => element("span", { class: n.up ? "good" : "bad" }, n.up ? "up" : "down")],
      ["since", (n) => (n.up ? age(n.uptime_seconds) : ""), "number"], ["flaps", (n) => String(n.flaps), "number"],
      ["BFD", (n) => n.bfd || ""], ["why", (n) => n.reason || n.last_reset || "", "long"],
    ], d.status.sessions || []);
    table(peers, isGateway ? [
      ["peer", (p) => p.name], ["session", (p) => element("span", { class: p.up ? "good" : "bad" }, p.up ? "up" : "down")],
      ["since", (p) => (p.up ? age(Math.floor(p.seconds)) : ""), "number"], ["mode", (p) => p.mode],
      ["encryption", (p) => p.encryption || ""], ["why", (p) => p.reason || "", "long"],
    ] : [
      ["egress peer", (p) => p.name], ["routes", (p) => String(p.routes), "number"], ["address", (p) => p.address || ""],
      ["SID", (p) => p.sid || (p.sids || []).join(", ")], ["table", (p) => String(p.table ?? ""), "number"],
    ], d.status.peers || []);
    details.append(element("summary", null, "all that it reports"), element("pre", null, JSON.stringify(d.status, null, 2)));
    details.open = open.has(d.name + d.at);
    details.addEventListener("toggle", () => (details.open ? open.add(d.name + d.at) : open.delete(d.name + d.at)));
    block.append(element("div", { class: "scroll" }, sessions), element("div", { class: "scroll" }, peers), details);
    return block;
  });
  byId("daemons").querySelector(".list").replaceChildren(...list);
}

// showLookup hides the form for routes where no daemon knows any.
function showLookup(s) {
  byId("routes").hidden = s.daemons.length > 0 && s.daemons.every((d) => d.status && d.status.role === "gateway");
}

function showEvents(s) {
  byId("events").querySelector(".note").textContent = s.events.length ? "" : "Nothing has changed since this page's server was started.";
  byId("events").querySelector("ol").replaceChildren(...s.events.slice().reverse().map((e) => {
    const at = new Date(e.time);
    return element("li", null, element("time", { datetime: at.toISOString() }, at.toLocaleTimeString()), element("b", { class: e.level }, e.daemon), e.text);
  }));
}

async function lookUp(event) {
  event.preventDefault();
  const answer = byId("routes").querySelector(".answer");
  const destination = new FormData(event.target).get("destination");
  const say = (text) => answer.replaceChildren(element("p", { class: "note" }, text));
  try {
    const response = await fetch("routes?" + new URLSearchParams({ destination }));
    if (!response.ok) return say(await response.text());
    const found = (await response.json()).filter((a) => a.routes);
    if (found.length === 0) return say("No daemon here knows routes.");
    answer.replaceChildren(...found.map((a) => element("div", null, element("h3", null, a.daemon), ...routesOf(a.routes))));
  } catch (e) {
    say("The dashboard does not answer: " + e.message);
  }
}

// routesOf shows the plain values of an answer in a line each and its lists as tables.
function routesOf(routes) {
  const parts = [];
  for (const [key, value] of Object.entries(routes)) {
    const title = key.replaceAll("_", " ");
    if (!Array.isArray(value)) {
      parts.push(element("p", { class: "note" }, title + ": " + (typeof value === "object" ? JSON.stringify(value) : value)));
      continue;
    }
    const columns = [...new Set(value.flatMap((row) => Object.keys(row)))];
    const target = element("table");
    table(target, columns.map((c) => [c.replaceAll("_", " "), (row) => (row[c] === undefined ? "" : typeof row[c] === "object" ? JSON.stringify(row[c]) : String(row[c]))]), value);
    parts.push(element("p", { class: "note" }, value.length ? title : title + ": none"), element("div", { class: "scroll" }, target));
  }
  return parts;
}

async function refresh() {
  try {
    const response = await fetch("state");
    if (!response.ok) throw new Error(await response.text());
    const s = await response.json();
    for (const p of s.paths) color(p.path);
    for (const d of s.daemons) for (const p of (d.status && d.status.role !== "gateway" && d.status.peers) || []) color(p.name);
    showVerdict(s);
    showTopology(s);
    showLookup(s);
    showLines(s);
    showRates(s);
    showLinks(s);
    showSubflows(s);
    showNetworks(s);
    showDaemons(s);
    showEvents(s);
  } catch (e) {
    const verdict = byId("verdict");
    verdict.className = "bad";
    verdict.textContent = "the dashboard does not answer: what is shown is old";
  }
  setTimeout(refresh, 1000);
}

byId("routes").querySelector("form").addEventListener("submit", lookUp);
byId("networks").querySelector("form").addEventListener("submit", refreshNetworks);
refresh();
refreshNetworks();
