// A small line chart over the last two minutes, or as long as anybody has been looking.

import { el, svg } from "./dom.js";

const WIDTH = 300; // of the drawing; the page stretches it
const HEIGHT = 76;
const SHORTEST_S = 20;

export class Chart {
  // series: [{key, label, filled}]; the first one is the headline. unit is for the text alternative.
  constructor({ title, series, unit, whole = false }) {
    this.series = series;
    this.unit = unit;
    this.format = (value) => (whole || value >= 100 ? Math.round(value).toLocaleString() : value.toFixed(1));
    this.title = title;
    this.values = series.map(() => el("b", {}, "0"));
    this.paths = series.map(({ key }) => svg("path", { class: `line ${key}`, "vector-effect": "non-scaling-stroke" }));
    this.areas = series.map(({ key, filled }) => (filled ? svg("path", { class: `area ${key}` }) : null));
    this.top = el("span", { class: "top-value" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, ...this.areas.filter(Boolean), ...this.paths);
    const labels = series.map(({ key, label }, i) => el("span", { class: `key ${key}` }, label, " ", this.values[i]));
    this.node = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, title), labels), el("div", { class: "plot" }, this.drawing, this.top));
  }

  update(samples) {
    const end = samples.at(-1).t;
    const highest = Math.max(...samples.flatMap((s) => this.series.map(({ key }) => s[key])));
    const scale = nice(highest);
    const span = Math.max(SHORTEST_S, end - samples[0].t);
    const x = (t) => WIDTH * (1 - (end - t) / span);
    const y = (value) => HEIGHT - 2 - (HEIGHT - 8) * (value / scale);
    this.series.forEach(({ key }, i) => {
      const points = samples.map((s) => `${x(s.t).toFixed(1)},${y(s[key]).toFixed(1)}`);
      const line = `M${points.join("L")}`;
      this.paths[i].setAttribute("d", line);
      this.areas[i]?.setAttribute("d", `${line}L${WIDTH},${HEIGHT}L${x(samples[0].t).toFixed(1)},${HEIGHT}Z`);
      this.values[i].textContent = this.format(samples.at(-1)[key]);
    });
    this.top.textContent = this.format(scale);
    const words = this.series.map(({ key, label }) => `${label} ${this.format(samples.at(-1)[key])}`).join(", ");
    this.drawing.setAttribute("aria-label", `${this.title}: ${words} ${this.unit}; at most ${this.format(highest)} in the last two minutes`);
  }
}

// The next 1, 2 or 5 times a power of ten.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((top) => top >= value);
}
