// The block map, the timeline and the occupancy curve of recorded runs, in any page.
//
//   mount(root, payload)               draw into an element; `payload` is block_map.py's
//   export default { render }          the same as an anywidget
//
// One module, no imports, no build. It reads the lines of a trace by the rules of delta.py. Text from
// a trace only ever becomes textContent, so no name can turn into markup. Nothing has an id: several
// maps share a page, and a stored notebook must not change from run to run.

// ---- From the lines of a trace to frames -------------------------------------------------------

const FREE = Object.freeze({ refs: 0, fill: 0, cached: false, request: -1, index: -1 });
const emptyFrame = (n) => ({ step: 0, requests: [], running: [], waiting: [], scheduled: new Map(),
                             blocks: Array(n).fill(FREE), events: [], ops: [] });
const newRow = (given) => ({ status: "waiting", num_tokens: 0, num_computed_tokens: 0,
                             num_cached_tokens: 0, num_preemptions: 0, block_ids: [],
                             host_block_ids: [], finish_reason: null, num_padding: 0, ...given });

// The frame that follows `old`. Frames share what did not change; none is ever written to again.
function follow(old, line, run) {
  const requests = old.requests.slice();
  const change = (i, values) => { requests[i] = { ...requests[i], ...values }; };
  for (const [key, given] of Object.entries(line.requests ?? {})) {
    const { name, num_prompt_tokens, max_tokens } = given;
    if (+key >= old.requests.length) requests[+key] = newRow({ name, num_prompt_tokens, max_tokens });
  }
  for (const [i, n] of line.scheduled ?? []) {
    change(i, { num_computed_tokens: requests[i].num_computed_tokens + n });
  }
  for (const [key, ids] of Object.entries(line.tokens ?? {})) {
    change(+key, { num_tokens: requests[+key].num_tokens + ids.length });
    (run.tokens[+key] ??= []).push(...ids);
  }
  for (const [key, given] of Object.entries(line.requests ?? {})) {
    const values = {};
    for (const [field, value] of Object.entries(given)) {
      const grows = field.endsWith("+");
      const name = grows ? field.slice(0, -1) : field;
      values[name] = grows ? [...requests[+key][name], ...value] : value;
    }
    change(+key, values);
  }
  const blocks = line.blocks ? old.blocks.slice() : old.blocks;
  for (const [b, ...v] of line.blocks ?? []) {
    blocks[b] = v.length === 1 ? { ...blocks[b], fill: v[0] }
      : { refs: v[0], fill: v[1], cached: !!v[2], request: v[3], index: v[4] };
  }
  Object.assign(run.texts, line.texts);
  return { step: line.step, requests, blocks, running: line.running ?? old.running,
           waiting: line.waiting ?? old.waiting, scheduled: new Map(line.scheduled ?? []),
           events: line.events ?? [], ops: line.ops ?? [] };
}

class Run {
  constructor(trace) {
    this.title = trace.title;
    this.blockSize = trace.block_size;
    this.numBlocks = trace.num_blocks;
    this.numHostBlocks = trace.num_host_blocks;
    this.tokens = [];
    this.texts = {};
    this.frames = [];
    trace.frames.forEach((line) => this.add(line));
  }

  add(line) { this.frames.push(follow(this.frames.at(-1) ?? emptyFrame(this.numBlocks), line, this)); }

  at(k) { return this.frames[Math.min(k, this.frames.length - 1)] ?? emptyFrame(this.numBlocks); }

  before(k) { return k > 0 && k < this.frames.length ? this.frames[k - 1] : this.at(k); }

  // What lies in the slots of a block: {token id, text, whether it was generated}, or null.
  slots(frame, b) {
    const cell = frame.blocks[b], slots = Array(this.blockSize).fill(null);
    if (cell.request < 0) return slots;
    const row = frame.requests[cell.request];
    const first = cell.index * this.blockSize - row.num_padding;
    const offset = Math.max(0, -first);
    for (let s = 0; s < cell.fill; s++) {
      const position = first + offset + s, id = this.tokens[cell.request][position];
      slots[offset + s] = { id, text: this.texts[id] ?? `<${id}>`,
                            generated: position >= row.num_prompt_tokens };
    }
    return slots;
  }
}

// ---- What a frame says -------------------------------------------------------------------------

function label(number) {
  let letters = "";
  for (number += 1; number; number = Math.floor((number - 1) / 26)) {
    letters = String.fromCharCode(65 + (number - 1) % 26) + letters;
  }
  return letters;
}

function ownersOf(frame) {
  const owners = new Map();
  frame.requests.forEach((row, i) => row.block_ids.forEach((b) => {
    if (owners.has(b)) owners.get(b).push(i); else owners.set(b, [i]);
  }));
  return owners;
}

function usage(frame, blockSize) {
  const now = { shared: 0, filled: 0, reserved: 0, cached: 0, empty: 0, stored: 0 };
  for (const cell of frame.blocks) {
    if (!cell.refs) { now[cell.cached ? "cached" : "empty"] += 1; continue; }
    now[cell.refs > 1 ? "shared" : cell.fill ? "filled" : "reserved"] += 1;
    if (frame.requests[cell.request]?.status !== "finished") now.stored += cell.fill;
  }
  now.used = now.shared + now.filled + now.reserved;
  now.slots = now.used * blockSize;
  now.tokens = frame.requests.reduce((sum, row) => sum + row.num_tokens - row.num_prompt_tokens, 0);
  return now;
}

// The words for a block's state in this iteration; the styles and the labels are made of them.
function statesOf(cell, owners, ownersBefore, moves, frame) {
  const states = [];
  const isNew = owners.some((i) => !ownersBefore.includes(i));
  if (cell.refs > 1) states.push("shared");
  if (moves) states.push(...moves);
  if (isNew && !states.includes("copied") && !states.includes("swapped-in")) states.push("new");
  if (cell.cached) states.push("cached");
  if (cell.refs && !cell.fill) states.push("reserved");
  if (cell.refs && frame.requests[cell.request]?.status === "finished") states.push("idle");
  if (!cell.refs && ownersBefore.length) states.push("freed");
  return states;
}

// Device block -> its moves, and host block -> its moves, in this iteration.
function movesOf(frame) {
  const device = new Map(), host = new Map();
  const note = (map, b, word) => map.set(b, [...(map.get(b) ?? []), word]);
  for (const [kind, src, dst] of frame.ops) {
    if (kind === "copy") note(device, dst, "copied");
    if (kind === "swap_in") note(device, dst, "swapped-in");
    if (kind === "swap_out") { note(device, src, "swapped-out"); note(host, dst, "swapped-out"); }
  }
  return { device, host };
}

function activity(row, scheduled) {
  if (scheduled) {
    return scheduled > 1 || row.num_computed_tokens <= row.num_prompt_tokens ? "prefill" : "decode";
  }
  if (row.status === "finished") return row.block_ids.length ? "idle" : "gone";
  if (row.status === "preempted") return row.host_block_ids.length ? "swapped" : "preempted";
  return row.status === "running" ? "stalled" : "waiting";
}

