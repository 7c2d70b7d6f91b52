"use strict";
// What the page does beyond being read: tables sort, cells tell more, links unfold.
// Texts that come from data only ever enter through textContent.
(() => {
  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  // One tooltip for the whole page.
  const tip = make("div", { class: "tip", role: "status", hidden: "" });
  document.body.append(tip);

  function showTip(x, y, text) {
    tip.textContent = text;
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
      showTip(box.left + box.width / 2 - 14, box.bottom - 8, cell.dataset.hint);
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
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("[data-hint]")) hideTip();
  });
  document.addEventListener("scroll", hideTip, { capture: true, passive: true });
  markSections();
  unfoldTarget();
})();
