// Draws the charts and maps of the status page, and connects its controls. The data are in #status and #drawing.
(function () {
  "use strict";
  const json = (id) => JSON.parse(document.getElementById(id).textContent);
  const status = json("status");
  const drawing = json("drawing");
  const { facts, batches } = status;
  const { members, groups } = facts;
  const byId = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let colours;

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue("--" + name).trim();
    colours = { categories: [0, 1, 2, 3, 4, 5, 6].map((i) => read("c" + i)) };
    for (const name of ["surface", "text", "quiet", "line", "grid", "accent", "hollow"]) colours[name] = read(name);
  }

  // --- Numbers: the same forms as in riffle_spark/observe/units.py ---

  const count = (n) => n.toLocaleString("en", { maximumFractionDigits: Math.abs(n) >= 10 ? 0 : 1 });
  const compact = (n) => n.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  function duration(s) {
    if (s === 0) return "0 s";
    if (s < 0.9995) return Math.round(s * 1000) + " ms";
    if (s < 59.95) return +s.toFixed(1) + " s";
    for (const [large, many, small, few] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      const n = Math.round(s / small);
      if (n * small < large) continue;
      const rest = n % (large / small);
      return Math.floor((n * small) / large) + " " + many + (rest ? " " + rest + " " + few : "");
    }
  }
  const clock = (ms) => new Date(ms).toISOString().slice(11, 19);

  // --- Age and reload ---

  const ended = status.state === "stopped" || status.state === "failed";
  function showAge() {
    const seconds = (Date.now() - facts.time_ms) / 1000;
    if (seconds >= 0) byId("age").textContent = ", " + duration(seconds) + " ago";
    let text = "";
    if (!ended && seconds > status.interval_seconds + 15) text = "This status is older than " + duration(status.interval_seconds) + ". A running driver writes it that often.";
    if (seconds < -60) text = "This status is dated " + duration(-seconds) + " in the future. Correct the clock of the driver or of this machine.";
    if (text !== byId("stale").textContent) byId("stale").textContent = text;
  }
  const reload = byId("reload");
  let timer = 0;
  function setReload() {
    clearTimeout(timer);
    if (reload.checked) timer = setTimeout(() => location.reload(), 60000);
  }
  function connectReload() {
    reload.checked = location.hash === "#reload";
    reload.addEventListener("change", () => {
      history.replaceState(null, "", reload.checked ? "#reload" : location.pathname + location.search);
      setReload();
    });
    setReload();
    showAge();
    setInterval(showAge, 1000);
  }

  // --- Charts ---

  const charts = [];
  function axis(values, size) {
    const font = "12px system-ui, sans-serif";
    return { stroke: colours.quiet, font, size, values, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false } };
  }
  function drawChart(name, xs, data, series, xLabel, yLabel, bars) {
    const box = byId("chart-" + name);
    box.textContent = "";
    const figure = box.closest("figure");
    const outputs = figure.querySelectorAll("output");
    const show = (u) => {
      const i = u.cursor.idx;
      const none = i === null || i === undefined;
      figure.querySelector(".at").textContent = none ? "" : "version " + batches[i].version + ", " + clock(batches[i].time_ms);
      outputs.forEach((output, s) => (output.textContent = none ? "" : name === "lag"
        ? (batches[i].lag_records === null ? "" : count(batches[i].lag_records) + " records")
        : duration(batches[i].seconds[drawing.phases[s]] || 0)));
    };
    const options = {
      width: box.clientWidth, height: 240, padding: [10, 28, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: !bars } },
      scales: { x: { time: false, range: bars ? (u, a, b) => [a - 0.6, b + 0.6] : undefined }, y: { range: (u, a, b) => [0, b > 0 ? b * 1.05 : 1] } },
      axes: [Object.assign(axis((u, at) => at.map(xLabel), 30), { space: 90, grid: { show: false } }), axis((u, at) => at.map(yLabel), 62)],
      series: [{}].concat(series), hooks: { setCursor: [show] },
    };
    charts.push(new uPlot(options, [xs].concat(data), box));
  }
  function drawCharts() {
    while (charts.length) charts.pop().destroy();
    if (!batches.length) return;
    // Stacked: each series reaches up to the sum of its phase and those before. The largest sum is drawn first.
    const sums = drawing.phases.map(() => []);
    batches.forEach((batch) => {
      let sum = 0;
      drawing.phases.forEach((phase, i) => sums[i].push((sum += batch.seconds[phase] || 0)));
    });
    const series = sums.map((_, i) => ({
      fill: colours.categories[drawing.colours[i]], stroke: colours.surface, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.82, 48] }),
    }));
    const label = (i) => (batches[i] ? clock(batches[i].time_ms) : "");
    drawChart("phases", batches.map((_, i) => i), sums.reverse(), series.reverse(), label, duration, true);
    if (!byId("chart-lag")) return;
    const lag = batches.map((batch) => batch.lag_records);
    const line = [{ stroke: colours.accent, width: 2, points: { show: batches.length === 1 } }];
    drawChart("lag", batches.map((batch) => batch.time_ms), [lag], line, clock, compact, false);
  }

  // --- Maps of key-groups ---

  const maps = [...document.querySelectorAll("canvas.map")];
  let selected = 0;
  let highlighted = -1;
  const name = (i) => (i >= 0 && members[i] ? members[i].id : "");
  const names = (list) => (list || []).map(name).join(", ");
  const colourOf = (i) => colours.categories[drawing.members[i] || 0];

  // The key-groups of each group in the order of its map: by owner, so that the colours form areas, or by number.
  let orders = [];
  function sortMaps() {
    const byOwner = byId("order").value === "owner";
    orders = groups.map((group) => {
      const order = group.owners.map((_, k) => k);
      const rank = (k) => (group.owners[k] < 0 ? -1 : drawing.members[group.owners[k]] * 1e6 + group.owners[k]);
      return byOwner ? order.sort((a, b) => rank(a) - rank(b) || a - b) : order;
    });
  }

  function layout(canvas) {
    const n = groups[canvas.dataset.group].owners.length;
    const width = canvas.clientWidth;
    let columns = 8;
    while (columns < n && width / (columns * 2) >= 10 && columns * columns < n * 4) columns *= 2;
    const cell = Math.min(28, width / columns);
    return { n, width, columns, cell, rows: Math.ceil(n / columns) };
  }
  function drawMap(canvas) {
    const group = groups[canvas.dataset.group];
    const order = orders[canvas.dataset.group];
    const { n, width, columns, cell, rows } = layout(canvas);
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = rows * cell + 4 + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round((rows * cell + 4) * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.translate(0, 2);
    const gap = cell > 6 ? 1 : 0.5;
    const size = cell - gap;
    const strip = Math.max(2, Math.round(size * 0.3));
    let previous = -1;
    let shade = 1;
    for (let place = 0; place < n; place++) {
      const k = order[place];
      const x = (place % columns) * cell;
      const y = Math.floor(place / columns) * cell;
      const owner = group.owners[k];
      const standbys = group.standbys[k] || [];
      const warmups = group.warmups[k] || [];
      const main = standbys.length ? size - strip - 0.5 : size;
      const dim = (i) => (highlighted < 0 || i === highlighted ? 1 : 0.15);
      if (owner < 0) {
        g.globalAlpha = 1;
        g.strokeStyle = colours.hollow;
        g.lineWidth = 1.5;
        g.strokeRect(x + 1, y + 1, size - 2, main - 2);
      } else {
        // Two shades in turn show where the next owner's cells start.
        if (drawing.shades && owner !== previous) shade = shade === 1 && previous >= 0 ? 0.72 : 1;
        g.globalAlpha = highlighted < 0 ? shade : dim(owner);
        g.fillStyle = colourOf(owner);
        g.fillRect(x, y, size, main);
      }
      previous = owner;
      standbys.forEach((member, i) => {
        g.globalAlpha = highlighted < 0 ? 0.6 : dim(member);
        g.fillStyle = colourOf(member);
        g.fillRect(x + (i * size) / standbys.length, y + size - strip, size / standbys.length - (i < standbys.length - 1 ? 0.5 : 0), strip);
      });
      if (warmups.length) {
        g.globalAlpha = highlighted < 0 || warmups.includes(highlighted) ? 1 : 0.15;
        g.beginPath();
        g.arc(x + size / 2, y + main / 2, Math.max(1.5, main * 0.26), 0, 7);
        g.fillStyle = colours.surface;
        g.fill();
        g.beginPath();
        g.arc(x + size / 2, y + main / 2, Math.max(1, main * 0.18), 0, 7);
        g.fillStyle = colours.text;
        g.fill();
      }
    }
    g.globalAlpha = 1;
    if (selected < n) {
      const place = order.indexOf(selected);
      const x = (place % columns) * cell;
      const y = Math.floor(place / columns) * cell;
      g.lineWidth = 4;
      g.strokeStyle = colours.surface;
      g.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
      g.lineWidth = 2;
      g.strokeStyle = colours.text;
      g.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    }
  }
  function describe(group, k) {
    const parts = ["Key-group " + k + ": " + (name(group.owners[k]) ? "owner " + name(group.owners[k]) : "no owner")];
    if ((group.standbys[k] || []).length) parts.push("standbys " + names(group.standbys[k]));
    if ((group.warmups[k] || []).length) parts.push("warm-ups " + names(group.warmups[k]));
    return parts.join("; ");
  }
  function row(cells) {
    const line = document.createElement("tr");
    cells.forEach((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (!i) cell.scope = "row";
      cell.textContent = text;
      line.append(cell);
    });
    return line;
  }
  function select(k) {
    selected = k;
    byId("key-group").value = k;
    const lines = groups.filter((group) => k < group.owners.length).map((group) =>
      row([group.name || "default", name(group.owners[k]) || "no owner", names(group.standbys[k]) || "–", names(group.warmups[k]) || "–"]));
    byId("selected-caption").textContent = "Key-group " + k;
    byId("selected").querySelector("tbody").replaceChildren(...lines);
    maps.forEach((canvas) => {
      const group = groups[canvas.dataset.group];
      const shown = Math.min(k, group.owners.length - 1);
      canvas.setAttribute("aria-valuenow", shown);
      canvas.setAttribute("aria-valuetext", describe(group, shown));
      drawMap(canvas);
    });
  }
  function onKey(event) {
    const { n, columns } = layout(event.currentTarget);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: 4 * columns, PageUp: -4 * columns, Home: -n, End: n };
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const order = orders[event.currentTarget.dataset.group];
    const place = order.indexOf(Math.min(selected, n - 1)) + steps[event.key];
    select(order[Math.max(0, Math.min(n - 1, place))]);
  }
  function onClick(event) {
    const { n, columns, cell } = layout(event.currentTarget);
    const place = Math.floor((event.offsetY - 2) / cell) * columns + Math.floor(event.offsetX / cell);
    if (place >= 0 && place < n && event.offsetX < columns * cell) select(orders[event.currentTarget.dataset.group][place]);
  }
  function ranges(list) {
    const parts = [];
    for (let i = 0; i < list.length; i++) {
      const first = list[i];
      while (list[i + 1] === list[i] + 1) i++;
      parts.push(first === list[i] ? String(first) : first + "–" + list[i]);
    }
    return parts.join(", ") || "–";
  }
  function fillTable(group, body) {
    const lists = members.map(() => [[], [], []]);
    const add = (i, role, k) => lists[i] && lists[i][role].push(k);
    group.owners.forEach((owner, k) => {
      add(owner, 0, k);
      (group.standbys[k] || []).forEach((i) => add(i, 1, k));
      (group.warmups[k] || []).forEach((i) => add(i, 2, k));
    });
    body.replaceChildren(...lists.map((list, i) => row([name(i), ...list.map(ranges)])));
  }
  function connectMaps() {
    if (!maps.length) return;
    byId("key-group").addEventListener("input", (event) => {
      const k = event.target.valueAsNumber;
      if (Number.isInteger(k) && k >= 0 && k <= +event.target.max) select(k);
    });
    byId("member").addEventListener("change", (event) => {
      highlighted = +event.target.value;
      maps.forEach(drawMap);
    });
    byId("order").addEventListener("change", () => {
      sortMaps();
      maps.forEach(drawMap);
    });
    maps.forEach((canvas) => {
      canvas.addEventListener("keydown", onKey);
      canvas.addEventListener("click", onClick);
      const details = canvas.parentElement.querySelector("details");
      details.addEventListener("toggle", () => details.open && fillTable(groups[canvas.dataset.group], details.querySelector("tbody")), { once: true });
    });
    sortMaps();
    select(0);
  }

  // --- Start ---

  function redraw() {
    readColours();
    drawCharts();
    maps.forEach(drawMap);
  }
  readColours();
  connectReload();
  drawCharts();
  connectMaps();
  dark.addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) redraw();
    width = innerWidth;
  });
  performance.mark("drawn");
})();
