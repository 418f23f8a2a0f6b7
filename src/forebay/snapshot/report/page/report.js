"use strict";
(() => {
  const body = document.body, tip = document.getElementById("tip");
  addEventListener("error", (event) => { body.dataset.error = event.message; });
  addEventListener("securitypolicyviolation", (event) => { body.dataset.error = `blocked: ${event.violatedDirective}`; });
  const data = JSON.parse(document.getElementById("data").textContent);

  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    while (power < 4 && Math.abs(n) / 1024 ** power >= 1023.995) power++;
    return power ? `${(n / 1024 ** power).toFixed(2)} ${units[power]}` : `${n} B`;
  };
  const time = (ns) => {
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, size]) => ns >= size) ?? ["ns", 1];
    return ns >= 120e9 ? `${Math.floor(ns / 60e9)} min ${Math.floor(ns / 1e9) % 60} s` : `${+(ns / size).toPrecision(4)} ${unit}`;
  };

  // textContent, so that text such as a file name cannot become markup.
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const row = (key, label, value) => {
    const line = make("div");
    line.append(make("i", `key ${key}`), make("span", "", label), make("b", "", value));
    return line;
  };
  const show = (x, y, ...children) => {
    tip.replaceChildren(...children);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 18 + width > innerWidth ? x - 18 - width : x + 18;
    tip.style.left = `${Math.max(6, Math.min(left, innerWidth - width - 6))}px`;
    tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - height - 6))}px`;
  };
  const hide = () => { tip.hidden = true; document.querySelectorAll(".hair").forEach((hair) => hair.remove()); };

  // Binary search for the last sampled moment at or before x: memory keeps its value until the next change.
  const find = (xs, x) => {
    let low = 0, high = xs.length;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
    return low;
  };
  for (const field of document.querySelectorAll(".field")) {
    const xs = data[field.dataset.axis], end = Math.max(1, xs.at(-1));
    let at = xs.length - 1;
    const look = (index, x, y) => {
      at = index;
      hide();
      const hair = make("div", "hair");
      hair.style.left = `${(xs[at] / end) * 100}%`;
      field.append(hair);
      const layers = data.layers.map((layer, i) => [layer[at], i]).filter(([n]) => n).reverse();
      const total = data.layers.reduce((sum, layer) => sum + layer[at], 0);
      show(x, y, make("strong", "", `${time(data.time[at])} · entry ${data.moment[at].toLocaleString("en")}`),
        row("line", "reserved", bytes(data.reserved[at])), row("", "allocated", bytes(total)),
        ...layers.map(([n, i]) => row(data.keys[i], data.labels[i], bytes(n))));
    };
    field.addEventListener("pointermove", (event) => {
      const box = field.getBoundingClientRect();
      look(find(xs, ((event.clientX - box.left) / box.width) * end), event.clientX, event.clientY);
    });
    field.addEventListener("pointerleave", hide);
    field.addEventListener("blur", hide);
    field.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      const box = field.getBoundingClientRect(), index = Math.max(0, Math.min(xs.length - 1, at + step));
      look(index, box.left + (xs[index] / end) * box.width, box.top + 20);
    });
  }

  for (const map of document.querySelectorAll(".map")) {
    map.addEventListener("pointerleave", hide);
    map.addEventListener("pointermove", (event) => {
      const segment = event.target.closest(".segment"), piece = event.target.closest("rect");
      if (!segment) return hide();
      const rows = piece ? [row(piece.getAttribute("class"), data.pieces[piece.dataset.s], bytes(+piece.dataset.n))] : [];
      show(event.clientX, event.clientY, make("strong", "", segment.getAttribute("aria-label")), ...rows);
    });
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), table = button.closest("table"), column = head.cellIndex;
      const down = head.getAttribute("aria-sort") !== "descending";
      const value = (line) => line.cells[column].dataset.v ?? line.cells[column].textContent;
      const order = (a, b) => (column ? value(a) - value(b) : value(b).localeCompare(value(a), "en"));
      const lines = [...table.tBodies[0].rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
      table.tBodies[0].append(...lines);
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  }
  body.dataset.ready = "";
})();
