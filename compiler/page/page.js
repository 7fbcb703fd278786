"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const state = { tab: "Overview", level: 0, kernel: null, query: "", left: 0, right: 0 };

// Create an element: make("td", {class: "number"}, "text", child, ...).
function make(tag, attributes, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) found.setAttribute(name, value);
  }
  found.append(...children.filter((child) => child !== null));
  return found;
}

function shape(tag, attributes, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

function scaled(value, units, step) {
  if (value === null || value === undefined) return "dynamic";
  let at = 0;
  while (Math.abs(value) >= step && at < units.length - 1) { value /= step; at += 1; }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}
const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const flops = (value) => scaled(value, ["", "k", "M", "G", "T", "P"], 1000);
const size = (value) => (value < 0 ? "?" : String(value));

async function textOf(number) {
  const packed = atob(document.getElementById(`text-${number}`).textContent);
  const raw = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Create a table that is sorted by a click on a heading. columns: [heading, function from a row to
// its value or element, options]; options: number, order (function to the sort key), name.
function table(rows, columns, open) {
  let sorted = rows, by = -1, up = true;
  const body = make("tbody");
  const fill = () => body.replaceChildren(...sorted.map((row) => make("tr",
    open ? { class: "link", onclick: () => open(row) } : {},
    ...columns.map(([, value, options = {}]) => make("td",
      { class: options.number ? "number" : options.name ? "name" : null }, value(row) ?? "")))));
  const sort = (at) => {
    up = at === by ? !up : !(columns[at][2] || {}).number;
    by = at;
    const order = (columns[at][2] || {}).order || ((row) => String(columns[at][1](row)));
    sorted = [...rows].sort((a, b) => {
      const x = order(a), y = order(b);
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    fill();
  };
  fill();
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {},
    ...columns.map(([heading, , options = {}], at) => make("th",
      { class: options.number ? "number" : null, onclick: () => sort(at) }, heading)))), body));
}

function search(label, changed) {
  return make("label", {}, `${label} `, make("input", {
    type: "search", value: state.query, id: "search",
    oninput: (event) => { state.query = event.target.value; changed(); },
  }));
}

const matches = (text) => text.toLowerCase().includes(state.query.toLowerCase());
const level = () => data.levels[state.level];
// The figures of a contraction at each sample, or once for static sizes.
const costs = (one) => Object.keys(one.samples).length ? Object.entries(one.samples) : [["", one]];
const distinct = (texts) => [...new Set(texts)].join(" / ");
const most = (one) => Math.max(...Object.values(one.costs).map((cost) => cost.bytes));
const each = (one, text) => distinct(Object.values(one.costs).map(text));
const ratio = (one) => one.bytes_moved && one.bytes_minimum ? one.bytes_moved / one.bytes_minimum : null;

function barOf(share) {
  return make("span", { class: "bar", style: `width:${Math.max(1, Math.round(share * 120))}px` });
}

// Merge equal contractions of different layers into one row.
function grouped(matmuls) {
  const groups = new Map();
  for (const one of matmuls) {
    const name = one.name.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
    const key = JSON.stringify([name, one.function, one.batch, one.m, one.n, one.k, one.lhs,
      one.rhs, one.lowering, one.fallback, one.kernels]);
    const same = groups.get(key);
    if (same) same.count += 1; else groups.set(key, { ...one, name, count: 1 });
  }
  return [...groups.values()];
}

function overview() {
  const here = level(), parts = [];
  parts.push(make("dl", {}, ...data.facts.flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, value)])));
  const fallen = here.matmuls.filter((one) => one.fallback !== null);
  const reasons = new Map();
  for (const one of fallen) reasons.set(one.fallback, (reasons.get(one.fallback) || 0) + 1);
  parts.push(make("p", {}, `${here.matmuls.length} contractions, `,
    make("span", { class: fallen.length ? "bad" : "good" }, `${fallen.length} fell back`),
    `; ${here.operations.length} dispatches.`));
  for (const [reason, count] of reasons) parts.push(make("p", { class: "bad" }, `${count}: ${reason}`));
  const choices = new Set(here.operations.filter((one) => one.choice).map((one) => `${one.kernel}: ${one.choice}`));
  for (const choice of choices) parts.push(make("p", {}, choice));
  for (const finding of here.findings) parts.push(make("p", {}, finding));
  for (const note of data.notes) parts.push(make("p", { class: "dim" }, `note: ${note}`));
  for (const text of data.absent) parts.push(make("p", { class: "dim" }, `not in this page: ${text}`));
  parts.push(make("h2", {}, "Memory"));
  const most = Math.max(1, ...data.memory.map(([, count]) => count));
  parts.push(table(data.memory, [["part", ([name]) => name, { name: true }],
    ["bytes", ([, count]) => bytes(count), { number: true, order: ([, count]) => count }],
    ["", ([, count]) => barOf(count / most)]]));
  if (here.samples.length) parts.push(make("h2", {}, "Samples"), table(here.samples, [
    ["sample", (one) => one.name, { name: true }],
    ["function", (one) => one.function],
    ["rows", (one) => one.rows, { number: true, order: (one) => one.rows }],
    ["positions", (one) => one.positions, { number: true, order: (one) => one.positions }],
    ["launches", (one) => one.launches, { number: true, order: (one) => one.launches }],
    ["bytes", (one) => bytes(one.bytes), { number: true, order: (one) => one.bytes }],
    ["operations", (one) => flops(one.flops), { number: true, order: (one) => one.flops }],
    ...(here.roof ? [["us, estimated", (one) => (one.seconds * 1e6).toFixed(1), { number: true, order: (one) => one.seconds }]] : [])]));
  parts.push(make("h2", {}, here.roof ? "Roofline" : "Operations and bytes"), ...chart(here));
  parts.push(make("h2", {}, "Functions"), table(here.functions, [
    ["function", (one) => one.name, { name: true }],
    ["dispatches", (one) => one.dispatches, { number: true, order: (one) => one.dispatches }],
    ["transient bytes", (one) => bytes(one.transient_bytes)
      + (one.dynamic_transients ? ` and ${one.dynamic_transients} of dynamic size` : ""),
      { number: true, order: (one) => one.transient_bytes }]]));
  return parts;
}

