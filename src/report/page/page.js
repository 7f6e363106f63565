// The pages that octet writes: theme, sortable tables, bars, and what the charts share. Texts from runs are only ever
// set as textContent.
const kColours = 8;

function element(name, options = {}, ...children) {
  const { className, text, ...attributes } = options;
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function drawn(name, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const colourOf = (index) => `var(--s${index % kColours})`;

function swatch(series) {
  const node = element("span", { className: series.dashed ? "swatch dashed" : "swatch" });
  if (series.dashed) node.style.borderColor = colourOf(series.colour);
  else node.style.background = colourOf(series.colour);
  return node;
}

function decimalsOf(step) {
  return Math.min(10, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
}

function tickText(value, step) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e9) return Number(value.toPrecision(6)).toExponential();
  return value.toLocaleString("en-US", { minimumFractionDigits: 0, maximumFractionDigits: decimalsOf(step) });
}

function valueText(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e12)) return value.toExponential(3);
  if (Number.isInteger(value) || size >= 1e5) return Math.round(value).toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
}

// Round numbers from low to high, about `wanted` of them.
function linearTicks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  // A range that is below the precision of its numbers has no ticks between its ends.
  if (!(step > 0) || !(count <= 20 * wanted) || first + 1 === first) return { ticks: [low], step: Math.abs(low) || 1 };
  return { ticks: Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) * step), step };
}

function logTicks(low, high, wanted) {
  const decades = Math.log10(high / low);
  if (decades < 1) return linearTicks(low, high, wanted);
  const digits = decades < 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / wanted));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
    if (power % every !== 0) continue;
    for (const digit of digits) {
      const tick = Number(`${digit}e${power}`);
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
    }
  }
  return { ticks, step: low };
}

// From values to pixels and back.
class Scale {
  constructor(low, high, from, to, log) {
    Object.assign(this, { low, high, from, to, log });
    this.a = log ? Math.log10(low) : low;
    this.b = log ? Math.log10(high) : high;
  }
  place(value) {
    const v = this.log ? Math.log10(value) : value;
    return this.from + ((v - this.a) / (this.b - this.a)) * (this.to - this.from);
  }
  value(pixel) {
    const v = this.a + ((pixel - this.from) / (this.to - this.from)) * (this.b - this.a);
    return this.log ? 10 ** v : v;
  }
  ticks(wanted) {
    return this.log ? logTicks(this.low, this.high, wanted) : linearTicks(this.low, this.high, wanted);
  }
}

// One box for the whole page that follows the pointer.
const tip = {
  node: null,
  show(x, y, title, rows) {
    if (!this.node) {
      this.node = element("div", { className: "tip", role: "status" });
      document.body.append(this.node);
    }
    this.node.replaceChildren(element("strong", { text: title }));
    for (const row of rows) {
      const line = element("div");
      if (row.series) line.append(swatch(row.series));
      line.append(element("span", { className: "name", text: row.name }));
      const value = element("span", { className: "value", text: row.value });
      if (row.extra) value.append(element("span", { className: "extra", text: ` ${row.extra}` }));
      line.append(value);
      this.node.append(line);
    }
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = x + 18 + box.width > window.innerWidth ? x - 18 - box.width : x + 18;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, Math.min(y - box.height / 2, window.innerHeight - box.height - 4))}px`;
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

// Draws again when the width of the place changes.
function redrawWithWidth(place, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.round(place.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      draw(width);
    }
  }).observe(place);
}

function drawBars(place, data) {
  const most = Math.max(...data.bars.map((bar) => bar.value || 0), 0);
  for (const bar of data.bars) {
    const shape = element("span", { className: "bar" });
    shape.style.background = colourOf(bar.colour);
    shape.style.width = `${most > 0 ? (58 * (bar.value || 0)) / most : 0}%`;
    place.append(
      element("div", { className: "barrow" }, element("span", { className: "name", text: bar.name }),
        element("span", { className: "track" }, shape, element("span", { className: "value", text: bar.text }))));
  }
}

function makeSortable(table) {
  const heads = [...table.querySelectorAll("th")];
  const body = table.tBodies[0];
  if (body.rows.length < 3) return;
  heads.forEach((head, column) => {
    head.classList.add("sortable");
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const cells = [...body.rows].map((row) => ({ row, cell: row.cells[column] }));
      const numeric = cells.every(({ cell }) => cell.dataset.sort !== undefined);
      cells.sort((a, b) => {
        const order = numeric ? Number(a.cell.dataset.sort) - Number(b.cell.dataset.sort)
          : a.cell.textContent.localeCompare(b.cell.textContent, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...cells.map(({ row }) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sort();
    });
  });
}

function prepareTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
  };
  // A page opened from a file may have no storage.
  try {
    const kept = window.localStorage.getItem("octet-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* the system's choice stays */ }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      window.localStorage.setItem("octet-theme", root.dataset.theme);
    } catch { /* not kept for the next visit */ }
    label();
  });
  system.addEventListener("change", label);
  label();
  button.hidden = false;
}

document.addEventListener("DOMContentLoaded", () => {
  prepareTheme();
  document.querySelectorAll("table").forEach(makeSortable);
  document.querySelectorAll("figcaption[data-colour]").forEach((caption) => {
    caption.prepend(swatch({ colour: Number(caption.dataset.colour) }));
  });
  const kinds = { bars: drawBars, chart: drawChart, parallel: drawParallel };
  const data = JSON.parse(document.getElementById("page-data").textContent);
  for (const [id, part] of Object.entries(data)) kinds[part.kind](document.getElementById(id), part);
});
