"use strict";
// Names come from records: they are set as text, or escaped where plotly reads markup.
(() => {
  const boards = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const shown = () => boards[at("board").value];
  const order = { column: -1, down: false };

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  // The first number of a cell decides where it stands; times are in seconds then. Cells without a number come last.
  function sortKey(cell) {
    const number = parseFloat(cell);
    if (Number.isNaN(number)) return null;
    return /\d ms$/.test(cell) ? number / 1000 : number;
  }

  function compare(a, b, down) {
    const [x, y] = [sortKey(a), sortKey(b)];
    if (x !== null && y !== null && x !== y) return down ? y - x : x - y;
    if ((x === null) !== (y === null)) return x === null ? 1 : -1;
    return down ? b.localeCompare(a) : a.localeCompare(b);
  }

  function fillTable(table, headers, rows, left) {
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    const body = table.createTBody();
    const show = () => {
      const sorted = [...rows];
      if (order.column >= 0) sorted.sort((one, other) => compare(one[order.column], other[order.column], order.down));
      body.replaceChildren();
      for (const cells of sorted) {
        const row = body.insertRow();
        cells.forEach((cell, column) => {
          const place = row.insertCell();
          if (column === left) place.className = "left";
          place.textContent = cell;
        });
      }
      [...head.cells].forEach((cell, column) => {
        const now = column !== order.column ? "none" : order.down ? "descending" : "ascending";
        cell.setAttribute("aria-sort", now);
      });
    };
    headers.forEach((header, column) => {
      const cell = element("th", undefined, { scope: "col" });
      if (column === left) cell.className = "left";
      const button = element("button", header, { type: "button" });
      button.addEventListener("click", () => {
        order.down = order.column === column && !order.down;
        order.column = column;
        show();
      });
      cell.append(button);
      head.append(cell);
    });
    show();
  }

  function draw(id, traces, xaxis, yaxis) {
    const style = getComputedStyle(document.body);
    const grid = style.getPropertyValue("--line");
    const axis = { gridcolor: grid, zerolinecolor: grid, automargin: true };
    const layout = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: style.color, size: 12 },
      margin: { l: 50, r: 10, t: 20, b: 45 }, hovermode: "closest", showlegend: false,
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis } };
    Plotly.react(at(id), traces, layout, { responsive: true, displayModeBar: false });
  }

  function errorBars(solvers) {
    return { type: "data", symmetric: false, thickness: 1, color: "#888",
      array: solvers.map((one) => (one.interval ? one.interval[1] - one.cost : 0)),
      arrayminus: solvers.map((one) => (one.interval ? one.cost - one.interval[0] : 0)) };
  }

  function drawCharts() {
    const { compared, base } = shown();
    at("charts").hidden = compared.length === 0;
    const names = compared.map((one) => escaped(one.solver));
    const costs = compared.map((one) => one.cost);
    const relative = { title: { text: `cost / cost of ${escaped(base)}` } };
    const marker = { size: 9, color: compared.map((one) => (one.front ? "#d95f02" : "#7570b3")) };
    at("ratios").style.height = `${110 + 24 * names.length}px`;
    draw("ratios", [{ x: costs, y: names, mode: "markers", marker, error_x: errorBars(compared),
      hovertemplate: "%{y}: %{x:.3f}<extra></extra>" }], relative, { autorange: "reversed" });
    const front = compared.filter((one) => one.front).sort((a, b) => a.seconds - b.seconds);
    const seconds = compared.map((one) => one.seconds);
    const middle = Math.sqrt(Math.min(...seconds) * Math.max(...seconds));
    draw("pareto", [
      { x: front.map((one) => one.seconds), y: front.map((one) => one.cost), mode: "lines",
        line: { shape: "hv", dash: "dash", color: "#888" }, hoverinfo: "skip" },
      { x: seconds, y: costs, mode: "markers+text", marker, error_y: errorBars(compared), hovertext: names,
        // Names of many solvers hide each other: those on the front are written, others shown by hovering.
        text: names.map((name, index) => (names.length <= at("pareto").clientWidth / 140 || compared[index].front ? name : "")),
        textposition: seconds.map((one) => (one > middle ? "top left" : "top right")), textfont: { size: 10 },
        hovertemplate: "%{hovertext}<br>%{x:.3g} s per plan<br>cost %{y:.3f}<extra></extra>" },
    ], { type: "log", title: { text: "median seconds per plan" } }, relative);
  }

  function showTable() {
    const { columns } = shown();
    const solver = columns.findIndex((one) => one.header === "solver");
    const wanted = at("filter").value.trim().toLowerCase();
    const rows = (columns.length ? columns[0].cells : [])
      .map((_, row) => columns.map((one) => one.cells[row]))
      .filter((cells) => cells[solver].toLowerCase().includes(wanted));
    fillTable(at("table"), columns.map((one) => one.header), rows, solver);
  }

  function showBoard() {
    at("title").textContent = shown().title;
    at("footer").replaceChildren(...shown().footer.map((line) => element("li", line)));
    at("filter").value = "";
    order.column = -1;
    showTable();
    drawCharts();
  }

  at("board").replaceChildren(...boards.map((board, index) => element("option", board.title, { value: index })));
  at("board").addEventListener("change", showBoard);
  at("filter").addEventListener("input", showTable);
  if (boards.length) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
    showBoard();
  }
})();