function contractions() {
  const holder = make("div");
  const fill = () => holder.replaceChildren(table(
    grouped(level().matmuls).filter((one) => matches([one.name, one.function, one.lhs, one.rhs, one.lowering, one.kernel].join(" "))), [
      ["function", (one) => one.function],
      ["contraction", (one) => one.name, { name: true }],
      ["count", (one) => one.count, { number: true, order: (one) => one.count }],
      ["m x n x k", (one) => {
        const batch = distinct(costs(one).map(([, cost]) => size(cost.batch)));
        const m = distinct(costs(one).map(([, cost]) => size(cost.m)));
        return (batch === "1" ? "" : `${batch} x `) + [m, size(one.n), size(one.k)].join(" x ");
      }],
      ["types", (one) => `${one.lhs} x ${one.rhs} to ${one.out}`],
      ["instruction", (one) => one.lowering],
      ["kernels", (one) => one.kernels, { number: true, order: (one) => one.kernels }],
      ["bytes", (one) => distinct(costs(one).map(([, cost]) => bytes(cost.bytes_moved))), { number: true, order: (one) => costs(one)[0][1].bytes_moved || 0 }],
      ["of minimum", (one) => distinct(costs(one).map(([, cost]) => ratio(cost)?.toFixed(2) ?? "")), { number: true, order: (one) => ratio(costs(one)[0][1]) || 0 }],
      ["", (one) => one.fallback ? make("span", { class: "bad" }, one.fallback)
        : make("span", { class: "dim" }, [one.choice, one.unfused].filter(Boolean).join("; "))],
    ], (one) => show("Kernels", level().kernels.find((each) => each.case === one.kernel || each.name === one.kernel)?.name)));
  fill();
  return [make("div", { class: "tools" }, search("search", fill)), holder];
}

const GPU_SPILLS = "spills: registers that are kept in memory. --strict refuses a kernel that has any.";
const CPU_SPILLS = "spills: stores of vector registers to the stack, anywhere in a kernel. They cost little on a CPU, whose stack is in the cache: --strict refuses only a kernel of a contraction, and only if more than a fifth of the instructions of one of its innermost loops move vectors to or from the stack.";

