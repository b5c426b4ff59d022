"use strict";
(() => {
  const MOST_HITS = 24, FIRST = 12;
  const NEAREST = 10;
  const block = document.getElementById("levels");
  const parts = block ? JSON.parse(block.textContent) : [];

  const made = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const digits = (number) => Number(number.toPrecision(3)).toString();
  const signed = (number) => (number > 0 ? "+" : "") + digits(number);
  const row = (mode, n) => mode.rows.slice(n * mode.width, (n + 1) * mode.width);
  const best = (values, count, skip) =>
    values.map((value, n) => [value, n])
      .filter(([value, n]) => n !== skip && Number.isFinite(value))
      .sort((a, b) => b[0] - a[0])
      .slice(0, count);

  const listed = (caption, headings, rows) => {
    const table = made("table");
    table.append(made("caption", caption));
    const head = made("tr");
    headings.forEach((text, n) => {
      const cell = made("th", text, n ? "number" : "");
      cell.scope = "col";
      head.append(cell);
    });
    table.append(made("thead"));
    table.tHead.append(head);
    const body = made("tbody");
    for (const [name, ...numbers] of rows) {
      const line = made("tr");
      const first = made("th");
      first.scope = "row";
      first.append(made("bdi", name));
      line.append(first, ...numbers.map((text) => made("td", text, "number")));
      body.append(line);
    }
    table.append(body);
    return table;
  };

  const nearest = (mode, n) => {
    if (!mode.width || mode.labels.length < 2) return null;
    const mine = row(mode, n);
    const away = mode.labels.map((_, other) => -Math.hypot(...row(mode, other).map((x, k) => x - mine[k])));
    const rows = best(away, NEAREST, n).map(([value, other]) => [mode.labels[other], digits(-value)]);
    return listed("Most alike: the closest rows", ["Level", "Distance"], rows);
  };

  const predicted = (part, m, n) => {
    if (part.mean === null || part.modes.length !== 2) return null;
    const mode = part.modes[m], other = part.modes[1 - m];
    const places = mode.components.map((c) => other.components.indexOf(c));
    const mine = row(mode, n);
    const start = part.mean + (mode.bias ? mode.bias[n] : 0);
    const values = other.labels.map((_, o) => {
      const theirs = row(other, o);
      const product = mine.reduce((sum, x, k) => sum + (places[k] < 0 ? 0 : x * theirs[places[k]]), 0);
      return start + (other.bias ? other.bias[o] : 0) + product;
    });
    const [low, high] = part.bounds || [-Infinity, Infinity];
    const rows = best(values, NEAREST, -1)
      .map(([value, o]) => [other.labels[o], digits(Math.min(high, Math.max(low, value)))]);
    return listed(`Highest predictions of ${other.name}`, ["Level", "About"], rows);
  };

  const described = (part, m, n) => {
    const mode = part.modes[m];
    const title = made("h4");
    title.append(made("bdi", mode.labels[n]));
    const facts = [];
    if (mode.bias) facts.push(["bias against the mean", signed(mode.bias[n])]);
    if (mode.count) facts.push(["popularity, as released", digits(Math.max(0, mode.count[n]))]);
    row(mode, n).forEach((value, k) => facts.push([`component ${mode.components[k]}`, signed(value)]));
    const tables = made("div", undefined, "pair");
    const own = listed("Its numbers", ["", ""], facts);
    own.tHead.remove();
    for (const each of [predicted(part, m, n), nearest(mode, n), own]) if (each) tables.append(each);
    return [title, tables];
  };

  const explore = (box, part) => {
    const choice = box.querySelector("select"), word = box.querySelector("input");
    const hits = box.querySelector(".hits"), found = box.querySelector(".found");
    const maps = part.modes.map((_, m) => document.querySelector(`[data-map="${part.id}-${m}"]`));
    let chosen = [-1, -1];

    const choose = (m, n) => {
      chosen = [m, n];
      found.replaceChildren(...described(part, m, n));
      for (const button of hits.querySelectorAll("button"))
        button.setAttribute("aria-pressed", String(Number(button.value) === n && Number(choice.value) === m));
      const level = String(part.modes[m].levels ? part.modes[m].levels[n] : n);
      maps.forEach((map, other) => {
        for (const circle of map ? map.querySelectorAll("circle") : [])
          circle.classList.toggle("chosen", m === other && circle.dataset.level === level);
      });
    };

    const search = () => {
      const m = Number(choice.value), mode = part.modes[m];
      const wanted = word.value.trim().toLowerCase();
      const places = [];
      const most = wanted ? MOST_HITS : FIRST;
      for (let n = 0; n < mode.labels.length && places.length < most; n++)
        if (mode.labels[n].toLowerCase().includes(wanted)) places.push(n);
      hits.replaceChildren(...places.map((n) => {
        const button = made("button", mode.labels[n]);
        button.type = "button";
        button.value = n;
        button.setAttribute("aria-pressed", String(m === chosen[0] && n === chosen[1]));
        button.addEventListener("click", () => choose(m, n));
        const item = made("li");
        item.append(button);
        return item;
      }));
      if (!places.length) hits.append(made("li", "no level has this in its name"));
    };

    choice.addEventListener("change", search);
    word.addEventListener("input", search);
    word.addEventListener("keydown", (event) => {
      const first = hits.querySelector("button");
      if (event.key === "Enter" && first) first.click();
    });
    maps.forEach((map, m) => map && watch(map, part.modes[m], (n) => {
      choice.value = m;
      search();
      choose(m, n);
      box.scrollIntoView({ block: "start" });
    }));
    box.hidden = false;
    search();
  };

  const watch = (map, mode, choose) => {
    const places = mode.levels ? new Map(mode.levels.map((level, n) => [level, n])) : null;
    const place = (circle) => (places ? places.get(Number(circle.dataset.level)) : Number(circle.dataset.level));
    const tip = made("div", undefined, "tip");
    tip.setAttribute("aria-hidden", "true");
    tip.hidden = true;
    map.append(tip);
    map.addEventListener("mouseover", (event) => {
      const circle = event.target.closest("circle[data-level]");
      tip.hidden = !circle;
      if (!circle) return;
      tip.textContent = mode.labels[place(circle)];
      const around = map.getBoundingClientRect(), at = circle.getBoundingClientRect();
      tip.style.left = "0px"; // so that it is as wide as it may be
      const left = Math.min(at.right - around.left + 6, around.width - tip.offsetWidth - 4);
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${Math.max(4, at.top - around.top - tip.offsetHeight - 4)}px`;
    });
    map.addEventListener("mouseleave", () => { tip.hidden = true; });
    map.addEventListener("click", (event) => {
      const circle = event.target.closest("circle[data-level]");
      if (circle) choose(place(circle));
    });
  };

  for (const part of parts) {
    const box = document.querySelector(`[data-explorer="${part.id}"]`);
    if (box) explore(box, part);
  }
  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const each of unfolded) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of unfolded) each.open = false;
  });
})();
