"use strict";
// What is pointed at or focused is told in the panel, from its row in the tables below the picture.
for (const view of document.querySelectorAll(".view")) {
  const panel = view.querySelector(".panel");
  const idle = [...panel.childNodes];
  const items = (svg) => [...svg.querySelectorAll("[data-row]")];
  const make = (name, ...inside) => {
    const made = document.createElement(name);
    made.append(...inside);
    return made;
  };

  const clear = () => {
    view.querySelectorAll(".on").forEach((one) => one.classList.remove("on"));
    panel.classList.add("idle");
    panel.replaceChildren(...idle);
  };

  const related = (item) => {
    const svg = item.ownerSVGElement, { layer, donor, reader } = item.dataset;
    if (donor !== undefined)
      return [...svg.querySelectorAll(`[data-layer="${donor}"], [data-layer="${reader}"]`)];
    if (layer === undefined) return [];
    return [...svg.querySelectorAll(`[data-donor="${layer}"], [data-reader="${layer}"]`)];
  };

  const show = (item) => {
    clear();
    [item, ...related(item)].forEach((one) => one.classList.add("on"));
    const row = document.getElementById(item.dataset.row);
    const heads = row.closest("table").tHead.rows[0].cells;
    const list = make("dl");
    [...row.cells].forEach((cell, at) => {
      if (at === 0 || !cell.textContent.trim()) return;
      const told = [...cell.cloneNode(true).childNodes];
      list.append(make("dt", heads[at].textContent), make("dd", ...told));
    });
    panel.classList.remove("idle");
    panel.replaceChildren(make("h3", row.cells[0].textContent), list);
  };

  // The item that a key leads to: down and up in order, right to the KV and its donor, left back.
  const next = (item, key) => {
    const svg = item.ownerSVGElement, all = items(svg), at = all.indexOf(item);
    const { layer, donor, reader } = item.dataset;
    const chunks = all.filter((one) => one.dataset.chunk !== undefined);
    const before = chunks.filter((one) => all.indexOf(one) < at);
    switch (key) {
      case "ArrowDown": return all[at + 1];
      case "ArrowUp": return all[at - 1];
      case "Home": return all[0];
      case "End": return all[all.length - 1];
      case "PageDown": return chunks.find((one) => all.indexOf(one) > at);
      case "PageUp": return before[before.length - 1];
      case "ArrowRight":
        if (donor !== undefined) return svg.querySelector(`[data-layer="${donor}"]`);
        return layer === undefined ? null : svg.querySelector(`[data-reader="${layer}"]`);
      case "ArrowLeft":
        if (reader !== undefined) return svg.querySelector(`[data-layer="${reader}"]`);
        return layer === undefined ? null : svg.querySelector(`[data-donor="${layer}"]`);
      default: return undefined;
    }
  };

  const item_of = (event) => event.target.closest("[data-row]");
  const stop_at = (svg, stop) =>
    items(svg).forEach((one) => one.setAttribute("tabindex", one === stop ? 0 : -1));
  for (const svg of view.querySelectorAll(".picture")) {
    stop_at(svg, items(svg)[0]);
    svg.addEventListener("mouseover", (event) => item_of(event) && show(item_of(event)));
    svg.addEventListener("click", (event) => item_of(event)?.focus());
    svg.addEventListener("focusin", (event) => {
      stop_at(svg, event.target);
      show(event.target);
    });
    svg.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") return clear();
      const found = next(item_of(event), event.key);
      if (found === undefined) return;
      event.preventDefault();
      found?.focus();
    });
  }
}