function kernels() {
  const one = level().kernels.find((each) => each.name === state.kernel);
  if (one) return [make("div", { class: "tools" }, make("button", { class: "link", onclick: () => show("Kernels", null) }, "all kernels")), ...kernel(one)];
  const holder = make("div"), gpu = level().kernels.some((each) => each.vgpr !== null);
  const fill = () => holder.replaceChildren(table(
    level().kernels.filter((each) => matches(`${each.name} ${each.operations.join(" ")}`)), [
      ["kernel", (each) => each.name, { name: true }],
      ["calls", (each) => each.operations.length, { number: true, order: (each) => each.operations.length }],
      ["bytes", (one) => each(one, (cost) => bytes(cost.bytes)), { number: true, order: most }],
      ["spills", (each) => make("span", { class: each.refused ? "bad" : null }, String(each.spills)), { number: true, order: (each) => each.spills }],
      ["--strict", (each) => each.refused ? make("span", { class: "bad" }, "refuses it") : "accepts it"],
      ...(gpu ? [["VGPR", (each) => each.vgpr ?? "", { number: true, order: (each) => each.vgpr }],
        ["matrix share", (each) => each.hot_loop?.shares?.matrix?.toFixed(2) ?? "", { number: true, order: (each) => each.hot_loop?.shares?.matrix ?? -1 }]] : []),
    ], (each) => show("Kernels", each.name)));
  fill();
  return [make("p", { class: "dim", id: "spills" }, gpu ? GPU_SPILLS : CPU_SPILLS), make("div", { class: "tools" }, search("search", fill)), holder];
}

function kernel(one) {
  const facts = [["called by", [...new Set(one.operations)].join("; ")], ["bytes of all calls", each(one, (cost) => bytes(cost.bytes))], ["operations of all calls", each(one, (cost) => flops(cost.flops))],
    ["spills", `${one.spills}, ${one.scratch_bytes} bytes of ${one.vgpr === null ? "stack" : "scratch"}`
      + (one.stack_moves ? `; ${one.stack_moves.moves} of ${one.stack_moves.instructions} instructions of a loop move vectors to or from the stack` : "")
      + `; --strict ${one.refused ? "refuses" : "accepts"} it`]];
  if (one.plan) facts.push(["schedule", one.plan]);
  if (one.vgpr !== null) facts.push(["registers", `${one.vgpr} vector (${one.agpr} of them accumulation), ${one.sgpr} scalar`], ["LDS", bytes(one.lds_bytes)], ["workgroup", `${one.workgroup_size} work-items`]);
  if (one.occupancy) facts.push(["waves per SIMD", `${one.occupancy.waves_per_simd}, limited by ${one.occupancy.limited_by}`]);
  if (one.hot_loop) {
    const loop = one.hot_loop.is_loop;
    facts.push([loop ? "hot loop" : "instructions (there is no loop)", Object.entries(one.hot_loop.census).map(([kind, count]) => `${count} ${kind}`).join(", ")]);
    if (one.hot_loop.shares) facts.push(["issue model", `${one.hot_loop.clocks} clocks ${loop ? "an iteration of all waves of a compute unit" : "for the whole kernel"}; busy: ` + Object.entries(one.hot_loop.shares).map(([pipe, share]) => `${pipe} ${share}`).join(", ")]);
  }
  const parts = [make("h2", { id: "kernel" }, one.name),
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))];
  const toLoop = one.text === null || !one.hot_loop?.is_loop ? null : make("button", { class: "link", id: "to-loop",
    onclick: () => document.querySelector("#assembly .hot").scrollIntoView({ block: "center" }) }, "to the hot loop");
  parts.push(make("div", { class: "pair" }, make("section", {}, make("h2", {}, "Nest"), nestOf(one)), make("section", {}, make("h2", {}, "Assembly ", toLoop), assemblyOf(one))));
  const most = Object.entries(one.instructions).sort((a, b) => b[1] - a[1]).slice(0, 16);
  parts.push(make("h2", {}, "Most frequent instructions"), table(most, [["instruction", ([name]) => name],
    ["count", ([, count]) => count, { number: true, order: ([, count]) => count }], ["", ([, count]) => barOf(count / most[0][1])]]));
  return parts;
}

