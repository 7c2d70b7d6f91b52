"use strict";
// What the page does beyond being read: tables sort, cells and charts answer, series switch.
// Texts that come from data only ever enter through textContent.
(() => {
  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const svgMake = (name, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };

  // Numbers and ticks: the rules of numbers.py.
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

  function number(value, digits = 6) {
    const size = Math.abs(value);
    if (value && (size < 1e-4 || size >= 1e9)) {
      const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
      return `${trimmed(mantissa)}e${Number(exponent)}`.replaceAll("-", "−");
    }
    const decimals = value ? Math.max(0, digits - 1 - Math.floor(Math.log10(size))) : 0;
    const [whole, part] = trimmed(value.toFixed(decimals)).split(".");
    const grouped = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
    return (part ? `${grouped}.${part}` : grouped).replace("-", "−");
  }

  function linearTicks(low, high, most = 6) {
    const least = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least * (1 - 1e-9));
    const first = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, index) => (first + index) * step);
  }

  function logTicks(low, high, most = 6) {
    const first = Math.floor(Math.log10(low));
    const count = Math.ceil(Math.log10(high)) - first + 1;
    const powers = Array.from({ length: count }, (_, index) => 10 ** (first + index));
    const among = (multiples) =>
      powers.flatMap((p) => multiples.map((m) => m * p)).filter((t) => low <= t && t <= high);
    let ticks = among([1, 2, 5]);
    if (ticks.length > most) ticks = among([1]);
    const stride = Math.ceil(ticks.length / most);
    ticks = ticks.filter((_, index) => index % stride === 0);
    return ticks.length > 1 ? ticks : linearTicks(low, high, most);
  }

  // One tooltip for the whole page; who shows it says what to undo when it goes.
  const tip = make("div", { class: "tip", role: "status", hidden: "" });
  document.body.append(tip);
  let undo = null;

  function showTip(x, y, content, whenHidden = null) {
    if (undo !== whenHidden) undo?.();
    undo = whenHidden;
    tip.replaceChildren(...content);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const [gap, edge] = [14, 6];
    const room = document.documentElement.clientWidth - edge;
    const left = x + gap + width <= room ? x + gap : x - gap - width;
    const above = y + gap + height > window.innerHeight - edge;
    tip.style.left = `${Math.max(edge, Math.min(left, room - width))}px`;
    tip.style.top = `${Math.max(edge, above ? y - gap - height : y + gap)}px`;
  }

  function hideTip() {
    undo?.();
    undo = null;
    tip.hidden = true;
  }

  // Tables.
  function compare(a, b, sign) {
    const rank = (cell) => (cell.dataset.value ? 0 : cell.classList.contains("missing") ? 2 : 1);
    const apart = rank(a) - rank(b);
    if (apart || rank(a) === 2) return apart;
    if (rank(a) === 0) return sign * (a.dataset.value - b.dataset.value);
    return sign * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const headers = [...table.tHead.rows[0].cells];
    const following = { none: "ascending", ascending: "descending", descending: "none" };
    headers.forEach((header, column) => {
      const button = make("button", { type: "button" }, ...header.childNodes);
      header.append(button);
      header.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const order = following[header.getAttribute("aria-sort")];
        for (const other of headers) other.setAttribute("aria-sort", "none");
        header.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const sorted = (a, b) => compare(a.cells[column], b.cells[column], sign);
        body.append(...(order === "none" ? original : [...original].sort(sorted)));
      });
    });
  }

  // One cell of a table takes the Tab key; arrows go from cell to cell.
  function makeHints(table) {
    const cells = [...table.querySelectorAll("[title]")];
    if (!cells.length) return;
    for (const cell of cells) {
      cell.dataset.hint = cell.title;
      cell.setAttribute("aria-description", cell.title);
      cell.removeAttribute("title");
      cell.tabIndex = -1;
    }
    cells[0].tabIndex = 0;
    const show = (event) => {
      const cell = event.target.closest("[data-hint]");
      if (!cell) return hideTip();
      const box = cell.getBoundingClientRect();
      showTip(box.left + box.width / 2 - 14, box.bottom - 8, [cell.dataset.hint]);
    };
    table.addEventListener("mouseover", show);
    table.addEventListener("click", show);
    table.addEventListener("focusin", show);
    table.addEventListener("mouseleave", hideTip);
    table.addEventListener("focusout", hideTip);
    table.addEventListener("keydown", (event) => {
      const next = neighbour(event.target.closest("[data-hint]"), event.key);
      if (!next) return;
      event.preventDefault();
      for (const cell of cells) cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }

  function neighbour(cell, key) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
    if (!cell || !step) return null;
    const rows = cell.closest("tbody").rows;
    let [row, column] = [cell.parentNode.sectionRowIndex, cell.cellIndex];
    do {
      row += step[0];
      column += step[1];
      cell = rows[row]?.cells[column];
    } while (cell && !("hint" in cell.dataset));
    return cell;
  }

  // Charts.
  function makeChart(figure) {
    const data = JSON.parse(figure.querySelector("script.data").textContent);
    const svg = figure.querySelector("svg[role=img]");
    const [left, top, right, bottom] = data.area;
    const all = [...data.series, ...data.levels];
    const drawn = [...svg.querySelectorAll(".series"), ...svg.querySelectorAll(".level")];
    const colours = drawn.map((group) => group.style.getPropertyValue("--colour"));
    const shown = all.map(() => true);
    const cross = svgMake("g", { class: "crosshair" });
    svg.append(cross);
    const clearCross = () => cross.replaceChildren();

    const straight = (value, log) => (log ? Math.log10(value) : value);
    const placeX = scale(data.x, data.x.log, left, right);
    let placeY = scale(range(), data.yLog, bottom, top);

    function scale({ low, high }, log, start, end) {
      const [from, to] = [straight(low, log), straight(high, log)];
      return (value) => start + ((straight(value, log) - from) / (to - from)) * (end - start);
    }

    function range() {
      const ends = all.filter((_, i) => shown[i]).flatMap((each) => each.span ?? [each.y]);
      const [low, high] = [Math.min(...ends), Math.max(...ends)].map((v) => straight(v, data.yLog));
      const single = high - low <= 1e-12 * Math.max(Math.abs(low), Math.abs(high));
      const margin = single ? 0.5 * (Math.abs(low) || 1) : data.padding * (high - low);
      const bent = (value) => (data.yLog ? 10 ** value : value);
      return { low: bent(low - margin), high: bent(high + margin) };
    }

    const cut = (value) => Number(Math.min(Math.max(value, -1e4), 1e4).toFixed(1));

    function redraw() {
      drawn.forEach((group, i) => (group.style.display = shown[i] ? "" : "none"));
      if (!shown.includes(true)) return;
      const axis = range();
      placeY = scale(axis, data.yLog, bottom, top);
      const ticks = (data.yLog ? logTicks : linearTicks)(axis.low, axis.high);
      svg.querySelector(".y-ticks").replaceChildren(...ticks.flatMap((tick) => {
        const y = cut(placeY(tick));
        const place = { x: left - 8, y, dy: "0.35em", "text-anchor": "end" };
        return [
          svgMake("path", { d: `M${left} ${y}H${right}` }),
          svgMake("text", place, number(tick)),
        ];
      }));
      all.forEach((each, i) => {
        const path = drawn[i].querySelector("path");
        if (!each.x) return path.setAttribute("d", `M${left} ${cut(placeY(each.y))}H${right}`);
        const places = each.x.map((x, k) => [cut(placeX(x)), cut(placeY(each.y[k]))]);
        path.setAttribute("d", "M" + places.map((place) => place.join(" ")).join("L"));
        const dots = drawn[i].querySelectorAll("circle");
        dots.forEach((dot, k) => dot.setAttribute("cy", places[k][1]));
      });
    }

    figure.querySelectorAll(".legend li").forEach((item, i) => {
      const button = make("button", { type: "button", "aria-pressed": "true" }, ...item.childNodes);
      item.append(button);
      button.addEventListener("click", () => {
        shown[i] = !shown[i];
        button.setAttribute("aria-pressed", shown[i]);
        hideTip();
        redraw();
      });
    });

    function nearest(each, place) {
      let [low, high] = [0, each.x.length - 1];
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (placeX(each.x[middle]) < place) low = middle;
        else high = middle;
      }
      const far = (k) => Math.abs(placeX(each.x[k]) - place);
      return far(low) <= far(high) ? low : high;
    }

    // The crosshair at the point nearest to the place, and beside it what each series is there.
    function point(place, clientY) {
      const found = data.series.flatMap((each, i) => {
        if (!shown[i]) return [];
        const k = nearest(each, place);
        return [{ i, name: each.name, x: each.x[k], y: each.y[k] }];
      });
      if (!found.length) return hideTip();
      const far = (each) => Math.abs(placeX(each.x) - place);
      const x = found.reduce((a, b) => (far(b) < far(a) ? b : a)).x;
      const at = placeX(x);
      const inside = found.filter((each) => placeY(each.y) >= top - 4 && placeY(each.y) <= bottom + 4);
      cross.replaceChildren(
        svgMake("path", { d: `M${at} ${top}V${bottom}` }),
        ...inside.map((each) => svgMake("circle", {
          cx: placeX(each.x), cy: placeY(each.y), r: 4.5, style: `--colour:${colours[each.i]}`,
        })),
      );
      const levels = data.levels.flatMap((level, k) => {
        const i = data.series.length + k;
        return shown[i] ? [{ i, name: level.name, x, y: level.y }] : [];
      });
      const rows = [...found, ...levels].sort((a, b) => b.y - a.y).map((each) => {
        const there = each.x === x ? "" : `at ${number(each.x, 4)}`;
        return make("tr", {},
          make("th", { style: `--colour:${colours[each.i]}` }, make("i"), each.name),
          make("td", {}, number(each.y, 4)),
          make("td", { class: "at" }, there));
      });
      const client = new DOMPoint(at, top).matrixTransform(svg.getScreenCTM());
      const head = make("p", {}, `${data.xLabel} ${number(x, 5)}`);
      showTip(client.x, clientY ?? client.y, [head, make("table", {}, ...rows)], clearCross);
      return x;
    }

    const follow = (event) => {
      const inverse = svg.getScreenCTM().inverse();
      point(new DOMPoint(event.clientX, event.clientY).matrixTransform(inverse).x, event.clientY);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    // A finger leaves when it lifts: what it found stays until the next touch elsewhere.
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hideTip());
    svg.addEventListener("blur", hideTip);

    svg.setAttribute("tabindex", "0");
    let current = null;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const visible = data.series.filter((_, i) => shown[i]);
      if (!step || !visible.length) return;
      event.preventDefault();
      const longest = visible.reduce((a, b) => (b.x.length > a.x.length ? b : a));
      const last = longest.x.length - 1;
      const k = current === null ? (step > 0 ? 0 : last) : nearest(longest, placeX(current)) + step;
      current = point(placeX(longest.x[Math.max(0, Math.min(k, last))]));
    });
  }

  // Folded parts: a link into one unfolds it, and so does printing.
  function unfoldTarget() {
    const target = document.getElementById(location.hash.slice(1));
    const folded = target?.closest("details");
    if (!folded) return;
    folded.open = true;
    target.scrollIntoView();
  }
  const folds = [...document.querySelectorAll("details:not(.unprinted)")];
  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    unfolded = folds.filter((each) => !each.open);
    for (const each of unfolded) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of unfolded) each.open = false;
  });
  window.addEventListener("hashchange", unfoldTarget);

  // The contents mark the section that is being read.
  function markSections() {
    const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
    const observer = new IntersectionObserver((entries) => {
      const entry = entries.find((each) => each.isIntersecting);
      if (!entry) return;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }, { rootMargin: "0px 0px -70% 0px" });
    for (const id of links.keys()) observer.observe(document.getElementById(id));
  }

  for (const table of document.querySelectorAll("figure.table table")) {
    makeSortable(table);
    makeHints(table);
  }
  for (const data of document.querySelectorAll("figure.chart > script.data")) {
    makeChart(data.parentNode);
  }
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("svg[role=img], [data-hint]")) hideTip();
  });
  document.addEventListener("scroll", hideTip, { capture: true, passive: true });
  markSections();
  unfoldTarget();
})();