// For each request its segments {kind, first, last, tokens}; a prefill chunk stands alone.
function segmentsOf(run) {
  const rows = [];
  run.frames.forEach((frame, k) => frame.requests.forEach((row, i) => {
    const tokens = frame.scheduled.get(i) ?? 0, kind = activity(row, tokens);
    const segments = (rows[i] ??= []), last = segments.at(-1);
    if (kind === "gone") return;
    if (last && last.kind === kind && kind !== "prefill" && last.last === k - 1) {
      last.last = k;
      last.tokens += tokens;
    } else segments.push({ kind, first: k, last: k, tokens });
  }));
  return rows;
}

// ---- Small tools -------------------------------------------------------------------------------

const PALETTE = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
                 "#999999"];  // Okabe and Ito's
const PALE = ["#F1C561", "#9BD4F2", "#61C5AB", "#F7F08F", "#61AAD1", "#E59A5C", "#E1B1CB", "#C2C2C2"];
const colour = (i, palette = PALETTE) => palette[i % palette.length];
const pattern = (i) => `mv-p${Math.floor(i / PALETTE.length) % 4}`;

function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (key === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function short(name, most = 40) {
  const characters = Array.from(String(name).slice(0, 4 * most));
  return characters.length <= most ? characters.join("") : characters.slice(0, most - 1).join("") + "…";
}

const bdi = (name, most) => h("bdi", {}, short(name, most));
const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const visible = (text) => text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
const percent = (part, of) => `${(100 * part / Math.max(of, 1)).toFixed(3)}%`;
const columnsFor = (n) => n <= 32 ? 8 : n <= 160 ? 16 : 32;

function chip(i) {
  return h("span", { class: `mv-chip ${pattern(i)}`, style: { "--c": colour(i) }, "aria-hidden": "true" },
           h("b", {}, label(i)));
}

function ticks(count) {
  const last = Math.max(count - 1, 1), rough = last / 8;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough));
  return h("div", { class: "mv-ticks", "aria-hidden": "true" },
           ...Array.from({ length: Math.floor((count - 1) / step) + 1 }, (_, j) =>
             h("span", { style: { left: percent(j * step + 0.5, count) } }, String(j * step))));
}

// ---- The map: blocks, what is in one, requests, why --------------------------------------------

const MARKS = { "new": "+", "copied": "»", "swapped-in": "↓", "swapped-out": "↑", "freed": "−" };
const MOST_WAITING = 30, MOST_FINISHED = 40;

class MapView {
  constructor(run, columns, view) {
    this.run = run;
    this.view = view;
    this.columns = columns ?? columnsFor(run.numBlocks);
    this.palette = this.columns > 16 ? PALE : PALETTE;  // small cells have their letter on the colour
    this.lit = null;      // number of the request whose blocks are lit
    this.pointed = null;  // block that the detail tells of
    this.rows = new Map();
    this.grid = this.makeGrid(run.numBlocks, this.columns, `${run.numBlocks} blocks of ${run.blockSize} slots`);
    this.cells = [...this.grid.querySelectorAll("[data-block]")];
    this.host = run.numHostBlocks
      ? this.makeGrid(run.numHostBlocks, this.columns, `${run.numHostBlocks} blocks in host memory`, "host")
      : null;
    this.detail = h("div", { class: "mv-detail" });
    this.requests = h("div", { class: "mv-requests", role: "group", "aria-label": "Requests", tabindex: "0" });
    this.why = h("div", { class: "mv-why", role: "log", "aria-label": "Why", tabindex: "0" });
    this.counts = h("div", { class: "mv-counts" });
    this.root = h("div", { class: "mv-map" }, this.counts, h("div", { class: "mv-main" },
      h("div", { class: "mv-left" }, this.grid,
        this.host && h("div", { class: "mv-head" }, "host memory (swapped out)"), this.host, this.detail,
        h("div", { class: "mv-head" }, "why"), this.why),
      this.requests));
    this.listen();
  }

  makeGrid(count, columns, name, kind = "block") {
    const size = columns > 16 ? "dense" : columns > 8 ? "middle" : "large";
    const grid = h("div", { class: `mv-grid mv-${size}`, role: "grid", "aria-label": name,
                            style: { "--columns": columns } });
    for (let start = 0; start < count; start += columns) {
      const row = h("div", { role: "row", class: "mv-row" },
                    h("span", { role: "rowheader", class: "mv-rowhead" }, String(start)));
      for (let b = start; b < Math.min(start + columns, count); b++) {
        const cell = h("div", { role: "gridcell", class: "mv-cell", [`data-${kind}`]: b,
                                tabindex: b === 0 && kind === "block" ? "0" : "-1" },
          h("i", { class: "mv-fill" }), h("b"));
        if (size !== "dense") {  // where there is room: slots, the block's id, a mark
          cell.append(h("i", { class: "mv-slots", style: { "--slots": this.run.blockSize } }),
                      h("small", {}, String(b)), h("em"));
        }
        row.append(cell);
      }
      grid.append(row);
    }
    return grid;
  }

  listen() {
    const blockOf = (event) => event.target.closest?.("[data-block]");
    const point = (event) => {
      const cell = blockOf(event);
      if (cell) this.point(+cell.dataset.block);
    };
    this.grid.addEventListener("pointerover", point);
    this.grid.addEventListener("focusin", point);
    this.grid.addEventListener("pointerleave", () => this.point(this.focused()));
    this.grid.addEventListener("click", (event) => blockOf(event)?.focus());
    this.grid.addEventListener("keydown", (event) => this.moveFocus(event));
    const requestOf = (event) => event.target.closest?.("[data-request]");
    const light = (event) => this.light(requestOf(event) ? +requestOf(event).dataset.request : null);
    this.requests.addEventListener("pointerover", light);
    this.requests.addEventListener("focusin", light);
    this.requests.addEventListener("pointerleave", () => this.light(null));
    this.requests.addEventListener("focusout", () => this.light(null));
  }

  focused() {
    const cell = this.grid.contains(document.activeElement) ? document.activeElement.dataset.block : undefined;
    return cell === undefined ? null : +cell;
  }

  moveFocus(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
    const from = this.focused();
    if (by === undefined || from === null) return;
    event.preventDefault();
    event.stopPropagation();
    const cell = this.cells[from + by];
    if (!cell) return;
    this.cells[from].tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  }

  light(i) {
    if (this.lit === i) return;
    this.lit = i;
    this.showLight();
  }

  showLight() {
    const blocks = this.lit === null ? null : this.frame.requests[this.lit]?.block_ids ?? [];
    this.grid.classList.toggle("mv-lighting", blocks !== null);
    for (const cell of this.litCells ?? []) {
      cell.classList.remove("mv-lit");
      this.number(cell, cell.dataset.block);
    }
    this.litCells = (blocks ?? []).map((b) => this.cells[b]);
    this.litCells.forEach((cell, index) => {
      cell.classList.add("mv-lit");
      this.number(cell, `#${index}`);
    });
  }

  number(cell, text) {
    const small = cell.querySelector("small");
    if (small) small.textContent = text;
  }