// The nest of a kernel, in the words of mxc opt --print-kernels, or why there is none.
function nestOf(one) {
  const said = !level().listed ? "It is not in this page."
    : one.own ? "It has none: mxc emits this kernel directly." : "It has none: IREE's code generator made this kernel.";
  return one.nest === null ? make("p", { class: "dim", id: "nest" }, said) : opened("nest", one.nest, (line) => make("span", {}, line || " "));
}

function assemblyOf(one) {
  if (one.text === null) return make("p", { class: "dim" }, "It is not in this page.");
  let hot = false;
  return opened("assembly", one.text, (line) => {
    if (/---- hot loop begins/.test(line)) hot = true;
    const marked = make("span", { class: hot ? "hot" : null }, line || " ");
    if (/---- hot loop ends/.test(line)) hot = false;
    return marked;
  });
}

// A long text of the page, whose lines `show` makes once it is decompressed.
function opened(id, number, show) {
  const pre = make("pre", { id }, "opening ...");
  textOf(number).then((text) => pre.replaceChildren(...text.split("\n").map(show)));
  return pre;
}

// Return the lines of two texts as [sign, line], in order: common lines, and lines of only one.
function difference(left, right) {
  let start = 0, a = left.length, b = right.length;
  while (start < a && start < b && left[start] === right[start]) start += 1;
  while (a > start && b > start && left[a - 1] === right[b - 1]) { a -= 1; b -= 1; }
  const one = left.slice(start, a), two = right.slice(start, b);
  return [...left.slice(0, start).map((line) => [" ", line]), ...middle(one, two), ...left.slice(a).map((line) => [" ", line])];
}

// Myers' greedy algorithm up to a limit of differences; beyond it, all lines are replaced.
function middle(one, two, most = 1500) {
  const whole = () => [...one.map((line) => ["-", line]), ...two.map((line) => ["+", line])];
  if (!one.length || !two.length) return whole();
  const trace = [], reached = new Map([[1, 0]]);
  for (let d = 0; d <= Math.min(most, one.length + two.length); d += 1) {
    trace.push(new Map(reached));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reached.get(k - 1) ?? -1) < (reached.get(k + 1) ?? -1));
      let x = down ? reached.get(k + 1) : reached.get(k - 1) + 1, y = x - k;
      while (x < one.length && y < two.length && one[x] === two[y]) { x += 1; y += 1; }
      reached.set(k, x);
      if (x >= one.length && y >= two.length) return back(one, two, trace);
    }
  }
  return whole();
}

function back(one, two, trace) {
  const found = [];
  let x = one.length, y = two.length;
  for (let d = trace.length - 1; d >= 0; d -= 1) {
    const reached = trace[d], k = x - y;
    const down = k === -d || (k !== d && (reached.get(k - 1) ?? -1) < (reached.get(k + 1) ?? -1));
    const fromX = reached.get(down ? k + 1 : k - 1), fromY = fromX - (down ? k + 1 : k - 1);
    while (x > fromX && y > fromY) { x -= 1; y -= 1; found.push([" ", one[x]]); }
    if (d) found.push(down ? ["+", two[fromY]] : ["-", one[fromX]]);
    x = fromX; y = fromY;
  }
  return found.reverse();
}

