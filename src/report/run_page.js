// Reads values off the curves of a page of `tandem view`: under the pointer, and with the arrow keys. Curves and
// numbers are there without it. It makes no markup of any text.
"use strict";

const NAMESPACE = "http://www.w3.org/2000/svg";

function draw(parent, name, attributes) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return parent.appendChild(element);
}

function numberText(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

function clockText(seconds) {
  const two = (n) => String(n).padStart(2, "0");
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// The points of a path made of M and L.
function pointsOf(path) {
  return [...path.getAttribute("d").matchAll(/[ML](\S+) ([^\sML]+)/g)].map((match) => [Number(match[1]), Number(match[2])]);
}

function follow(chart) {
  const frame = Object.fromEntries(Object.entries(chart.dataset).map(([key, value]) => [key, Number(value)]));
  const output = chart.parentElement.querySelector("output");
  let marks = null, at = null;  // what is drawn over the chart, and the place that is read

  function shown() {  // the group of the axis that is chosen
    return [...chart.querySelectorAll("g[data-axis]")].find((group) => getComputedStyle(group).display !== "none");
  }

  function leave() {
    if (marks) marks.remove();
    marks = at = null;
    output.textContent = "";
  }

  function read(x) {
    leave();
    const group = shown();
    const lines = [...group.querySelectorAll(".line")].map((path) => ({ label: path.dataset.label, points: pointsOf(path) }))
      .filter((line) => line.points.length > 0);
    if (lines.length === 0) return;
    const nearest = lines.map((line) => line.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)));
    at = nearest.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))[0];
    marks = draw(chart, "g", {});
    draw(marks, "path", { class: "cursor", d: `M${at} ${frame.top}V${frame.bottom}` });
    const begin = Number(group.dataset.begin), end = Number(group.dataset.end);
    const place = begin + ((at - frame.left) / (frame.right - frame.left)) * (end - begin);
    const axis = group.dataset.axis;
    let text = axis === "time" ? `at ${clockText(place)}` : `${axis} ${numberText(axis === "tokens" ? place : Math.round(place * 100) / 100)}`;
    lines.forEach((line, i) => {
      const [px, py] = nearest[i];
      if (Math.abs(px - at) > 12) return;  // this curve has nothing here
      draw(marks, "circle", { class: "reading", cx: px, cy: py, r: 4 });
      const value = frame.low + ((frame.bottom - py) / (frame.bottom - frame.top)) * (frame.high - frame.low);
      text += `   ${line.label}: ${numberText(value)}`;
    });
    output.textContent = text;
  }

  function step(direction) {
    const places = [...new Set([...shown().querySelectorAll(".line")].flatMap((path) => pointsOf(path).map((p) => p[0])))]
      .sort((a, b) => a - b);
    if (places.length === 0) return;
    const now = at === null ? (direction > 0 ? -1 : places.length) : places.indexOf(at);
    read(places[Math.min(places.length - 1, Math.max(0, now + direction))]);
  }

  chart.tabIndex = 0;
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    read(((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width);
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      step(event.key === "ArrowRight" ? 1 : -1);
      event.preventDefault();
    } else if (event.key === "Escape") {
      leave();
    }
  });
}

document.querySelectorAll(".line-chart svg.chart").forEach(follow);