  point(b) {
    this.pointed = b;
    this.showDetail();
  }

  // Room for the iteration that lists most, so that nothing jumps on the way.
  draw() {
    const rows = this.run.frames.map((frame) => frame.running.length + Math.min(frame.waiting.length, MOST_WAITING));
    this.requests.style.height = `${Math.min(420, Math.max(0, ...rows) * 44 + 110)}px`;
  }

  show(k, quiet) {
    this.frame = this.run.at(k);
    const before = this.run.before(k), owners = ownersOf(this.frame), ownersBefore = ownersOf(before);
    const moves = movesOf(this.frame), none = [];
    this.frame.blocks.forEach((cell, b) => this.showCell(this.cells[b], cell, owners.get(b) ?? none,
      statesOf(cell, owners.get(b) ?? none, ownersBefore.get(b) ?? none, moves.device.get(b), this.frame),
      ownersBefore.get(b)?.[0]));
    if (this.host) this.showHost(moves.host);
    this.now = usage(this.frame, this.run.blockSize);
    this.showCounts();
    this.showRequests();
    this.showWhy(quiet);
    this.showLight();
    this.showDetail();
  }

  showCell(element, cell, owners, states, last) {
    const whose = owners.length ? owners : cell.cached && cell.request >= 0 ? [cell.request]
      : states.includes("freed") ? [last] : [];
    const signature = `${whose} ${cell.fill} ${states} ${cell.refs}`;
    if (element.signature === signature) return;
    element.signature = signature;
    const held = owners.length > 0;
    const most = element.children.length > 2 ? 2 : 1;  // letters that there is room for
    const letters = whose.length <= most ? whose.map(label).join("")
      : most === 1 ? `${label(whose[0])}+` : `${label(whose[0])}+${whose.length - 1}`;
    element.dataset.owner = owners.map(label).join(" ");
    element.dataset.fill = cell.fill;
    element.dataset.refs = cell.refs;
    element.className = ["mv-cell", held ? "mv-held" : "mv-free", ...states.map((s) => `mv-is-${s}`)].join(" ");
    element.dataset.state = states.join(" ");
    element.setAttribute("aria-label", this.labelOf(element.dataset.block ?? `host ${element.dataset.host}`,
                                                    cell, owners, states));
    const [fill, letter, , , mark] = element.children;
    fill.className = `mv-fill ${whose.length ? pattern(whose[0]) : ""}`;
    fill.style.height = whose.length ? percent(cell.fill, this.run.blockSize) : "0";
    const stops = whose.slice(0, 4).map((i, j, all) =>
      `${colour(i, this.palette)} ${percent(j, all.length)} ${percent(j + 1, all.length)}`);
    element.style.setProperty("--c", whose.length ? colour(whose[0]) : "transparent");
    fill.style.setProperty("--paint", `linear-gradient(90deg, ${stops.length ? stops : "transparent 0 0"})`);
    letter.textContent = held ? letters : letters.toLowerCase();
    if (mark) mark.textContent = MARKS[Object.keys(MARKS).find((state) => states.includes(state))] ?? "";
  }

  labelOf(block, cell, owners, states) {
    const name = (i) => `${label(i)} ${short(this.frame.requests[i].name, 24)}`;
    const size = `${cell.fill} of ${this.run.blockSize} slots`;
    const rest = states.filter((s) => s !== "cached" || cell.refs).join(", ").replaceAll("-", " ");
    const what = owners.length ? `request ${owners.map(name).join(" and ")}, logical block ${cell.index}, ${size}`
      : cell.cached && cell.request >= 0 ? `free, still cached for ${name(cell.request)}, ${size}` : "free";
    return `block ${block}: ${what}${rest ? `, ${rest}` : ""}`;
  }

  showHost(moves) {
    const holders = new Map();
    this.frame.requests.forEach((row, i) => row.host_block_ids.forEach((b, index) =>
      holders.set(b, { refs: 1, cached: false, request: i, index,
                       fill: Math.max(0, Math.min(this.run.blockSize, row.num_computed_tokens - index * this.run.blockSize)) })));
    for (const element of this.host.querySelectorAll("[data-host]")) {
      const cell = holders.get(+element.dataset.host) ?? FREE;
      this.showCell(element, cell, cell.refs ? [cell.request] : [], moves.get(+element.dataset.host) ?? []);
    }
  }

  showCounts() {
    const { used, shared, cached, slots, stored, tokens } = this.now, n = this.run.numBlocks;
    const bar = (part, of, kind) => h("span", { class: `mv-meter mv-m-${kind}`, "aria-hidden": "true" },
                                      h("i", { style: { width: percent(part, of) } }));
    const wasted = slots - stored;
    const extra = [shared && `${shared} shared`, cached && `${cached} free but cached`].filter(Boolean);
    this.counts.replaceChildren(
      h("span", {}, bar(used, n, "used"), h("b", {}, `${used} of ${n}`), " blocks in use",
        extra.length ? ` (${extra.join(", ")})` : ""),
      h("span", {}, bar(wasted, slots, "wasted"), h("b", {}, `${wasted} of ${slots}`), " of their slots wasted"),
      h("span", {}, h("b", {}, String(tokens)), " tokens generated"));
  }

  showRequests() {
    const { frame } = this, ended = [];
    frame.requests.forEach((row, i) => { if (row.status === "finished" && !row.block_ids.length) ended.push(i); });
    const groups = [["running", frame.running], ["waiting", frame.waiting.slice(0, MOST_WAITING)]];
    const parts = [];
    for (const [title, numbers] of groups) {
      const all = frame[title].length;
      parts.push(`${title} ${all}`, ...numbers.map((i) => this.requestRow(i)));
      if (all > numbers.length) parts.push(`and ${all - numbers.length} more`);
    }
    parts.push(`finished ${ended.length}`);
    const order = JSON.stringify([...parts.map((part) => part.dataset?.request ?? part), ended.length]);
    if (order === this.order) return;
    this.order = order;
    const active = document.activeElement;
    this.requests.replaceChildren(...parts.map((part) =>
      typeof part === "string" ? h("div", { class: "mv-head" }, part) : part),
      h("div", { class: "mv-ended" }, ...ended.slice(-MOST_FINISHED).map((i) => {
        const row = frame.requests[i];
        const element = chip(i);
        element.title = `${short(row.name)}: ${plural(row.num_tokens - row.num_prompt_tokens, "token")}`;
        return element;
      })));
    if (this.requests.contains(active)) active.focus();
  }

