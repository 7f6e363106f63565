// Line charts: drag to zoom, values under the pointer, smoothing, logarithmic scale, series that can be hidden.
const kChart = { height: 300, left: 62, right: 14, top: 10, bottom: 38, leastDrag: 8, bothAxes: 28 };

// Exponential moving average, corrected for its start, as TensorBoard does it. Gaps stay gaps.
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

function nearestIndex(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

class LineChart {
  constructor(place, data) {
    this.place = place;
    this.data = data;
    this.zoomX = this.zoomY = null;
    this.log = data.log;
    this.weight = data.smoothing;
    this.hidden = new Set();
    this.addTools();
    this.svg = drawn("svg", { tabindex: 0, role: "img", "aria-label": `${data.title}: chart, ${data.series.length} series` });
    this.legend = element("div", { className: "legend" });
    place.append(this.tools, this.svg, this.legend);
    this.addLegend();
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    redrawWithWidth(place, (width) => {
      this.width = width;
      this.draw();
    });
  }

  addTools() {
    this.tools = element("div", { className: "tools" });
    if (this.data.series.some((series) => series.smooth && series.x.length > 2)) {
      const slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.weight });
      const shown = element("output", { text: this.weight.toFixed(2) });
      slider.addEventListener("input", () => {
        this.weight = Number(slider.value);
        shown.textContent = this.weight.toFixed(2);
        this.draw();
      });
      this.tools.append(element("label", {}, "Smoothing", slider, shown));
    }
    this.logButton = element("button", { type: "button", "aria-pressed": this.log, text: "Log scale" });
    this.logButton.addEventListener("click", () => {
      this.log = !this.log;
      this.zoomY = null;
      this.logButton.setAttribute("aria-pressed", this.log);
      this.draw();
    });
    this.reset = element("button", { type: "button", className: "reset", text: "Reset zoom" });
    this.reset.addEventListener("click", () => this.zoom(null, null));
    this.tools.append(this.logButton, element("span", { className: "gap" }), this.reset);
  }

  addLegend() {
    this.data.series.forEach((series, index) => {
      const button = element("button", { type: "button", "aria-pressed": true, title: "Show or hide" }, swatch(series),
        element("span", { text: series.name }));
      button.addEventListener("click", () => {
        if (this.hidden.has(index)) this.hidden.delete(index);
        else this.hidden.add(index);
        button.setAttribute("aria-pressed", !this.hidden.has(index));
        this.draw();
      });
      this.legend.append(button);
    });
  }

  // Closer than this, neighbouring pixels would be the same number.
  static isTooClose(range) {
    return range !== null && !(range[1] - range[0] > 1e-9 * Math.max(Math.abs(range[0]), Math.abs(range[1])));
  }

  zoom(x, y) {
    if (LineChart.isTooClose(x) || LineChart.isTooClose(y)) return this.draw();
    this.zoomX = x;
    this.zoomY = y;
    this.draw();
  }

  // The lines to draw, with smoothed values.
  lines() {
    return this.data.series.filter((_, index) => !this.hidden.has(index)).map((series) => ({
      ...series, raw: series.y, y: series.smooth ? smoothed(series.y, this.weight) : series.y,
      isSmoothed: series.smooth && this.weight > 0,
    }));
  }

  ranges(lines) {
    const xs = lines.flatMap((line) => (line.x.length ? [line.x[0], line.x[line.x.length - 1]] : []));
    let [left, right] = this.zoomX || [Math.min(...xs), Math.max(...xs)];
    if (!xs.length) [left, right] = [0, 1];
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    let low = Infinity, high = -Infinity, dropped = 0;
    for (const line of lines) {
      for (const values of [line.raw, line.y, line.low, line.high]) {
        if (!values) continue;
        values.forEach((value, i) => {
          if (value === null || line.x[i] < left || line.x[i] > right) return;
          if (this.log && value <= 0) {
            if (values === line.raw) ++dropped;
            return;
          }
          low = Math.min(low, value);
          high = Math.max(high, value);
        });
      }
    }
    if (low > high) [low, high] = this.log ? [0.1, 1] : [0, 1];
    if (this.zoomY) {
      [low, high] = this.zoomY;
    } else if (this.log) {
      const margin = Math.max((high / low) ** 0.04, 1.0001);
      [low, high] = [low / margin, high * margin];
    } else {
      const margin = high > low ? 0.05 * (high - low) : Math.abs(high) * 0.05 || 1;
      if (this.data.fromZero && !this.zoomX && low >= 0) [low, high] = [0, high + margin];
      else [low, high] = [low - margin, high + margin];
    }
    return { left, right, low, high, dropped };
  }

  draw() {
    const { width, svg } = this;
    if (!width) return;
    const height = kChart.height;
    const lines = this.lines();
    const range = this.ranges(lines);
    this.x = new Scale(range.left, range.right, kChart.left, width - kChart.right, false);
    this.y = new Scale(range.low, range.high, height - kChart.bottom, kChart.top, this.log);
    this.drawnLines = lines;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    // For whoever looks at the page with a program.
    svg.dataset.x = `${range.left},${range.right}`;
    svg.dataset.y = `${range.low},${range.high}`;
    this.reset.style.visibility = this.zoomX || this.zoomY ? "visible" : "hidden";
    this.drawAxes(range);
    const clip = drawn("clipPath", { id: `${this.place.id}-clip` });
    clip.append(drawn("rect", { x: kChart.left, y: kChart.top, width: Math.max(0, width - kChart.left - kChart.right),
      height: height - kChart.top - kChart.bottom }));
    const inside = drawn("g", { "clip-path": `url(#${clip.id})` });
    for (const line of lines) this.drawLine(inside, line);
    this.marks = drawn("g");
    svg.append(clip, inside, this.marks);
    this.addSurface();
  }

  drawAxes(range) {
    const { svg, x, y, width } = this;
    const bottom = kChart.height - kChart.bottom;
    const up = y.ticks(5), across = x.ticks(Math.max(2, Math.floor(width / 110)));
    for (const tick of up.ticks) {
      const place = y.place(tick);
      svg.append(drawn("line", { class: "gridline", x1: kChart.left, x2: width - kChart.right, y1: place, y2: place }),
        drawn("text", { x: kChart.left - 8, y: place + 4, "text-anchor": "end" }, tickText(tick, up.step)));
    }
    svg.append(drawn("line", { class: "axisline", x1: kChart.left, x2: width - kChart.right, y1: bottom, y2: bottom }));
    for (const tick of across.ticks) {
      svg.append(drawn("text", { x: x.place(tick), y: bottom + 17, "text-anchor": "middle" }, tickText(tick, across.step)));
    }
    const below = range.dropped ? `${this.data.xLabel} (${range.dropped} values that are not above 0 are hidden)` : this.data.xLabel;
    svg.append(drawn("text", { x: (kChart.left + width - kChart.right) / 2, y: bottom + 34, "text-anchor": "middle" }, below));
    const side = drawn("text", { transform: `translate(13 ${(kChart.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.data.yLabel);
    svg.append(side);
  }

  path(xs, ys) {
    let text = "", pen = false;
    for (let i = 0; i < xs.length; ++i) {
      const value = ys[i];
      if (value === null || (this.log && value <= 0)) {
        pen = false;
        continue;
      }
      text += `${pen ? "L" : "M"}${this.x.place(xs[i]).toFixed(1)} ${this.y.place(value).toFixed(1)}`;
      // A point between two gaps is a dot, because the line has round ends.
      if (!pen && (i + 1 === xs.length || ys[i + 1] === null)) text += "h0.01";
      pen = true;
    }
    return text;
  }

  drawLine(inside, line) {
    const colour = colourOf(line.colour);
    if (line.low) {
      const shape = drawn("path", { class: "band", d: this.band(line) });
      shape.style.fill = colour;
      inside.append(shape);
    }
    const curve = (ys, name) => {
      const node = drawn("path", { class: name, d: this.path(line.x, ys) });
      node.style.stroke = colour;
      if (line.dashed) node.style.strokeDasharray = "5 4";
      inside.append(node);
    };
    if (line.isSmoothed) curve(line.raw, "curve raw");
    curve(line.y, "curve");
    if (line.dots && line.x.length <= 400) {
      line.y.forEach((value, i) => {
        if (value !== null && !(this.log && value <= 0)) this.addDot(inside, line, i, 3.6);
      });
    }
  }

  band(line) {
    const there = line.x.map((_, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null && !(this.log && line.low[i] <= 0));
    if (!there.length) return "";
    const point = (i, ys) => `${this.x.place(line.x[i]).toFixed(1)} ${this.y.place(ys[i]).toFixed(1)}`;
    return `M${there.map((i) => point(i, line.high)).join("L")}L${there.reverse().map((i) => point(i, line.low)).join("L")}Z`;
  }

  addDot(group, line, i, radius) {
    const dot = drawn("circle", { class: "dot", r: radius, cx: this.x.place(line.x[i]), cy: this.y.place(line.y[i]) });
    dot.style.fill = colourOf(line.colour);
    group.append(dot);
  }

  // Pixels of the chart under the pointer, inside the axes.
  where(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    return {
      x: Math.min(Math.max((event.clientX - box.left) * scale, kChart.left), this.width - kChart.right),
      y: Math.min(Math.max((event.clientY - box.top) * scale, kChart.top), kChart.height - kChart.bottom),
    };
  }

  addSurface() {
    const surface = drawn("rect", { class: "surface", x: kChart.left, y: kChart.top,
      width: Math.max(0, this.width - kChart.left - kChart.right), height: kChart.height - kChart.top - kChart.bottom });
    surface.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      surface.setPointerCapture(event.pointerId);
      this.from = this.where(event);
    });
    surface.addEventListener("pointermove", (event) => {
      const at = this.where(event);
      if (this.from) this.select(this.from, at);
      else this.hover(this.x.value(at.x), event.clientX, event.clientY);
    });
    surface.addEventListener("pointerup", (event) => {
      const from = this.from;
      this.from = null;
      if (from) this.zoomTo(this.selected(from, this.where(event)));
    });
    surface.addEventListener("pointercancel", () => {
      this.from = null;
      this.marks.replaceChildren();
    });
    surface.addEventListener("pointerleave", () => this.leave());
    surface.addEventListener("dblclick", () => this.zoom(null, null));
    this.svg.append(surface);
  }

  // A drag along one axis takes the whole of the other one.
  selected(from, to) {
    const wide = Math.abs(to.x - from.x), high = Math.abs(to.y - from.y);
    const alongX = wide >= kChart.leastDrag && (high < kChart.bothAxes || wide >= kChart.bothAxes);
    const alongY = high >= kChart.bothAxes;
    return {
      x: alongX ? [Math.min(from.x, to.x), Math.max(from.x, to.x)] : null,
      y: alongY ? [Math.min(from.y, to.y), Math.max(from.y, to.y)] : null,
    };
  }

  select(from, to) {
    tip.hide();
    this.marks.replaceChildren();
    const box = this.selected(from, to);
    if (!box.x && !box.y) return;
    const [left, right] = box.x || [kChart.left, this.width - kChart.right];
    const [top, bottom] = box.y || [kChart.top, kChart.height - kChart.bottom];
    this.marks.append(drawn("rect", { class: "selection", x: left, y: top, width: right - left, height: bottom - top }));
  }

  zoomTo(box) {
    if (!box.x && !box.y) return;
    const x = box.x ? box.x.map((pixel) => this.x.value(pixel)) : this.zoomX;
    const y = box.y ? [this.y.value(box.y[1]), this.y.value(box.y[0])] : this.zoomY;
    this.zoom(x, y);
  }

  hover(x, clientX, clientY) {
    const near = this.drawnLines.filter((line) => line.x.length).map((line) => ({ line, i: nearestIndex(line.x, x) }));
    this.marks.replaceChildren();
    if (!near.length) return tip.hide();
    const distance = ({ line, i }) => Math.abs(line.x[i] - x);
    const nearest = near.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    const at = nearest.line.x[nearest.i];
    const place = this.x.place(at);
    this.hovered = at;
    this.marks.append(drawn("line", { class: "cross", x1: place, x2: place, y1: kChart.top, y2: kChart.height - kChart.bottom }));
    const rows = [];
    for (const { line, i } of near) {
      if (Math.abs(this.x.place(line.x[i]) - place) > 8) continue;
      const value = line.y[i];
      if (value !== null && !(this.log && value <= 0)) this.addDot(this.marks, line, i, 4.5);
      const extra = line.isSmoothed ? `(${valueText(line.raw[i])})` : line.low && line.low[i] !== line.high[i]
        ? `(${valueText(line.low[i])} to ${valueText(line.high[i])})` : "";
      rows.push({ series: line, name: line.name, value: valueText(value), extra, order: value ?? -Infinity });
    }
    rows.sort((a, b) => b.order - a.order);
    tip.show(clientX, clientY, `${this.data.xLabel} ${valueText(at)}`, rows);
  }

  leave() {
    if (this.from) return;
    this.marks.replaceChildren();
    tip.hide();
  }

  // The values of the next point, for those who use no mouse.
  onKey(event) {
    if (event.key === "Escape") {
      this.zoom(null, null);
      return tip.hide();
    }
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    const xs = [...new Set(this.drawnLines.flatMap((line) => line.x))].filter((x) => x >= this.x.low && x <= this.x.high).sort((a, b) => a - b);
    if (!xs.length) return;
    const now = this.hovered === undefined ? -1 : nearestIndex(xs, this.hovered);
    const next = xs[Math.min(xs.length - 1, Math.max(0, now + (event.key === "ArrowRight" ? 1 : -1)))];
    const box = this.svg.getBoundingClientRect();
    this.hover(next, box.left + (this.x.place(next) * box.width) / this.width, box.top + box.height / 2);
  }
}

function drawChart(place, data) {
  place.chart = new LineChart(place, data);
}
