"use strict";
// Names come from records: they are set as text, or escaped where plotly reads markup.
(() => {
  const boards = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const PHASES = ["ids", "forward compute", "forward communication", "backward communication", "backward compute"];
  const MIB = 2 ** 20;
  const state = { board: 0 };

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function fillSelect(select, labels, groups) {
    const parents = new Map();
    select.replaceChildren();
    labels.forEach((label, index) => {
      let parent = select;
      if (groups) {
        if (!parents.has(groups[index])) {
          const group = element("optgroup", undefined, { label: groups[index] });
          parents.set(groups[index], group);
          select.append(group);
        }
        parent = parents.get(groups[index]);
      }
      parent.append(element("option", label, { value: index }));
    });
  }

  // The first number of a cell decides where it stands; times are in seconds then. Cells without a number come last.
  function sortKey(cell) {
    const number = parseFloat(cell);
    if (Number.isNaN(number)) return null;
    return /\d ms$/.test(cell) ? number / 1000 : number;
  }

  function fillTable(table, headers, rows, left, link) {
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    const body = table.createTBody();
    const order = { column: -1, down: false };
    const show = () => {
      const sorted = [...rows];
      if (order.column >= 0) {
        sorted.sort((one, other) => {
          const [a, b] = [one[order.column], other[order.column]];
          const [x, y] = [sortKey(a), sortKey(b)];
          if (x !== null && y !== null && x !== y) return order.down ? y - x : x - y;
          if ((x === null) !== (y === null)) return x === null ? 1 : -1;
          return order.down ? b.localeCompare(a) : a.localeCompare(b);
        });
      }
      body.replaceChildren();
      for (const cells of sorted) {
        const row = body.insertRow();
        cells.forEach((cell, column) => {
          const place = row.insertCell();
          if (column === left) place.className = "left";
          if (column === left && link) {
            const button = element("button", cell, { type: "button", title: "Show its plans" });
            button.addEventListener("click", () => link(cell));
            place.append(button);
          } else {
            place.textContent = cell;
          }
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

  function layout(more) {
    const style = getComputedStyle(document.body);
    const [color, grid] = [style.color, style.getPropertyValue("--line")];
    const axis = { gridcolor: grid, zerolinecolor: grid, automargin: true };
    const made = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color, size: 12 },
      margin: { l: 50, r: 10, t: 20, b: 45 }, hovermode: "closest", ...more };
    for (const name of ["xaxis", "yaxis", "xaxis2", "yaxis2"]) {
      if (name in made || name.length === 5) made[name] = { ...axis, ...made[name] };
    }
    return made;
  }

  function draw(id, traces, more) {
    Plotly.react(at(id), traces, layout(more), { responsive: true, displayModeBar: false });
  }

  function errorBars(values, intervals) {
    return { type: "data", symmetric: false, thickness: 1,
      array: values.map((value, n) => (intervals[n] ? intervals[n][1] - value : 0)),
      arrayminus: values.map((value, n) => (intervals[n] ? value - intervals[n][0] : 0)) };
  }

  function drawCharts(board) {
    const names = board.compared.map((one) => escaped(one.solver));
    const relative = `cost / cost of ${escaped(board.base)}`;
    const costs = board.compared.map((one) => one.cost);
    const front = board.compared.filter((one) => one.front).sort((a, b) => a.seconds - b.seconds);
    draw("pareto", [
      { x: front.map((one) => one.seconds), y: front.map((one) => one.cost), mode: "lines", name: "Pareto front",
        line: { shape: "hv", dash: "dash", color: "#888" }, hoverinfo: "skip" },
      { x: board.compared.map((one) => one.seconds), y: costs, text: names, mode: "markers+text",
        textposition: "top center", textfont: { size: 10 }, name: "solvers",
        marker: { size: 9, color: board.compared.map((one) => (one.front ? "#d95f02" : "#7570b3")) },
        error_y: errorBars(costs, board.compared.map((one) => one.interval)),
        hovertemplate: "%{text}<br>%{x:.3g} s per plan<br>cost %{y:.3f}<extra></extra>" },
    ], { showlegend: false, xaxis: { type: "log", title: { text: "median seconds per plan" } }, yaxis: { title: { text: relative } } });
    const numbers = board.tasks.map((task) => `task ${task.index}`);
    draw("tasks", board.compared.map((one, n) => ({ type: "box", x: one.ratios, name: names[n], text: numbers,
      boxpoints: "all", jitter: 0.4, pointpos: 0, marker: { size: 3, opacity: 0.6 }, line: { width: 1 },
      hovertemplate: "%{text}: %{x:.3f}<extra>" + names[n] + "</extra>" })),
    { showlegend: false, height: 120 + 26 * names.length, xaxis: { title: { text: relative } }, yaxis: { autorange: "reversed" } });
    at("tasks").style.height = `${120 + 26 * names.length}px`;
    draw("profile", board.compared.map((one, n) => ({ x: board.factors, y: one.profile, name: names[n], mode: "lines",
      line: { shape: "hv", dash: ["solid", "dash", "dot"][Math.floor(n / 10) % 3] } })),
    { xaxis: { title: { text: "cost / cost of the best plan of the task" } }, yaxis: { tickformat: ".0%", range: [0, 1.01] },
      legend: { orientation: "h", y: -0.2 } });
    at("by-group").hidden = board.groups.length === 0;
    drawGroup();
    at("by-pair").hidden = board.pairs.length < 2;
    drawPair();
  }

  function drawPair() {
    const board = boards[state.board];
    const chosen = Number(at("pair").value);
    const own = board.pairs[chosen];
    if (!own) return;
    const others = board.pairs.map((_, n) => n).filter((n) => n !== chosen);
    const chances = others.map((n) => own.chances[n]);
    draw("pairs", [{ type: "bar", orientation: "h", x: chances, y: others.map((n) => escaped(board.pairs[n].solver)),
      error_x: errorBars(chances, others.map((n) => own.intervals[n])), marker: { color: "#7570b3" },
      hovertemplate: "%{y}: %{x:.0%}<extra></extra>" }],
    { xaxis: { title: { text: `${escaped(own.solver)} is cheaper` }, tickformat: ".0%", range: [0, 1] },
      yaxis: { autorange: "reversed" }, shapes: [{ type: "line", x0: 0.5, x1: 0.5, yref: "paper", y0: 0, y1: 1,
        line: { dash: "dash", color: "#888" } }] });
  }

  function drawGroup() {
    const group = boards[state.board].groups[at("group").value];
    if (!group) return;
    const ratios = group.ratios.map((one) => one.ratio);
    draw("groups", [{ type: "bar", orientation: "h", x: ratios, y: group.ratios.map((one) => escaped(one.solver)),
      error_x: errorBars(ratios, group.ratios.map((one) => one.interval)), marker: { color: "#7570b3" },
      hovertemplate: "%{y}: %{x:.3f}<extra></extra>" }],
    { xaxis: { title: { text: `cost / cost of ${escaped(boards[state.board].base)}` } }, yaxis: { autorange: "reversed" } });
  }

  function planOf(side) {
    const board = boards[state.board];
    const task = board.tasks[at("task").value];
    const solver = at(`solver-${side}`).selectedOptions[0]?.textContent;
    return solver === undefined || !task ? undefined : (board.plans[solver] || {})[task.index];
  }

  function drawPlan(side, longest) {
    const task = boards[state.board].tasks[at("task").value];
    const plan = planOf(side);
    const summary = at(`summary-${side}`);
    if (!plan || plan.failed !== undefined) {
      summary.textContent = plan ? `no plan: ${plan.failed}` : "no record";
      Plotly.purge(at(`plan-${side}`));
      at(`shards-${side}`).replaceChildren();
      return;
    }
    const sums = plan.devices.map((times) => times.reduce((sum, ms) => sum + ms, 0));
    const worst = sums.indexOf(Math.max(...sums));
    summary.textContent = `${plan.total.toPrecision(4)} ms, set by device ${worst}; ` +
      `the others wait ${(100 * (1 - sums.reduce((a, b) => a + b, 0) / sums.length / sums[worst])).toFixed(0)} % of it on average`;
    const devices = plan.devices.map((_, device) => `device ${device}`);
    const traces = PHASES.map((phase, column) => ({ type: "bar", orientation: "h", name: phase, y: devices,
      x: plan.devices.map((times) => times[column]), marker: { color: ["#66a61e", "#1b9e77", "#d95f02", "#e6ab02", "#7570b3"][column] },
      hovertemplate: `${phase}: %{x:.3g} ms<extra></extra>` }));
    if (plan.bytes) {
      traces.push({ type: "bar", orientation: "h", name: "memory", y: devices, xaxis: "x2", yaxis: "y2",
        x: plan.bytes.map((bytes, device) => bytes / task.memory[device]), marker: { color: "#888" },
        text: plan.bytes.map((bytes) => `${(bytes / MIB).toFixed(1)} MiB`), hovertemplate: "%{text}<extra></extra>" });
    }
    const end = plan.bytes ? 0.68 : 1;
    draw(`plan-${side}`, traces, { barmode: "stack", legend: { orientation: "h", y: -0.18 },
      xaxis: { domain: [0, end], range: [0, longest], title: { text: "ms per step" } }, yaxis: { autorange: "reversed" },
      ...(plan.bytes ? { xaxis2: { domain: [0.74, 1], range: [0, 1], tickformat: ".0%", title: { text: "memory" } },
        yaxis2: { anchor: "x2", autorange: "reversed", showticklabels: false } } : {}) });
    const rows = (plan.shards || []).map(([table, numRows, width, device, bytes, ms]) => [
      task.tables[table][0], String(width), String(numRows), (bytes / MIB).toFixed(2), String(device),
      String(Math.round(task.lookups[table] * numRows / task.tables[table][1])), ms < 0 ? "-" : String(ms)]);
    fillTable(at(`shards-${side}`), ["table", "width", "rows", "MiB", "device", "lookups", "roofline ms"], rows, 0);
  }

  // As `shardgym.costs.comparison` says it of plan a against plan b.
  function differenceOf(a, b) {
    if (!a || !b || !a.total || !b.total) return "";
    const told = boards[state.board].differences[a.cuts === "rows" || b.cuts === "rows" ? "rows" : "columns"];
    const ratio = Math.max(a.total, b.total) / Math.min(a.total, b.total);
    const noise = told.tie_errors * Math.hypot(a.noise * a.total, b.noise * b.total) / a.total;
    let said = told.unknown;
    if (told.limit !== null) {
      said = ratio - 1 > Math.max(told.limit, noise) ? told.above : noise > told.limit ? told.noisy : told.within;
    }
    return `The difference of ${(100 * (ratio - 1)).toFixed(1)}% ${said}`;
  }

  // Both plans have one axis, so that bars can be compared by their lengths.
  function drawPlans() {
    at("difference").textContent = differenceOf(planOf("a"), planOf("b"));
    const longest = 1.05 * Math.max(...["a", "b"].map((side) => planOf(side)?.total || 0));
    drawPlan("a", longest);
    drawPlan("b", longest);
  }

  function showTable(board) {
    const column = board.columns.findIndex((one) => one.header === "solver");
    const wanted = at("filter").value.trim().toLowerCase();
    const rows = board.columns.length === 0 ? [] : board.columns[0].cells
      .map((_, row) => board.columns.map((one) => one.cells[row]))
      .filter((cells) => cells[column].toLowerCase().includes(wanted));
    fillTable(at("table"), board.columns.map((one) => one.header), rows, column, (solver) => {
      const select = at("solver-a");
      select.value = [...select.options].findIndex((option) => option.textContent === solver);
      drawPlans();
      at("plans").scrollIntoView();
      select.focus();
    });
  }

  function fillList(list, lines) {
    list.replaceChildren(...lines.map((line) => element("li", line)));
  }

  function showBoard() {
    const board = boards[state.board];
    at("title").textContent = board.title;
    for (const place of document.querySelectorAll(".base")) place.textContent = board.base;
    fillList(at("footer"), board.footer);
    fillList(at("notes"), board.notes);
    fillSelect(at("group"), board.groups.map((group) => `${group.name} (${group.tasks})`));
    fillSelect(at("pair"), board.pairs.map((one) => one.solver));
    fillSelect(at("task"), board.tasks.map((task) => `task ${task.index}`));
    const solvers = board.columns.length ? board.columns.find((one) => one.header === "solver").cells : [];
    for (const side of ["a", "b"]) fillSelect(at(`solver-${side}`), solvers);
    const base = solvers.indexOf(board.base);
    at("solver-b").selectedIndex = base >= 0 ? base : solvers.length - 1;
    at("filter").value = "";
    showTable(board);
    drawCharts(board);
    drawPlans();
  }

  fillSelect(at("board"), boards.map((board) => board.title), boards.map((board) => `${board.suite}, ${board.track}`));
  at("board").addEventListener("change", (event) => { state.board = Number(event.target.value); showBoard(); });
  at("filter").addEventListener("input", () => showTable(boards[state.board]));
  at("group").addEventListener("change", drawGroup);
  at("pair").addEventListener("change", drawPair);
  at("task").addEventListener("change", drawPlans);
  at("solver-a").addEventListener("change", drawPlans);
  at("solver-b").addEventListener("change", drawPlans);
  const redraw = () => { if (boards.length) { drawCharts(boards[state.board]); drawPlans(); } };
  at("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (boards.length) showBoard();
})();
