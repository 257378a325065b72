"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 560px)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const state = { axis: data.axes[0].key, hidden: new Set(), printing: false };
  document.documentElement.classList.add("scripted");

  const axisNow = () => data.axes.find((axis) => axis.key === state.axis);
  // plotly reads a little HTML in its texts; labels come from a file and are plain text.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const theme = () => (dark.matches && !state.printing ? "dark" : "light");
  const ink = {
    light: { text: "#1b242d", faint: "#55606c", grid: "#e6e9ed", line: "#aab4bf", box: "#ffffff" },
    dark: { text: "#e8ebef", faint: "#a3adb9", grid: "#2a313a", line: "#55606c", box: "#1a1f26" },
  };
  const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;

  function traces(chart) {
    const bands = [], lines = [], band = data.instances > 1;
    data.methods.forEach((method, index) => {
      const line = chart.lines[index], x = line.x[state.axis], colour = method[theme()];
      const behind = data.crowded && method.variant; // the first entry of its method has the same colour
      const shared = { legendgroup: String(index), visible: !state.hidden.has(index), meta: index };
      const seen = x.map((_, i) => i).filter((i) => x[i] !== null && line.q75[i] !== null && line.median[i] !== null);
      const floor = chart.log && chart.window ? chart.window[0] / 10 : null;
      const low = (i) => (line.q25[i] === null ? floor : line.q25[i]);
      if (band && !behind && seen.length > 1) {
        bands.push({
          ...shared, type: "scatter", mode: "lines", fill: "toself", hoverinfo: "skip", line: { width: 0 },
          fillcolor: faded(colour, theme() === "dark" ? 0.17 : 0.13),
          x: [...seen.map((i) => x[i]), ...seen.slice().reverse().map((i) => x[i])],
          y: [...seen.map((i) => line.q75[i]), ...seen.slice().reverse().map(low)],
        });
      }
      const unit = axisNow().unit, name = unit || axisNow().name, [fine, rough] = chart.log ? [".2e", ".1e"] : [".4~g", ".3~g"];
      lines.push({
        ...shared, type: "scatter", mode: behind ? "lines" : "lines+markers", name: plain(method.label), x, y: line.median,
        customdata: line.q25.map((low, i) => [low, line.q75[i]]),
        line: { color: colour, width: behind ? 1.25 : 2, dash: method.dash.length ? method.dash.map((d) => `${d}px`).join(",") : "solid" },
        marker: { symbol: method.marker, size: 7, color: colour, maxdisplayed: 11, line: { width: 1, color: ink[theme()].box } },
        hovertemplate: `<b>%{fullData.name}</b><br>%{x:${unit ? ".3s" : ",.4~g"}}${unit ? "" : " "}${name}<br>${chart.name} %{y:${fine}}` +
          (band ? `<br>quartiles %{customdata[0]:${rough}} to %{customdata[1]:${rough}}` : "") + "<extra></extra>",
      });
    });
    return [...bands, ...lines];
  }

  function layout(chart) {
    const c = ink[theme()], axis = axisNow(), small = narrow.matches && !state.printing;
    const font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif", size: small ? 12 : 13, color: c.faint };
    const shared = { gridcolor: c.grid, linecolor: c.line, zeroline: false, showline: true, ticks: "outside", tickcolor: c.line, ticklen: 4, automargin: true };
    const log = (limits) => limits && limits.map(Math.log10);
    return {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
      height: state.printing ? 330 : small ? (data.crowded ? 380 : 300) : data.crowded ? 560 : 400, ...(state.printing ? { width: 660, autosize: false } : {}),
      margin: { l: small ? 48 : 64, r: 12, t: 8, b: 52 },
      dragmode: coarse.matches ? false : "zoom", hovermode: "closest", uirevision: state.axis,
      hoverlabel: { bgcolor: c.box, bordercolor: c.line, font: { ...font, color: c.text }, align: "left" },
      xaxis: {
        ...shared, type: "log", title: { text: axis.title, font: { ...font, color: c.text }, standoff: 10 },
        tickformat: "~s", ticksuffix: axis.unit, dtick: 1, minor: { ticks: "outside", ticklen: 2, tickcolor: c.line },
      },
      yaxis: {
        ...shared, type: chart.log ? "log" : "linear", exponentformat: "power", showexponent: "all", tickfont: { size: 11 }, // plotly draws powers larger
        ...(chart.log ? { nticks: small ? 6 : 9 } : {}), ...(chart.window ? { range: chart.log ? log(chart.window) : chart.window } : {}),
        title: { text: small ? "" : chart.title, font: { ...font, color: c.text }, standoff: 12 },
      },
    };
  }

  const config = { responsive: true, displaylogo: false, displayModeBar: false, showTips: false };
  const draw = () => data.charts.forEach((chart) => Plotly.react(`chart-${chart.key}`, traces(chart), layout(chart), config));

  function setAxis(axis) {
    state.axis = axis;
    document.querySelectorAll("input[data-axis]").forEach((input) => { input.checked = input.value === axis; });
    document.querySelectorAll("[data-panel]").forEach((panel) => { panel.classList.toggle("unselected", panel.dataset.panel !== axis); });
    draw();
  }

  document.querySelectorAll("input[data-axis]").forEach((input) => input.addEventListener("change", () => setAxis(input.value)));
  document.querySelectorAll("input[data-method]").forEach((input) => {
    input.checked = true; // a browser may remember an earlier visit
    input.addEventListener("change", () => {
      const index = Number(input.dataset.method);
      if (input.checked) state.hidden.delete(index); else state.hidden.add(index);
      draw();
    });
  });
  document.querySelectorAll("button[data-show]").forEach((button) => button.addEventListener("click", () => {
    document.querySelectorAll("input[data-method]").forEach((input) => {
      input.checked = button.dataset.show === "all";
      if (input.checked) state.hidden.delete(Number(input.dataset.method)); else state.hidden.add(Number(input.dataset.method));
    });
    draw();
  }));
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);

  // On paper: light, as wide as the page, everything unfolded.
  const folded = [];
  function print(on) {
    if (state.printing === on) return;
    state.printing = on;
    if (on) {
      document.querySelectorAll("details:not([open])").forEach((d) => { folded.push(d); d.open = true; });
    } else {
      folded.splice(0).forEach((d) => { d.open = false; });
    }
    draw();
  }
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  window.matchMedia("print").addEventListener("change", (event) => print(event.matches));

  setAxis(state.axis);
})();
