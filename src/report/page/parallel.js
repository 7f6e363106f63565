// Parallel coordinates: one axis per setting or result, one line per run. A drag along an axis keeps the runs that pass
// there, a click on the axis ends that; the line under the pointer is lit.
const kParallel = { height: 380, side: 70, top: 46, bottom: 34, grip: 16, reach: 14 };

class ParallelChart {
  constructor(place, data) {
    this.place = place;
    this.data = data;
    this.filters = data.axes.map(() => null);
    this.count = element("span");
    this.clear = element("button", { type: "button", className: "reset", text: "Clear filters" });
    this.clear.addEventListener("click", () => {
      this.filters.fill(null);
      this.draw();
    });
    this.svg = drawn("svg", { role: "img", "aria-label": `${data.title}: parallel coordinates, ${data.lines.length} runs` });
    place.append(element("div", { className: "tools" }, this.count, element("span", { className: "gap" }), this.clear), this.svg);
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerleave", () => this.light(null));
    this.svg.addEventListener("pointerdown", (event) => this.begin(event));
    this.svg.addEventListener("pointerup", (event) => this.end(event));
    redrawWithWidth(place, (width) => {
      this.width = width;
      this.draw();
    });
  }

  // Where the values of an axis stand, from top to bottom. A value that is missing is at the foot.
  axisScale(index) {
    const axis = this.data.axes[index];
    const values = this.data.lines.map((line) => line.values[index]);
    const missing = values.some((value) => value === null);
    const top = kParallel.top, foot = kParallel.height - kParallel.bottom;
    const bottom = missing ? foot - 26 : foot;
    const there = values.filter((value) => value !== null);
    if (there.some((value) => typeof value === "string")) {
      const words = [...new Set(there.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const step = words.length > 1 ? (bottom - top) / (words.length - 1) : 0;
      const place = (value) => (value === null ? foot : words.length > 1 ? bottom - words.indexOf(String(value)) * step : (top + bottom) / 2);
      const every = Math.max(1, Math.ceil(words.length / 16));
      return { place, foot: missing ? foot : null, share: (value) => (words.length > 1 ? words.indexOf(String(value)) / (words.length - 1) : 0.5),
        labels: words.filter((_, i) => i % every === 0).map((word) => ({ text: word, at: place(word) })) };
    }
    let low = Math.min(...there), high = Math.max(...there);
    const log = axis.log && low > 0;
    if (!there.length) [low, high] = [0, 1];
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
    const scale = new Scale(low, high, bottom, top, log);
    const { ticks, step } = scale.ticks(5);
    return { place: (value) => (value === null ? foot : scale.place(value)), foot: missing ? foot : null,
      share: (value) => (bottom - scale.place(value)) / (bottom - top),
      labels: ticks.map((tick) => ({ text: tickText(tick, step), at: scale.place(tick) })) };
  }

  passes(line) {
    return this.filters.every((filter, i) => {
      if (!filter) return true;
      const at = this.scales[i].place(line.values[i]);
      return at >= filter[0] && at <= filter[1];
    });
  }

  draw() {
    const { width, svg, data } = this;
    if (!width) return;
    const count = data.axes.length;
    this.scales = data.axes.map((_, i) => this.axisScale(i));
    const space = count > 1 ? (width - 2 * kParallel.side) / (count - 1) : 0;
    this.xs = data.axes.map((_, i) => (count > 1 ? kParallel.side + i * space : width / 2));
    svg.setAttribute("viewBox", `0 0 ${width} ${kParallel.height}`);
    svg.replaceChildren();
    const lines = drawn("g");
    this.paths = this.byStrength().map((line) => {
      const points = line.values.map((value, i) => [this.xs[i], this.scales[i].place(value)]);
      const passes = this.passes(line);
      const node = drawn("path", { class: passes ? "run" : "run off", d: `M${points.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}` });
      node.style.stroke = this.colour(line);
      lines.append(node);
      return { line, node, points, passes };
    });
    svg.append(lines);
    data.axes.forEach((axis, i) => this.drawAxis(axis, i, space));
    const kept = this.paths.filter((path) => path.passes).length;
    svg.dataset.kept = kept;
    this.count.textContent = kept === data.lines.length ? `${kept} runs. Drag along an axis to filter.` : `${kept} of ${data.lines.length} runs`;
    this.clear.style.visibility = this.filters.some(Boolean) ? "visible" : "hidden";
  }

  // 0 to 1 by the axis that colours, 1 the best.
  strength(line) {
    const value = line.values[this.data.colourAxis];
    if (value === null || value === undefined) return 0;
    const share = this.scales[this.data.colourAxis].share(value);
    return this.data.lowerIsBetter ? 1 - share : share;
  }

  byStrength() {
    return [...this.data.lines].sort((a, b) => this.strength(a) - this.strength(b));
  }

  colour(line) {
    return `color-mix(in oklab, var(--ramp-strong) ${Math.round(100 * this.strength(line))}%, var(--ramp-weak))`;
  }

  drawAxis(axis, i, space) {
    const { svg } = this;
    const x = this.xs[i], bottom = kParallel.height - kParallel.bottom;
    const scale = this.scales[i];
    svg.append(drawn("line", { class: "axisline", x1: x, x2: x, y1: kParallel.top, y2: bottom }));
    const name = drawn("text", { x, y: i % 2 && space < 110 ? 14 : 30, "text-anchor": "middle", class: "strong" });
    const room = Math.max(8, Math.floor((space < 110 ? 2 * space : space) / 7.2));
    name.textContent = axis.name.length > room ? `${axis.name.slice(0, room - 1)}…` : axis.name;
    name.append(drawn("title", {}, axis.name));
    svg.append(name);
    const labels = scale.foot === null ? scale.labels : [...scale.labels, { text: "none", at: scale.foot }];
    const most = Math.max(6, Math.floor((space || 200) / 8));
    for (const label of labels) {
      const text = label.text.length > most ? `${label.text.slice(0, most - 1)}…` : label.text;
      svg.append(drawn("text", { x: x - 7, y: label.at + 4, "text-anchor": "end", class: "halo" }, text));
    }
    const filter = this.filters[i];
    if (filter) svg.append(drawn("rect", { class: "brush", x: x - 8, width: 16, y: filter[0], height: Math.max(1, filter[1] - filter[0]), rx: 3 }));
    svg.append(drawn("rect", { class: "axisgrip", x: x - kParallel.grip, width: 2 * kParallel.grip, y: kParallel.top - 6, height: bottom - kParallel.top + 12 }));
  }

  where(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    return { x, y, axis: this.xs.findIndex((at) => Math.abs(at - x) <= kParallel.grip) };
  }

  begin(event) {
    const at = this.where(event);
    if (at.axis < 0 || event.button !== 0) return;
    this.svg.setPointerCapture(event.pointerId);
    this.drag = { axis: at.axis, from: at.y };
  }

  move(event) {
    const at = this.where(event);
    if (!this.drag) return this.light(this.nearest(at), event);
    if (Math.abs(at.y - this.drag.from) < 4) return undefined;
    const inside = (y) => Math.min(Math.max(y, kParallel.top - 6), kParallel.height - kParallel.bottom + 6);
    this.filters[this.drag.axis] = [inside(Math.min(at.y, this.drag.from)), inside(Math.max(at.y, this.drag.from))];
    this.drag.moved = true;
    this.light(null);
    return this.draw();
  }

  end() {
    if (this.drag && !this.drag.moved) {
      this.filters[this.drag.axis] = null;
      this.draw();
    }
    this.drag = null;
  }

  // The line that passes nearest to the pointer, of those that pass the filters.
  nearest(at) {
    let best = null, least = kParallel.reach;
    for (const path of this.paths) {
      if (!path.passes) continue;
      for (let i = 0; i + 1 < path.points.length; ++i) {
        const [x1, y1] = path.points[i], [x2, y2] = path.points[i + 1];
        if (at.x < x1 - 4 || at.x > x2 + 4) continue;
        const t = Math.min(1, Math.max(0, ((at.x - x1) * (x2 - x1) + (at.y - y1) * (y2 - y1)) / ((x2 - x1) ** 2 + (y2 - y1) ** 2)));
        const distance = Math.hypot(at.x - x1 - t * (x2 - x1), at.y - y1 - t * (y2 - y1));
        if (distance < least) [best, least] = [path, distance];
      }
    }
    return best;
  }

  light(path, event) {
    if (this.lit && this.lit !== path) this.lit.node.classList.remove("lit");
    this.lit = path;
    if (!path) return tip.hide();
    path.node.classList.add("lit");
    const rows = this.data.axes.map((axis, i) => ({ name: axis.name, value: valueText(path.line.values[i]) }));
    return tip.show(event.clientX, event.clientY, path.line.name, rows);
  }
}

function drawParallel(place, data) {
  place.chart = new ParallelChart(place, data);
}