  requestRow(i) {
    const row = this.frame.requests[i];
    if (!this.rows.has(i)) {
      const element = h("button", { type: "button", class: "mv-request", "data-request": i }, chip(i),
        h("span", { class: "mv-name" }, bdi(row.name)), h("span", { class: "mv-now" }),
        h("span", { class: "mv-progress", "aria-hidden": "true" }, h("i"), h("i")),
        h("span", { class: "mv-table" }));
      this.rows.set(i, element);
    }
    const element = this.rows.get(i), [, name, now, progress, table] = element.children;
    const ran = this.frame.scheduled.get(i) ?? 0, most = row.num_prompt_tokens + row.max_tokens;
    const signature = JSON.stringify([row, ran]);
    if (element.signature === signature) return element;
    element.signature = signature;
    element.setAttribute("aria-label", `${label(i)} ${short(row.name)}, ${row.status}: ` +
      `${row.num_computed_tokens} of ${row.num_tokens} tokens computed, blocks ${row.block_ids.join(", ") || "none"}`);
    name.title = short(row.name, 200);
    const kind = activity(row, ran);
    element.dataset.kind = kind;
    now.textContent = ran ? `${kind} ${ran}` : kind === "idle" ? "ended, keeps its row" : kind;
    const [computed, known] = progress.children;
    computed.style.width = percent(Math.min(row.num_computed_tokens, most), most);
    known.style.left = percent(row.num_prompt_tokens, most);
    const host = row.host_block_ids.length ? ` host [${row.host_block_ids.join(", ")}]` : "";
    table.textContent = (row.block_ids.length ? `[${row.block_ids.join(", ")}]` : host ? "" : "no blocks") + host;
    return element;
  }

  showWhy(quiet) {
    const { frame } = this, numbers = new Map(frame.requests.map((row, i) => [row.name, i]));
    this.why.setAttribute("aria-live", quiet ? "off" : "polite");
    // Who joins the line comes last: it is no decision.
    const events = [...frame.events.filter((e) => e[1] !== "add"), ...frame.events.filter((e) => e[1] === "add")];
    this.why.replaceChildren(...events.map(([, kind, name, reason]) =>
      h("div", { class: `mv-event mv-e-${kind}`, "data-event": kind },
        numbers.has(name) ? chip(numbers.get(name)) : h("span", { class: "mv-chip mv-blockchip", "aria-hidden": "true" }),
        h("span", {}, bdi(name, 24), " ", short(reason, 200)))));
    if (!frame.events.length) {
      this.why.append(h("div", { class: "mv-quiet" }, "No decision to explain: those who run go on."));
    }
  }

  showDetail() {
    const b = this.pointed;
    if (b === null) {
      this.detail.replaceChildren(h("span", { class: "mv-quiet" },
        "Point at a block, or tab into the map, to see what is in it."));
      return;
    }
    const cell = this.frame.blocks[b], owners = ownersOf(this.frame).get(b) ?? [];
    const whose = owners.length ? owners : cell.cached && cell.request >= 0 ? [cell.request] : [];
    const facts = [`block ${b}`];
    if (!owners.length) facts.push(cell.cached ? "free, still cached" : "free");
    if (whose.length) {
      facts.push(`logical block ${cell.index}`, `${cell.fill} of ${this.run.blockSize} slots`);
      if (cell.refs > 1) facts.push(`held by ${cell.refs}`);
      if (cell.refs && cell.cached) facts.push("cached");
    }
    const texts = this.run.slots(this.frame, b).map((slot) => slot === null ? h("span", { class: "mv-slot" })
      : h("span", { class: `mv-slot mv-full${slot.generated ? " mv-generated" : ""}`, title: `token ${slot.id}` },
          h("bdi", {}, visible(short(slot.text, 24)))));
    this.detail.replaceChildren(
      h("div", { class: "mv-facts" }, ...whose.slice(0, 4).flatMap((i) => [chip(i), bdi(this.frame.requests[i].name, 24)]),
        facts.join(" · ")),
      ...(whose.length ? [h("div", { class: "mv-texts" }, ...texts)] : []));
  }
}

// ---- The timeline and the curve ----------------------------------------------------------------

const KINDS = { waiting: "waits", prefill: "prefill", decode: "decode", stalled: "holds, runs nothing",
                preempted: "preempted", swapped: "swapped out", idle: "ended, keeps its row" };

// What the timeline and the curve share: iterations from left to right, a cursor, a click.
class Track {
  constructor(run, view, name) {
    this.run = run;
    this.view = view;
    this.cursor = h("div", { class: "mv-cursor" });
    this.body = h("div", { class: "mv-body" });
    this.axis = h("div", { class: "mv-axis" });
    this.legend = h("div", { class: "mv-keys" });
    this.field = h("div", { class: "mv-field", role: "group", "aria-label": name }, this.body);
    this.root = h("div", { class: "mv-track" }, h("div", { class: "mv-head" }, name), this.legend, this.field, this.axis);
    const go = (event) => {
      const box = this.plot().getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width;
      if (at >= 0 && at < 1) this.view.go(Math.floor(at * this.view.length));
    };
    this.field.addEventListener("pointerdown", (event) => { if (event.button === 0) go(event); });
    this.field.addEventListener("pointermove", (event) => { if (event.buttons === 1) go(event); });
  }

  plot() { return this.cursor.parentElement; }

  show(k) {
    this.follow?.(k);
    this.cursor.style.left = percent(Math.min(k, this.view.length - 1), this.view.length);
    this.cursor.style.width = percent(1, this.view.length);
  }
}

class Timeline extends Track {
  constructor(run, view) { super(run, view, "timeline"); this.root.classList.add("mv-timeline"); }

  // Of many requests only some are in sight: those that run are.
  follow(k) {
    const lane = this.lanes?.[Math.min(...this.run.at(k).running)];
    if (lane === this.followed) return;
    this.followed = lane;
    const [top, height] = [this.body.scrollTop, this.body.clientHeight];
    if (lane && (lane.offsetTop < top || lane.offsetTop > top + height / 2)) this.body.scrollTop = lane.offsetTop;
  }

  draw() {
    const n = this.view.length, rows = segmentsOf(this.run), used = new Set(rows.flat().map((s) => s.kind));
    const requests = this.run.at(Infinity).requests;
    this.body.classList.toggle("mv-many", rows.length > 24);
    this.body.replaceChildren(...rows.map((segments, i) => {
      const spell = (s) => `${KINDS[s.kind]} ${s.first === s.last ? s.first : `${s.first} to ${s.last}`}`;
      return h("div", { class: "mv-lane" }, chip(i), h("div", { class: "mv-bars", role: "img",
        "aria-label": `${label(i)} ${short(requests[i].name, 24)}: ${segments.map(spell).join(", ")}` },
        ...segments.map((s) => h("i", { class: `mv-bar mv-k-${s.kind}`, "data-kind": s.kind,
          "data-first": s.first, "data-last": s.last,
          title: `${label(i)} ${spell(s)}${s.tokens ? `: ${plural(s.tokens, "token")}` : ""}`,
          style: { left: percent(s.first, n), width: percent(s.last - s.first + 1, n) } }))));
    }), h("div", { class: "mv-overlay" }, this.cursor));
    this.axis.replaceChildren(ticks(n));
    this.lanes = this.body.classList.contains("mv-many") ? [...this.body.children].slice(0, -1) : [];
    this.legend.replaceChildren(...Object.entries(KINDS).filter(([kind]) => used.has(kind)).map(([kind, words]) =>
      h("span", {}, h("i", { class: `mv-key mv-k-${kind}` }), words)));
  }
}

class Curve extends Track {
  constructor(run, view) { super(run, view, "blocks over the iterations"); this.root.classList.add("mv-curve"); }