function ir() {
  if (!data.ir.length) return [make("p", { class: "dim" }, "This page holds no IR: compile with --dump-ir DIR --html FILE.")];
  const pre = make("pre", { id: "ir" }), said = make("span", { class: "dim", id: "said" });
  const pick = (which) => make("select", { id: which, onchange: (event) => { state[which] = Number(event.target.value); fill(); } },
    ...data.ir.map((stage, at) => make("option", { value: at, selected: at === state[which] ? "" : null }, `${stage.name} (${stage.lines} lines)`)));
  let asked = 0;
  const fill = async () => {
    const turn = (asked += 1);
    const [left, right] = await Promise.all([state.left, state.right].map((at) => textOf(data.ir[at].text)));
    if (turn !== asked) return;  // texts arrive in any order; only the last choice is shown
    const same = data.ir[state.left].text === data.ir[state.right].text;
    let lines = same ? right.split("\n").map((line) => [" ", line]) : difference(left.split("\n"), right.split("\n"));
    const changed = lines.filter(([sign]) => sign !== " ").length;
    const kept = new Set();
    if (state.query) lines.forEach(([, line], at) => { if (matches(line)) for (let near = at - 3; near <= at + 3; near += 1) kept.add(near); });
    else if (!same) lines.forEach(([sign], at) => { if (sign !== " ") for (let near = at - 3; near <= at + 3; near += 1) kept.add(near); });
    else lines.forEach((_, at) => kept.add(at));
    said.textContent = state.query ? `${lines.filter(([, line]) => matches(line)).length} lines found`
      : same ? (state.left === state.right ? "" : "both are the same") : `${changed} lines differ`;
    const shown = [];
    let skipped = 0;
    lines.forEach(([sign, line], at) => {
      if (!kept.has(at)) { skipped += 1; return; }
      if (skipped) shown.push(make("span", { class: "skip" }, `... ${skipped} lines`));
      skipped = 0;
      const kind = sign === "+" ? "added" : sign === "-" ? "gone" : "";
      shown.push(make("span", { class: `${kind}${state.query && matches(line) ? " found" : ""}`.trim() || null }, `${same ? "" : sign + " "}${line}` || " "));
    });
    if (skipped) shown.push(make("span", { class: "skip" }, `... ${skipped} lines`));
    pre.replaceChildren(...shown);
  };
  fill();
  return [make("div", { class: "tools" }, make("label", {}, "from ", pick("left")), make("label", {}, "to ", pick("right")), search("search", fill), said), pre];
}

function weights() {
  if (!data.weights.length) return [make("p", { class: "dim" }, "A program without weights of its own.")];
  const holder = make("div");
  const fill = () => holder.replaceChildren(table(data.weights.filter((one) => matches(`${one.name} ${one.format}`)), [
    ["weight", (one) => one.name, { name: true }], ["format", (one) => one.format],
    ["shape", (one) => one.shape.join(" x ")], ["layout", (one) => one.layout], ["recipe", (one) => one.recipe ?? ""],
    ["SQNR", (one) => one.sqnr === null ? "" : `${one.sqnr.toFixed(1)} dB`, { number: true, order: (one) => one.sqnr ?? 0 }],
    ["bytes", (one) => bytes(one.bytes), { number: true, order: (one) => one.bytes }],
    ["scales, as powers of two", (one) => one.scales ? histogram(one.scales) : "", { order: (one) => (one.scales ? one.scales[0][0] : 256) }],
  ]));
  fill();
  return [make("div", { class: "tools" }, search("search", fill)), holder];
}

const TABS = { Overview: overview, Contractions: contractions, Kernels: kernels, Weights: weights, IR: ir };

function show(tab, name) {
  location.hash = name ? `${tab}/${encodeURIComponent(name)}` : tab;
}

// The URL fragment has the tab and the item: #Kernels/name.
function arrive() {
  const [tab, name] = location.hash.slice(1).split("/");
  state.tab = TABS[tab] ? tab : "Overview";
  state.kernel = name ? decodeURIComponent(name) : null;
  state.query = "";
  draw();
  window.scrollTo(0, 0);
}

function draw() {
  document.getElementById("tabs").replaceChildren(...Object.keys(TABS).map((tab) => make("button", {
    role: "tab", "aria-selected": String(tab === state.tab), onclick: () => show(tab, null) }, tab)));
  document.getElementById("main").replaceChildren(...TABS[state.tab]());
}

document.title = `${data.name} - mxc report`;
document.getElementById("name").textContent = data.name;
document.getElementById("summary").textContent = data.levels.map((each) => each.target).join(", ");
if (data.levels.length > 1) {
  document.getElementById("level-label").hidden = false;
  document.getElementById("level").append(...data.levels.map((each, at) => make("option", { value: at }, each.name)));
  document.getElementById("level").addEventListener("change", (event) => { state.level = Number(event.target.value); state.kernel = null; draw(); });
}
state.right = Math.min(1, data.ir.length - 1);
window.addEventListener("hashchange", arrive);
window.addEventListener("resize", () => { if (state.tab === "Overview") draw(); });
arrive();
