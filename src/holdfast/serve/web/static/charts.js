// Canvas and SVG charts. Colours: from the background to a contrast, in order of lightness, so that
// colour-blind readers can order them.
const SCALES = {
  light: [[237, 240, 243], [246, 214, 160], [224, 122, 30], [120, 30, 0]],
  dark: [[34, 40, 46], [104, 72, 42], [224, 138, 60], [255, 231, 190]],
};

function scaleTable() {
  const scale = SCALES[matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"];
  return Array.from({ length: 256 }, (_, index) => {
    const at = index / 255 * (scale.length - 1), low = Math.floor(at), high = Math.min(low + 1, scale.length - 1);
    return scale[low].map((value, part) => Math.round(value + (scale[high][part] - value) * (at - low)));
  });
}

function unknownColour() {
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--unknown").trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// Draw columns × rows of shares (NaN: unknown) into a canvas, one pixel each, scaled without blur.
export function drawCells(canvas, columns, rows, shareOf) {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  const context = canvas.getContext("2d"), unknown = unknownColour(), table = scaleTable();
  if (!columns || !rows) return;
  const image = new ImageData(columns, rows), data = image.data;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const share = shareOf(column, row), at = (row * columns + column) * 4;
      if (share === null) continue; // no such cell: transparent
      const colour = Number.isNaN(share) ? unknown : table[Math.round(Math.min(Math.max(share, 0), 1) * 255)];
      data[at] = colour[0]; data[at + 1] = colour[1]; data[at + 2] = colour[2]; data[at + 3] = 255;
    }
  }
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

export function markCell(canvas, columns, rows, column, row) {
  const context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  const width = canvas.width / columns, height = canvas.height / rows;
  context.lineWidth = 2 * ratio;
  for (const [colour, out] of [["#000", 2.5], ["#fff", 0.5]]) {
    context.strokeStyle = colour;
    context.strokeRect(column * width - out * ratio, row * height - out * ratio, width + 2 * out * ratio, height + 2 * out * ratio);
  }
}

export function drawScale(canvas) { drawCells(canvas, 120, 1, (column) => column / 119); }

export function markArea(canvas, columns, rows, from, to) {
  const context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  const width = canvas.width / columns, height = canvas.height / rows;
  const [left, top] = [Math.min(from[0], to[0]), Math.min(from[1], to[1])];
  const box = [left * width, top * height, (Math.abs(from[0] - to[0]) + 1) * width, (Math.abs(from[1] - to[1]) + 1) * height];
  for (const [colour, dash] of [["#000", []], ["#fff", [6 * ratio, 6 * ratio]]]) {
    context.strokeStyle = colour; context.lineWidth = 2 * ratio; context.setLineDash(dash);
    context.strokeRect(...box);
  }
  context.setLineDash([]);
}

// Let the pointer and the arrow keys choose a cell, beginning in the first or the last column; Enter
// and a click open it. `area` has functions for a rectangle that is dragged, from cell to cell.
export function chooseCells(canvas, size, fromEnd, onChoose, onOpen, area = null) {
  let column = fromEnd ? Infinity : 0, row = 0, origin = null, moved = false;
  const clamp = (x, y) => {
    const { columns, rows } = size();
    return [Math.min(Math.max(x, 0), columns - 1), Math.min(Math.max(y, 0), rows - 1)];
  };
  const choose = (x, y) => {
    const { columns, rows } = size();
    if (!columns || !rows) return;
    [column, row] = clamp(x, y);
    onChoose(column, row);
  };
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect(), { columns, rows } = size();
    return [Math.floor((event.clientX - box.left) / box.width * columns), Math.floor((event.clientY - box.top) / box.height * rows)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = clamp(...cellAt(event));
    if (!origin) { choose(...cell); return; }
    moved ||= Math.hypot(event.clientX - origin.x, event.clientY - origin.y) > 6;
    if (moved) area.drag(origin.cell, cell);
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (!area || event.button !== 0 || event.pointerType === "touch") return;
    origin = { x: event.clientX, y: event.clientY, cell: clamp(...cellAt(event)) }; moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    const from = origin; origin = null;
    if (from && moved) area.drop(from.cell, clamp(...cellAt(event)));
  });
  canvas.addEventListener("pointercancel", () => { origin = null; });
  canvas.addEventListener("click", (event) => { choose(...cellAt(event)); onOpen?.(column, row); });
  canvas.addEventListener("focus", () => choose(column, row));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) { event.preventDefault(); choose(column + step[0], row + step[1]); }
    if (event.key === "Enter") onOpen?.(column, row);
  });
  return { at: () => clamp(column, row), clamp: () => { [column, row] = clamp(column, row); } };
}

const SVG = "http://www.w3.org/2000/svg";
function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Step rate over time, with starts and failures as vertical lines.
export function drawHealth(parent, points, events, clock) {
  const width = Math.min(Math.max(parent.clientWidth, 260), 900), height = 200, left = 40, bottom = 22, top = 20;
  parent.replaceChildren();
  const marks = events.filter((event) => event.kind === "failed" || event.kind === "started");
  const times = [...points.map((point) => point.at), ...marks.map((event) => event.at)];
  if (times.length < 2) return false;
  const first = Math.min(...times), last = Math.max(...times), highest = Math.max(...points.map((point) => point.rate), 0) || 1;
  const x = (at) => left + (width - left - 8) * (at - first) / Math.max(last - first, 1);
  const y = (share) => top + (height - bottom - top) * (1 - share);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Step rate over time" });
  for (const share of [0, 0.5, 1]) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - 8, y1: y(share), y2: y(share) }));
    svg.append(shape("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, (highest * share).toPrecision(2)));
  }
  svg.append(shape("text", { x: 2, y: 10 }, "steps/s"));
  for (const [at, anchor] of [[first, "start"], [last, "end"]]) svg.append(shape("text", { x: x(at), y: height - 6, "text-anchor": anchor }, clock(at)));
  const line = (name, valueOf) => {
    let path = "", open = false;
    points.forEach((point, index) => {
      const value = valueOf(point), gap = index > 0 && point.generation !== points[index - 1].generation;
      if (value === null) { open = false; return; }
      path += `${open && !gap ? "L" : "M"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`; open = true;
    });
    if (path) svg.append(shape("path", { class: name, d: path }));
  };
  line("wait", (point) => point.wait);
  line("rate", (point) => point.rate / highest);
  for (const event of marks) svg.append(shape("line", { class: event.kind === "failed" ? "failure" : "start", x1: x(event.at), x2: x(event.at), y1: top, y2: height - bottom }));
  const failures = marks.filter((event) => event.kind === "failed");
  failures.slice(-6).forEach((event) => svg.append(shape("text", { class: "failure-text", x: Math.min(x(event.at), width - 60), y: top - 6, "text-anchor": "middle" }, "failure")));
  parent.append(svg);
  return true;
}