  draw() {
    const n = this.view.length, total = this.run.numBlocks;
    const uses = this.run.frames.map((frame) => usage(frame, this.run.blockSize));
    const layers = [["cached", "free but cached"], ["reserved", "reserved, empty"], ["filled", "held by one"],
                    ["shared", "shared"]];
    const height = (now, kind) => {  // of this layer and all that are drawn over it
      const from = layers.findIndex(([name]) => name === kind);
      return layers.slice(from).reduce((sum, [name]) => sum + now[name], 0);
    };
    const outline = (kind) => uses.flatMap((now, k) => {
      const y = percent(total - height(now, kind), total);
      return [`${percent(k, n)} ${y}`, `${percent(k + 1, n)} ${y}`];
    });
    const used = layers.filter(([kind]) => uses.some((now) => now[kind]));
    const marks = this.run.frames.flatMap((frame, k) => frame.events.some((event) => event[1] === "preempt") ? [k] : []);
    const peak = Math.max(...uses.map((now) => now.used), 0);
    this.body.setAttribute("role", "img");
    this.body.setAttribute("aria-label", `blocks in use over ${n} iterations: at most ${peak} of ${total}` +
      (marks.length ? `; preemptions in iterations ${marks.slice(0, 20).join(", ")}` : ""));
    this.body.replaceChildren(...used.map(([kind]) => h("i", { class: `mv-layer mv-l-${kind}`,
      style: { "clip-path": `polygon(0% 100%, ${outline(kind).join(", ")}, ${percent(uses.length, n)} 100%)` } })),
      ...marks.map((k) => h("i", { class: "mv-preemption", title: `preemption in iteration ${k}`,
                                   style: { left: percent(k + 0.5, n) } }, "▼")),
      h("div", { class: "mv-overlay" }, this.cursor));
    this.field.dataset.total = total;
    this.axis.replaceChildren(ticks(n));
    const keys = used.reverse().map(([kind, words]) => h("span", {}, h("i", { class: `mv-key mv-l-${kind}` }), words));
    if (marks.length) keys.push(h("span", {}, h("b", { class: "mv-triangle" }, "▼"), " preemption"));
    this.legend.replaceChildren(...keys);
  }
}

// ---- One clock over one or two runs ------------------------------------------------------------

const SPEEDS = { slow: 1200, normal: 450, fast: 60 };
const ICONS = { play: "M3 1.5v11l9-5.5z", pause: "M3 2h3v10H3zM8 2h3v10H8z", back: "M9 2L4 7l5 5", next: "M5 2l5 5-5 5" };

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("mv-icon", `mv-i-${name}`);
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

class View {
  constructor(root, payload, onStep) {
    this.onStep = onStep ?? (() => {});
    this.root = root;
    this.step = 0;
    this.reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.build(payload);
    this.show(payload.step ?? 0);
  }

  build(payload) {
    this.stop?.();
    this.runs = payload.traces.map((trace) => new Run(trace));
    const button = (name, words, onclick) =>
      h("button", { type: "button", class: "mv-button", "data-mv": name, "aria-label": words, title: words, onclick }, icon(name));
    this.play = button("play", "Play", () => this.toggle());
    this.range = h("input", { type: "range", class: "mv-range", "data-mv": "range", min: 0, value: 0,
                              "aria-label": "Iteration", oninput: () => this.go(+this.range.value) });
    this.where = h("output", { class: "mv-where" });
    this.speed = h("select", { class: "mv-speed", "aria-label": "Speed", onchange: () => this.restart() },
                   ...Object.keys(SPEEDS).map((name) => h("option", { value: name }, name)));
    this.speed.value = "normal";
    const controls = h("div", { class: "mv-controls" }, this.play, button("back", "Previous iteration", () => this.go(this.step - 1)),
      button("next", "Next iteration", () => this.go(this.step + 1)), this.range, this.where, this.speed);
    const makers = { map: (run) => new MapView(run, payload.columns, this), timeline: (run) => new Timeline(run, this),
                     curve: (run) => new Curve(run, this) };
    this.parts = [];
    const columns = this.runs.map((run, r) => {
      const parts = payload.parts.map((part) => makers[part](run));
      this.parts.push(...parts);
      const title = payload.titles === false ? "" : run.title || (this.runs.length > 1 ? `run ${r + 1}` : "");
      return h("div", { class: "mv-run", "data-run": r }, title ? h("div", { class: "mv-title" }, bdi(title, 80)) : null,
               ...parts.map((part) => part.root));
    });
    this.main = h("div", { class: `mv mv-runs-${this.runs.length}`, role: "group", "aria-label": "Block map",
                           onkeydown: (event) => this.onKey(event) },
      controls, h("div", { class: "mv-runs" }, ...columns), payload.parts.includes("map") ? legend(this.runs) : null);
    this.root.replaceChildren(h("style", {}, CSS), this.main);
    this.draw();
  }

  get length() { return Math.max(1, ...this.runs.map((run) => run.frames.length)); }

  draw() {
    this.range.max = this.length - 1;
    for (const part of this.parts) part.draw?.();
  }

  show(k) {
    this.step = Math.max(0, Math.min(this.length - 1, k));
    const over = this.runs.length === 1 ? [] : this.runs.filter((run) => this.step >= run.frames.length);
    this.main.dataset.step = this.step;
    this.range.value = this.step;
    this.where.textContent = `iteration ${this.step} of ${this.length - 1}`;
    for (const part of this.parts) part.show(this.step, this.timer !== undefined);
    for (const column of this.main.querySelectorAll("[data-run]")) {
      column.classList.toggle("mv-over", over.includes(this.runs[+column.dataset.run]));
    }
    const uses = this.runs.map((run) => usage(run.at(this.step), run.blockSize));
    this.range.setAttribute("aria-valuetext", `iteration ${this.step} of ${this.length - 1}: ` +
      uses.map((now, r) => `${now.used} of ${this.runs[r].numBlocks} blocks in use`).join("; "));
  }

  go(k) {
    const before = this.step;
    this.show(k);
    if (this.step !== before) this.onStep(this.step);
  }

  toggle() {
    if (this.timer !== undefined) { this.stop(); this.show(this.step); return; }
    if (this.step === this.length - 1) this.go(0);
    this.restart(true);
  }

  restart(start = false) {
    if (!start && this.timer === undefined) return;
    clearInterval(this.timer);
    this.timer = setInterval(() => {
      if (!this.root.isConnected || this.step >= this.length - 1) { this.stop(); this.show(this.step); } else this.go(this.step + 1);
    }, SPEEDS[this.speed.value] * (this.reduced ? 3 : 1));
    this.setPlay("pause", "Pause");
  }

  stop() {
    clearInterval(this.timer);
    this.timer = undefined;
    if (this.play) this.setPlay("play", "Play");
  }

  setPlay(name, words) {
    this.play.replaceChildren(icon(name));
    this.play.setAttribute("aria-label", words);
    this.play.title = words;
  }

