// Charts of the page. Functions only: page.js runs before this text, and uses them.

// Plot the kernels that multiply: below the roofs of a GPU, or operations over bytes for a CPU.
function chart(here) {
  const dots = here.kernels.flatMap((one) => Object.entries(one.costs)
    .map(([sample, cost]) => ({ name: one.name, sample, ...cost }))).filter((one) => one.flops > 0 && one.bytes > 0);
  if (!dots.length) return [make("p", { class: "dim" }, "No kernel has bytes and operations of known size.")];
  return here.roof ? roofline(dots.filter((one) => one.seconds > 0), here.roof) : scatter(dots);
}

function roofline(dots, roof) {
  const peaks = new Map();  // from the rate to the instructions that reach it, the fastest first
  for (const [name, peak] of Object.entries(roof.peaks).sort((a, b) => b[1] - a[1])) peaks.set(peak, [...(peaks.get(peak) || []), name]);
  const ridges = [...peaks.keys()].map((peak) => peak / roof.bandwidth);
  const rate = (one) => one.flops / one.seconds, density = (one) => one.flops / one.bytes;
  const plot = axes([...dots.map(density), ...ridges], [...dots.map(rate), ...peaks.keys()],
    "operations per byte moved", (value) => `${flops(value)}/s`, "estimated operations per second of each kernel, below the roofs of the GPU");
  const first = 10 ** plot.x0, steep = Math.max(first, 10 ** plot.y0 / roof.bandwidth), top = Math.max(...ridges);
  plot.line("ridge", steep, roof.bandwidth * steep, top, roof.bandwidth * top);
  let free = 0;
  const said = [...peaks].map(([peak, names], number) => {
    const letter = String.fromCharCode(65 + number);
    plot.line("ridge", peak / roof.bandwidth, peak, 10 ** plot.x1, peak);
    free = Math.max(free, plot.y(peak) + 4);  // letters of close roofs stand below one another
    plot.svg.append(shape("text", { class: "roof", x: plot.right + 5, y: free }, letter));
    free += 12;
    return make("li", {}, `${letter}: ${flops(peak)}/s, ${names.join(", ")}`);
  });
  for (const one of dots) plot.dot(density(one), rate(one), one, `${flops(rate(one))}/s, ${density(one).toFixed(1)} operations per byte`);
  return [plot.svg, make("p", { class: "dim" },
    `A dot is a kernel, at the time that mxc estimates for it. Dashed: what ${roof.product} reaches at most, which is ${flops(roof.bandwidth)}B/s of its memory times the operations per byte, up to the rate of the matrix instruction:`),
  make("ul", { id: "roofs", class: "dim" }, ...said)];
}

function scatter(dots) {
  const plot = axes(dots.map((one) => one.bytes), dots.map((one) => one.flops), "bytes moved by all calls",
    (value) => flops(value), "operations over bytes moved of each kernel");
  for (const one of dots) plot.dot(one.bytes, one.flops, one, `${bytes(one.bytes)}, ${flops(one.flops)} operations, ${(one.flops / one.bytes).toFixed(1)} per byte`);
  return [plot.svg, make("p", { class: "dim", id: "no-roof" },
    "A dot is a kernel; up: operations of all its calls. There is no roof, because the peak rates of a CPU and its memory are not known when a program is compiled; mxc bench --profile measures the rates of each kernel.")];
}

// Axes with logarithmic scales, as wide as the page up to 720 pixels.
function axes(xs, ys, below, unit, label) {
  const main = document.getElementById("main"), style = getComputedStyle(main);
  const room = main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const width = Math.max(280, Math.min(720, room)), height = 320, left = 64, right = width - 24, base = 276;
  const span = (values) => [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)) + 1e-9)];
  const [x0, x1] = span(xs), [y0, y1] = span(ys);
  const x = (value) => left + (Math.log10(value) - x0) / Math.max(1, x1 - x0) * (right - left);
  const y = (value) => base - (Math.log10(value) - y0) / Math.max(1, y1 - y0) * (base - 16);
  const svg = shape("svg", { id: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const line = (name, ax, ay, bx, by) => svg.append(shape("line", { class: name, x1: x(ax), y1: y(ay), x2: x(bx), y2: y(by) }));
  const number = (at) => (at < 0 ? `${10 ** at}` : flops(10 ** at));
  const dense = Math.ceil(40 * (x1 - x0) / (right - left));  // a label needs 40 pixels
  for (let at = x0; at <= x1; at += 1) {
    line("axis", 10 ** at, 10 ** y0, 10 ** at, 10 ** y1);
    if ((at - x0) % dense === 0) svg.append(shape("text", { x: x(10 ** at), y: base + 20, "text-anchor": "middle" }, number(at)));
  }
  for (let at = y0; at <= y1; at += 1) {
    line("axis", 10 ** x0, 10 ** at, 10 ** x1, 10 ** at);
    svg.append(shape("text", { x: left - 6, y: y(10 ** at) + 4, "text-anchor": "end" }, unit(10 ** at)));
  }
  svg.append(shape("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, below));
  const dot = (ax, ay, one, said) => svg.append(shape("circle", { cx: x(ax), cy: y(ay), r: 5, onclick: () => show("Kernels", one.name) },
    shape("title", {}, `${one.name}${one.sample ? `, ${one.sample}` : ""}: ${said}`)));
  return { svg, x0, x1, y0, y1, y, right, line, dot };
}

// Histogram of the E8M0 scales 2^(byte - 127); 255 is NaN.
function histogram(scales) {
  const first = scales[0][0], last = scales[scales.length - 1][0];
  const most = Math.max(...scales.map(([, count]) => count)), step = Math.min(8, 160 / (last - first + 1));
  const svg = shape("svg", { viewBox: "0 0 168 34", width: 168, height: 34, role: "img", "aria-label": "histogram of scales" });
  for (const [byte, count] of scales) {
    const high = Math.max(1, 20 * count / most);
    svg.append(shape("rect", { x: (byte - first) * step, y: 20 - high, width: Math.max(0.5, step - 0.5), height: high, fill: byte === 255 ? "var(--red)" : "var(--blue)" },
      shape("title", {}, `${byte === 255 ? "NaN" : `2^${byte - 127}`}: ${count}`)));
  }
  const exponent = (byte) => (byte === 255 ? "NaN" : String(byte - 127));
  svg.append(shape("text", { x: 0, y: 32 }, exponent(first)));
  if (last > first) svg.append(shape("text", { x: (last - first + 1) * step, y: 32, "text-anchor": "end" }, exponent(last)));
  return svg;
}
