// Draws the charts of a page: the panel of panel.py, and figures that Optuna made.
const BAND_RUNS = 3, LISTED_RUNS = 40, GRID = 200, FEW_POINTS = 30, NARROW = 640;
const quiet = { showSendToCloud: false, plotlyServerURL: "", displaylogo: false }; // sends nothing
const config = { ...quiet, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
const source = document.querySelector("script.panel"), chart = source?.previousSibling;
const data = source && JSON.parse(source.textContent), state = {}, off = new Set();

function themed(layout) { // in the colours of the page, which are others in a dark browser
  const { color, backgroundColor: paper_bgcolor } = getComputedStyle(document.body);
  const axis = { gridcolor: "#8884", zerolinecolor: "#8884", automargin: true };
  return { ...layout, template: { layout: {
    paper_bgcolor, plot_bgcolor: paper_bgcolor, font: { color }, xaxis: axis, yaxis: axis,
    legend: innerWidth < NARROW ? { orientation: "h", y: -0.25, x: 0 } : {},
    margin: { l: 60, r: 10, t: 40, b: 50 },
  } } };
}

function curve(run) { // the points that have both numbers, which are 32-bit floats in base 64
  const [x, y] = [state.x, state.y].map(name => new Float32Array(
    Uint8Array.from(atob(data.columns[run][name] ?? ""), letter => letter.charCodeAt(0)).buffer));
  const known = [...x.keys()].filter(k => isFinite(x[k]) && isFinite(y[k]));
  return { run, x: known.map(k => x[k]), y: known.map(k => y[k]) };
}

function meanOf(curves) { // [x, mean, half of the 95% interval] where all curves have a value
  const start = Math.max(...curves.map(c => c.x[0])), n = curves.length;
  const end = Math.min(...curves.map(c => c.x.at(-1)));
  return Array.from({ length: start <= end ? GRID + 1 : 0 }, (_, i) => {
    const x = start + (end - start) * i / GRID;
    const at = curves.map(c => {
      const right = c.x.findIndex(each => each >= x), left = Math.max(0, right - 1);
      return c.y[left] + (c.y[right] - c.y[left]) * ((x - c.x[left]) / (c.x[right] - c.x[left]) || 0);
    });
    const mean = at.reduce((sum, y) => sum + y) / n;
    const spread = Math.sqrt(at.reduce((sum, y) => sum + (y - mean) ** 2, 0) / (n - 1) / n);
    return [x, mean, data.student[n] * spread];
  });
}

function tracesOf(value, number, seen) { // of the runs with one value of the key that colours
  const color = data.colors[number % data.colors.length], { by, task } = state, traces = [];
  const dash = ["solid", "dash", "dot", "dashdot"][Math.floor(number / data.colors.length) % 4];
  const keys = Object.keys(data.lines).filter(key => key !== by), repeats = {};
  data.keys[by].forEach((of, run) => {
    const words = keys.map(key => data.lines[key] + data.keys[key][run]).join(", ");
    if (of === value && data.tasks[run] === task) (repeats[words] ??= []).push(curve(run));
  });
  const show = (name, more, interval = "") => traces.push({
    name, legendgroup: value, legendgrouptitle: { text: by === "run" ? "" : `${by} = ${value}` },
    hovertemplate: `${value}: ${name}<br>%{y:.5~g}${interval} at %{x:,.6~g}<extra></extra>`,
    mode: "lines", ...more,
  });
  for (const [words, curves] of Object.entries(repeats)) {
    const on = curves.filter(c => c.x.length && !off.has(c.run)), several = curves.length > 1;
    const points = several && on.length > 1 ? meanOf(on) : [], band = on.length >= BAND_RUNS;
    const mean = { x: points.map(p => p[0]), y: points.map(p => p[1]), meta: curves.map(c => c.run) };
    seen.push(...on.flatMap(c => c.y));
    for (const sign of band ? [-1, 1] : [])
      show("", {
        ...mean, y: points.map(p => p[1] + sign * p[2]), line: { width: 0 }, showlegend: false,
        hoverinfo: "skip", fill: sign > 0 ? "tonexty" : "none", fillcolor: `${color}33`,
      });
    if (several)
      show([words, `mean of ${on.length}`].filter(Boolean).join(", "), {
        ...mean, customdata: points.map(p => p[2]), line: { color, dash, width: 3 },
        visible: on.length ? true : "legendonly",
      }, band ? " ± %{customdata:.3~g}" : "");
    for (const { run, x, y } of curves) {
      const seed = by === "seed" ? "" : `seed ${data.keys.seed[run]}`;
      show([words, seed, data.states[run]].filter(Boolean).join(", "), {
        x, y, meta: [run], visible: off.has(run) ? "legendonly" : true,
        mode: x.length > FEW_POINTS ? "lines" : "lines+markers", marker: { size: 5 },
        line: { color, dash, width: several ? 1.2 : 2 }, opacity: several ? 0.5 : 1,
        showlegend: !several || data.columns.length <= LISTED_RUNS,
      });
    }
  }
  return traces;
}

function draw() {
  const values = [...new Set(data.keys[state.by])].sort((a, b) => a - b || a.localeCompare(b));
  const seen = [], traces = values.flatMap((value, i) => tracesOf(value, i, seen));
  const low = Math.min(...seen), high = Math.max(...seen), more = 0.06 * (high - low) || 1;
  Plotly.react(chart, traces, themed({
    xaxis: { title: { text: data.clocks[state.x] } }, uirevision: state.task + state.x + state.y,
    yaxis: { title: { text: state.y }, range: seen.length ? [low - more, high + more] : null },
    legend: { traceorder: "grouped", itemsizing: "constant" }, hovermode: "closest",
  }), config);
  const hidden = [...off].map(run => data.keys.run[run]).join("\n");
  location.replace(`#${new URLSearchParams({ ...state, off: hidden })}`); // kept by a reload
}

function toggle(runs, alone) { // shows or hides runs; `alone` hides all others, or shows all again
  const all = [...data.columns.keys()].filter(run => data.tasks[run] === state.task);
  const turned = all.filter(run => runs.includes(run) !== alone);
  const hide = turned.some(run => !off.has(run));
  for (const run of alone ? all : turned) off.delete(run);
  if (hide) turned.forEach(run => off.add(run));
  draw();
  return false; // Plotly does nothing more
}

function start() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const hidden = asked.get("off")?.split("\n") ?? data.off;
  data.keys.run.forEach((name, run) => hidden.includes(name) && off.add(run));
  for (const [id, options] of Object.entries(data.options)) {
    const choice = document.getElementById(id);
    for (const value of options) choice.add(new Option(data.clocks[value] ?? value, value));
    state[id] = [asked.get(id), data.first[id], options[0]].find(of => options.includes(of));
    choice.value = state[id];
    choice.parentNode.hidden = options.length < 2;
    choice.onchange = () => { state[id] = choice.value; draw(); };
  }
  drawAll();
  for (const [kind, alone] of [["click", false], ["doubleclick", true]])
    chart.on(`plotly_legend${kind}`, of => toggle(of.fullData[of.expandedIndex].meta, alone));
}

function drawAll() {
  if (data) draw();
  for (const figure of document.querySelectorAll("script.figure")) {
    const { data: traces, layout } = JSON.parse(figure.textContent);
    for (const { marker } of traces) if (marker?.colorbar) marker.showscale = innerWidth >= NARROW;
    Plotly.react(figure.previousSibling, traces, themed({ ...layout, title: null }), config);
  }
}

data ? start() : drawAll();
matchMedia("(prefers-color-scheme: dark)").onchange = drawAll;
const reload_s = document.body.dataset.reload; // of a page that is written again
if (reload_s) setTimeout(() => location.reload(), 1000 * reload_s);
