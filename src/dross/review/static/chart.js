// Per-seed dots before and after, and the differences with their intervals.

import { h, s } from "./dom.js";

const WIDTH = 640;
const LEFT = 150;
const RIGHT = 20;

/** A linear scale with a little air at both ends. */
function scale(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const air = (high - low || Math.abs(high) || 1) * 0.08;
  return (value) => LEFT + ((value - low + air) / (high - low + 2 * air)) * (WIDTH - LEFT - RIGHT);
}

const label = (text, y) => s("text", { x: LEFT - 12, y: y + 4, class: "chart-label", "text-anchor": "end" }, text);

function axis(at, values, y, format) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  return [low, (low + high) / 2, high].map((value, place) => s("text", { x: at(value), y, class: "chart-tick", "text-anchor": ["start", "middle", "end"][place] }, format(value)));
}

export function chart(name, metric, shownValue, shownChange) {
  const dots = [["before", metric.before], ["after", metric.after], ["control", metric.random]].filter(([, values]) => values?.length);
  const all = dots.flatMap(([, values]) => values);
  const at = scale(all);
  const rows = dots.map(([title, values], row) => {
    const y = 24 + 34 * row;
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return [label(title, y), s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "chart-rail" }),
      values.map((value) => s("circle", { cx: at(value), cy: y, r: 4.5, class: `dot ${title === "control" ? "random" : title}` })),
      s("line", { x1: at(mean), x2: at(mean), y1: y - 11, y2: y + 11, class: "chart-mean" })];
  });
  const bottom = 34 * dots.length + 24;
  return h("figure", {},
    s("svg", { viewBox: `0 0 ${WIDTH} ${bottom}`, role: "img", "aria-label": `Test ${name} of every seed before and after the decisions, and of the random control. The table has the numbers.` }, rows, axis(at, all, bottom - 6, (value) => shownValue(name, value))),
    differences(name, metric, shownChange),
    h("figcaption", {}, "Above: one dot per seed, and a line at the mean. Below: the change with its 95 % confidence interval; left of the dashed line is better."));
}

function differences(name, metric, shownChange) {
  const rows = [["after", metric.difference, metric.interval, "after"], ["control", metric.random_difference, metric.random_interval, "random"]].filter(([, value, interval]) => typeof value === "number" && interval);
  if (!rows.length) return null;
  const values = [0, ...rows.flatMap(([, value, interval]) => [value, ...interval])];
  const at = scale(values);
  const bottom = 34 * rows.length + 24;
  return s("svg", { viewBox: `0 0 ${WIDTH} ${bottom}`, role: "img", "aria-label": rows.map(([title, value, [low, high]]) => `${title}: ${shownChange(name, value)}, from ${shownChange(name, low)} to ${shownChange(name, high)}`).join("; ") },
    s("line", { x1: at(0), x2: at(0), y1: 4, y2: bottom - 20, class: "chart-zero" }),
    rows.map(([title, value, [low, high], kind], row) => {
      const y = 22 + 34 * row;
      return [label(title, y), s("line", { x1: at(low), x2: at(high), y1: y, y2: y, class: `interval ${kind}` }),
        [low, high].map((end) => s("line", { x1: at(end), x2: at(end), y1: y - 6, y2: y + 6, class: `interval ${kind}` })), s("circle", { cx: at(value), cy: y, r: 5, class: `dot solid ${kind}` })];
    }),
    axis(at, values, bottom - 4, (value) => shownChange(name, value)));
}