  // Keys work anywhere in the map; none may reach the notebook, which has shortcuts of its own.
  onKey(event) {
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === this.speed) return;
    const on = event.target.closest("button");
    const steps = { ArrowLeft: -1, ",": -1, ArrowRight: 1, ".": 1, PageUp: -10, PageDown: 10 };
    if (event.key in steps) this.go(this.step + steps[event.key]);
    else if (event.key === "Home") this.go(0);
    else if (event.key === "End") this.go(this.length - 1);
    else if (event.key === " " && (!on || on.dataset.request)) this.toggle();
    else return;
    event.preventDefault();
  }

  // More iterations of a run that goes on: its lines from number `start` on, known ones among them.
  // Whoever looks at the last one goes along.
  extend(r, start, lines) {
    const run = this.runs[r], fresh = lines.slice(Math.max(0, run.frames.length - start));
    if (!fresh.length || start > run.frames.length) return;
    const follows = this.pending !== undefined || this.step === this.length - 1;
    fresh.forEach((line) => run.add(line));
    if (follows) this.pending = this.length - 1;
    this.frameRequest ??= requestAnimationFrame(() => {
      const target = this.pending ?? this.step;
      this.frameRequest = this.pending = undefined;
      this.draw();
      this.go(target);
    });
  }

  replace(payload) {
    const longer = (trace, r) => this.runs[r]?.title === trace.title && trace.frames.length > this.runs[r].frames.length;
    if (payload.live && payload.traces.every(longer)) {
      payload.traces.forEach((trace, r) => this.extend(r, 0, trace.frames));
      return;
    }
    const step = this.step;
    this.build(payload);
    this.show(step);
  }
}

function legend(runs) {
  const sample = (states, fill, letter, mark = "") => {
    const owner = letter.toUpperCase().charCodeAt(0) - 65, second = letter.length > 1;
    const paint = second ? `${colour(0)} 0 50%, ${colour(1)} 50% 100%` : `${colour(owner)} 0 100%`;
    return h("span", { class: `mv-cell mv-sample ${states}`, "aria-hidden": "true", style: { "--c": colour(owner) } },
      h("i", { class: "mv-fill", style: { height: fill, "--paint": `linear-gradient(90deg, ${paint})` } }),
      h("b", {}, letter), h("em", {}, mark));
  };
  const host = runs.some((run) => run.numHostBlocks);
  const entries = [["mv-held", "60%", "A", "", "held by A, 60 % full"], ["mv-held mv-is-reserved", "0", "A", "", "reserved, still empty"],
    ["mv-held mv-is-new", "40%", "A", "+", "new in this iteration"], ["mv-held mv-is-shared", "100%", "AB", "", "shared by A and B"],
    ["mv-held mv-is-cached", "100%", "A", "", "held, and in the prefix cache"], ["mv-free mv-is-cached", "100%", "a", "", "free, still cached"],
    ["mv-held mv-is-copied", "60%", "B", "»", "copied before it is written"], ["mv-free mv-is-freed", "0", "a", "−", "just freed"],
    ["mv-held mv-is-idle", "100%", "A", "", "held, but its request has ended"]];
  if (host) entries.push(["mv-held mv-is-swapped-in", "100%", "A", "↓", "swapped in"], ["mv-free mv-is-swapped-out", "0", "a", "↑", "swapped out"]);
  return h("details", { class: "mv-legend" }, h("summary", {}, "legend and keys"),
    h("div", { class: "mv-entries" }, ...entries.map(([states, fill, letter, mark, words]) =>
      h("span", {}, sample(states, fill, letter, mark), words))),
    h("div", { class: "mv-quiet" }, "← → , . step through the iterations, Home and End go to the ends, Space plays. " +
      "In the map the arrows go from block to block. Point at a request to light its blocks: #0 is its first."));
}

// ---- Doors -------------------------------------------------------------------------------------

export function mount(root, payload, onStep) {
  root.dataset.mounted = "";
  return new View(root, payload, onStep);
}

function render({ model, el }) {
  const view = mount(el, { ...model.get("payload"), step: model.get("step") }, (step) => {
    model.set("step", step);
    model.save_changes();
  });
  const onStep = () => { if (model.get("step") !== view.step) view.show(model.get("step")); };
  const onPayload = () => view.replace(model.get("payload"));
  const onFresh = () => { const fresh = model.get("fresh"); if (fresh.lines) view.extend(0, fresh.start, fresh.lines); };
  onFresh();
  model.on("change:step", onStep);
  model.on("change:payload", onPayload);
  model.on("change:fresh", onFresh);
  return () => {
    view.stop();
    model.off("change:step", onStep);
    model.off("change:payload", onPayload);
    model.off("change:fresh", onFresh);
  };
}

export default { render };

// ---- Looks -------------------------------------------------------------------------------------

const CSS = `
.mv { --fg: var(--jp-ui-font-color1, CanvasText); --bg: var(--jp-layout-color0, Canvas);
  --line: color-mix(in srgb, var(--fg) 22%, var(--bg)); --soft: color-mix(in srgb, var(--fg) 6%, var(--bg));
  --muted: color-mix(in srgb, var(--fg) 72%, var(--bg)); --accent: var(--jp-brand-color1, #1976d2);
  color: var(--fg); background: var(--bg); font: 13px/1.45 var(--jp-ui-font-family, system-ui, sans-serif);
  padding: 10px 12px; border: 1px solid var(--line); border-radius: 8px; box-sizing: border-box; max-width: 1280px;
  container-type: inline-size; text-align: start; }
.mv *, .mv *::before { box-sizing: border-box; }
.mv button, .mv select { font: inherit; color: inherit; }
.mv :focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.mv-controls { display: flex; align-items: center; gap: 6px; margin-bottom: 8px; }
.mv-button { display: inline-flex; align-items: center; justify-content: center; width: 30px; height: 28px; padding: 0;
  border: 1px solid var(--line); border-radius: 6px; background: var(--soft); cursor: pointer; }
.mv-button:hover { border-color: var(--muted); }
.mv-icon { width: 14px; height: 14px; fill: currentColor; }
.mv-i-back, .mv-i-next { fill: none; stroke: currentColor; stroke-width: 2; }
.mv-range { flex: 1; min-width: 80px; accent-color: var(--accent); margin: 0 4px; }
.mv-where { min-width: 10.5em; font-variant-numeric: tabular-nums; }
.mv-speed { border: 1px solid var(--line); border-radius: 6px; background: var(--soft); height: 28px; padding: 0 4px; }
.mv-speed option { color: var(--fg); background: var(--bg); }
.mv-runs { display: grid; gap: 20px; grid-template-columns: minmax(0, 1fr); }
.mv-runs-2 .mv-runs { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); row-gap: 0; }
.mv-runs-2 .mv-run { display: grid; grid: subgrid / minmax(0, 1fr); grid-row: span 4; }  /* title and parts side by side */
.mv-title { font-weight: 600; font-size: 14px; margin-bottom: 4px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.mv-over .mv-title::after { content: " — done"; font-weight: 400; color: var(--muted); }
.mv-counts { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-bottom: 8px; font-variant-numeric: tabular-nums; }
.mv-counts b { font-weight: 600; }
.mv-meter { display: inline-block; width: 56px; height: 8px; margin-right: 6px; border: 1px solid var(--line); border-radius: 4px;
  overflow: hidden; vertical-align: 0; }
.mv-meter i { display: block; height: 100%; background: #0072B2; }
.mv-m-wasted i { background: repeating-linear-gradient(135deg, #D55E00 0 2px, #f2b38a 2px 4px); }
.mv-main { display: flex; flex-wrap: wrap; gap: 12px 20px; align-items: flex-start; }
.mv-left { flex: 1 1 420px; min-width: 0; }
.mv-runs-2 .mv-requests { flex-basis: 100%; }
.mv-head { font-size: 11px; font-weight: 600; letter-spacing: .04em; text-transform: uppercase; color: var(--muted); margin: 4px 0 2px; }

.mv-grid { display: grid; gap: 3px; grid-template-columns: max-content repeat(var(--columns), minmax(0, 50px)); align-items: stretch; contain: layout; }
.mv-row { display: contents; }
.mv-rowhead { color: var(--muted); font-size: 11px; text-align: right; padding-right: 4px; min-width: 26px; align-self: center; font-variant-numeric: tabular-nums; }
.mv-cell { position: relative; aspect-ratio: 1; border-radius: 5px; border: 1px solid var(--line); background: var(--soft);
  overflow: hidden; cursor: default; contain: size layout paint; }
.mv-fill { position: absolute; inset: auto 0 0 0; background: var(--paint); forced-color-adjust: none; }
.mv-fill::after { content: ""; position: absolute; inset: 0; }
.mv-p1 > b, .mv-p1::after { --p: repeating-linear-gradient(45deg, #0007 0 2px, transparent 2px 6px); }
.mv-p2::after { --p: radial-gradient(circle, #0009 1.2px, transparent 1.7px) 0 0/6px 6px; }
.mv-p3::after { --p: repeating-linear-gradient(0deg, #0007 0 1px, transparent 1px 4px); }
.mv-fill::after, .mv-chip::after { background: var(--p, none); }
.mv-slots { position: absolute; inset: 0; background: repeating-linear-gradient(to top, transparent 0 calc(100% / var(--slots) - 1px),
  #8886 calc(100% / var(--slots) - 1px) calc(100% / var(--slots))); }
.mv-cell small { position: absolute; left: 2px; top: 0; font-size: 9px; line-height: 12px; color: var(--fg);
  background: color-mix(in srgb, var(--bg) 80%, transparent); border-radius: 3px; padding: 0 2px; font-variant-numeric: tabular-nums; }
.mv-cell > b { position: absolute; left: 50%; top: 54%; transform: translate(-50%, -50%); font: 600 13px/16px var(--jp-ui-font-family, system-ui, sans-serif);
  color: #000; background: #fff; border-radius: 4px; padding: 0 4px; forced-color-adjust: none; }
.mv-cell > b:empty { display: none; }
.mv-cell em { position: absolute; right: 2px; top: 0; font: 700 12px/14px system-ui, sans-serif; color: #000; background: #fff;
  border-radius: 3px; padding: 0 2px; forced-color-adjust: none; }
.mv-cell em:empty { display: none; }
.mv-held { border: 2px solid var(--c); }
.mv-is-reserved { border-style: dashed; }
.mv-is-new, .mv-is-copied, .mv-is-swapped-in { box-shadow: 0 0 0 2px var(--fg); z-index: 1; }
.mv-is-shared { border: 4px double var(--fg); }
.mv-held.mv-is-cached::after { content: ""; position: absolute; right: 2px; bottom: 2px; width: 7px; height: 7px; border-radius: 50%;
  background: #fff; border: 2px solid #000; forced-color-adjust: none; }
.mv-free.mv-is-cached { border: 1px dashed var(--muted); }
.mv-free.mv-is-cached .mv-fill { opacity: .35; } .mv-dense .mv-free.mv-is-cached .mv-fill { display: none; }
.mv-is-freed:not(.mv-is-cached) { border: 1px dotted var(--muted); }
.mv-is-idle .mv-fill::before { content: ""; position: absolute; inset: 0; background:
  repeating-linear-gradient(45deg, #000a 0 1.5px, transparent 1.5px 5px), repeating-linear-gradient(-45deg, #000a 0 1.5px, transparent 1.5px 5px); }
.mv-is-idle > b { text-decoration: line-through; }
.mv-lighting .mv-cell:not(.mv-lit) { opacity: .22; }
.mv-lit { outline: 2px solid var(--fg); outline-offset: 0; }
.mv-middle .mv-held.mv-is-cached::after { width: 6px; height: 6px; border-width: 1px; right: 1px; bottom: 1px; }
.mv-middle { gap: 2px; } .mv-middle .mv-cell > b { font-size: 11px; line-height: 13px; padding: 0 2px; top: 60%; }
.mv-middle .mv-cell small { font-size: 8px; line-height: 9px; padding: 0 1px; left: 0; } .mv-middle .mv-cell em { font-size: 10px; line-height: 10px; right: 0; }
.mv-dense { gap: 2px; } .mv-dense .mv-cell { border-radius: 0; border-width: 1px; overflow: visible; contain: size layout; }
.mv-dense .mv-held { background: #fff; }
.mv-dense .mv-cell > b { font-size: 9px; line-height: 10px; padding: 0; top: 50%; background: none; letter-spacing: -.03em; }
.mv-dense .mv-free > b { color: var(--fg); }
.mv-dense .mv-is-shared { border-width: 3px; }
.mv-dense .mv-is-new, .mv-dense .mv-is-copied, .mv-dense .mv-is-swapped-in { box-shadow: 0 0 0 2px var(--fg); }
.mv-dense .mv-held.mv-is-cached::after { width: 5px; height: 5px; border: 0; border-radius: 0; right: 0; bottom: 0; background: #000; clip-path: polygon(100% 0, 100% 100%, 0 100%); }

.mv-detail { margin-top: 8px; min-height: 62px; padding: 6px 8px; border-radius: 6px; background: var(--soft); }
.mv-facts { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 6px; }
.mv-facts bdi { font-weight: 600; }
.mv-texts { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 5px; }
.mv-slot { min-width: 20px; height: 20px; line-height: 18px; padding: 0 4px; border: 1px dashed var(--line); border-radius: 3px;
  font-family: var(--jp-code-font-family, ui-monospace, monospace); font-size: 12px; white-space: pre; }
.mv-full { border: 1px solid var(--muted); background: var(--bg); }
.mv-generated { border-bottom: 3px solid var(--accent); line-height: 16px; }
.mv-quiet { color: var(--muted); }

.mv-chip { position: relative; display: inline-flex; align-items: center; justify-content: center; min-width: 24px; height: 20px; padding: 0 3px;
  border-radius: 4px; background: var(--c, transparent); overflow: hidden; flex: none; forced-color-adjust: none; }
.mv-chip::after { content: ""; position: absolute; inset: 0; }
.mv-chip b { position: relative; z-index: 1; font: 600 11px/14px var(--jp-ui-font-family, system-ui, sans-serif); color: #000; background: #fff;
  border-radius: 3px; padding: 0 3px; }
.mv-blockchip { border: 1px solid var(--muted); min-width: 20px; margin: 0 2px; }
.mv-requests { flex: 1 1 320px; min-width: 0; overflow: auto; padding: 2px; contain: layout paint; }
.mv-request { display: grid; width: 100%; grid-template-columns: max-content minmax(0, 1fr) max-content; gap: 0 8px; align-items: center; text-align: start;
  border: 1px solid transparent; border-radius: 6px; background: none; padding: 3px 5px; cursor: default; content-visibility: auto; contain-intrinsic-size: auto 44px; }
.mv-request:hover, .mv-request:focus-visible { background: var(--soft); border-color: var(--line); }
.mv-request > .mv-chip { grid-row: 1 / span 2; }
.mv-name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; font-weight: 600; }
.mv-now { color: var(--muted); font-variant-numeric: tabular-nums; }
.mv-table { grid-column: 2; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; font-size: 12px; color: var(--muted);
  font-family: var(--jp-code-font-family, ui-monospace, monospace); }
.mv-progress { grid-column: 3; grid-row: 2; position: relative; width: 84px; height: 7px; border: 1px solid var(--line); border-radius: 4px; overflow: hidden; }
.mv-progress i { position: absolute; inset: 0 auto 0 0; background: var(--muted); }
.mv-progress i + i { width: 2px; background: var(--fg); outline: 1px solid var(--bg); }
.mv-ended { display: flex; flex-wrap: wrap; gap: 3px; }
.mv-ended .mv-chip { opacity: .75; }
.mv-why { height: 112px; overflow: auto; padding: 2px; contain: strict; }
.mv-event { display: flex; gap: 7px; align-items: flex-start; padding: 2px 6px; border-left: 3px solid var(--line); margin-bottom: 2px; }
.mv-event bdi { font-weight: 600; }
.mv-e-preempt { border-left: 3px double #D55E00; border-left-width: 5px; }
.mv-e-admit, .mv-e-resume, .mv-e-fork { border-left-color: #009E73; }
.mv-e-wait { border-left-style: dotted; border-left-color: var(--muted); }

.mv-track { margin-top: 10px; }
.mv-keys { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12px; margin-bottom: 4px; }
.mv-key { display: inline-block; position: static; width: 18px; height: 11px; margin-right: 5px; border-radius: 2px; vertical-align: -1px; }
.mv-field { cursor: pointer; touch-action: pan-y; user-select: none; }
.mv-body { position: relative; contain: layout; }
.mv-timeline .mv-body { max-height: 360px; overflow: hidden auto; }
.mv-lane { display: grid; grid-template-columns: 34px minmax(0, 1fr); align-items: center; margin-bottom: 2px; }
.mv-lane .mv-chip { justify-self: start; height: 16px; }
.mv-bars { position: relative; height: 16px; }
.mv-many .mv-lane, .mv-many .mv-lane .mv-chip, .mv-many .mv-bars { height: 12px; }
.mv-many .mv-lane { content-visibility: auto; contain-intrinsic-size: auto 12px; } .mv-many .mv-chip b { line-height: 12px; }
.mv-bar { position: absolute; top: 0; bottom: 0; min-width: 1px; }
.mv-k-prefill { background: #0072B2; box-shadow: inset -1px 0 var(--bg); forced-color-adjust: none; }
.mv-k-decode { background: #56B4E9; forced-color-adjust: none; }
.mv-k-waiting { background: linear-gradient(var(--muted), var(--muted)) 0 50% / 100% 1px no-repeat; }
.mv-k-stalled { background: repeating-linear-gradient(90deg, #56B4E9 0 3px, transparent 3px 6px); forced-color-adjust: none; }
.mv-k-preempted { background: repeating-linear-gradient(135deg, #D55E00 0 3px, transparent 3px 6px); forced-color-adjust: none; }
.mv-k-swapped { background: radial-gradient(circle, #CC79A7 1.6px, transparent 2px) 0 0/5px 5px; outline: 1px solid #CC79A7; outline-offset: -1px; forced-color-adjust: none; }
.mv-k-idle { background: repeating-linear-gradient(45deg, #000 0 1.5px, transparent 1.5px 5px), repeating-linear-gradient(-45deg, #000 0 1.5px, transparent 1.5px 5px), #F0E442;
  forced-color-adjust: none; }
.mv-overlay { position: absolute; inset: 0; pointer-events: none; }
.mv-timeline .mv-overlay { left: 34px; }
.mv-cursor { position: absolute; top: 0; bottom: 0; min-width: 2px; background: color-mix(in srgb, var(--fg) 16%, transparent); border-inline: 1px solid var(--fg); }
.mv-axis { position: relative; height: 16px; }
.mv-timeline .mv-axis { margin-left: 34px; }
.mv-ticks span { position: absolute; transform: translateX(-50%); font-size: 11px; color: var(--muted); font-variant-numeric: tabular-nums; }
.mv-curve .mv-field { position: relative; padding-left: 34px; }
.mv-curve .mv-field::before, .mv-curve .mv-field::after { position: absolute; left: 0; width: 30px; text-align: right; font-size: 11px; color: var(--muted); }
.mv-curve .mv-field::before { content: attr(data-total); top: -2px; }
.mv-curve .mv-field::after { content: "0"; bottom: -2px; }
.mv-curve .mv-axis { margin-left: 34px; }
.mv-curve .mv-body { height: 110px; border: 1px solid var(--line); border-width: 1px 0; background: var(--soft); }
.mv-layer { position: absolute; inset: 0; forced-color-adjust: none; }
.mv-l-shared { background: repeating-linear-gradient(90deg, #0072B2 0 4px, #00446b 4px 6px); }
.mv-l-filled { background: #56B4E9; }
.mv-l-reserved { background: repeating-linear-gradient(45deg, #E69F00 0 2px, #fbe3b0 2px 6px); }
.mv-l-cached { background: radial-gradient(circle, #777 1px, transparent 1.4px) 0 0/6px 6px, color-mix(in srgb, var(--fg) 12%, var(--bg)); }
.mv-preemption { position: absolute; top: -3px; transform: translateX(-50%); font: 10px/1 sans-serif; color: #D55E00; }
.mv-triangle { color: #D55E00; font-size: 10px; }

.mv-legend { margin-top: 8px; }
.mv-legend summary { cursor: pointer; color: var(--muted); width: max-content; }
.mv-entries { display: flex; flex-wrap: wrap; gap: 8px 18px; margin: 8px 4px; }
.mv-entries > span { display: inline-flex; align-items: center; gap: 8px; }
.mv-sample { width: 40px; height: 40px; flex: none; }
@container (max-width: 760px) { .mv-runs-2 .mv-runs { grid-template-columns: minmax(0, 1fr); row-gap: 20px; }
  .mv-runs-2 .mv-run { display: block; grid-row: auto; } }
@container (max-width: 520px) { .mv-controls { flex-wrap: wrap; } .mv-range { flex-basis: 100%; order: 9; } }
`;
