"use strict";
(() => {
  const root = document.documentElement;
  const FIGURES = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set(); // groups that were clicked away
  const drawn = new Map(); // figure element -> what draws it

  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  // "@2/0.2" is the third line's colour, transparent; "@card" a colour of the style sheet
  function colour(text) {
    const [name, alpha] = text.slice(1).split("/");
    const hex = variable(/^\d+$/.test(name) ? `--c${name}` : `--${name}`);
    if (!alpha) return hex;
    const part = (i) => parseInt(hex.slice(i, i + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  }

  // a copy with its colours put in; arrays are data and stay as they are
  function coloured(value) {
    if (typeof value === "string") return value.startsWith("@") ? colour(value) : value;
    if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v)]));
  }

  function themed(own) {
    const faint = variable("--faint"), grid = variable("--grid");
    const axis = {
      gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickcolor: grid, automargin: true, fixedrange: false,
      title: { standoff: 6 },
    };
    const joined = (name) => ({ ...axis, ...own[name], title: { ...axis.title, ...(own[name] || {}).title } });
    return {
      showlegend: false,
      ...own,
      font: { family: variable("--sans"), size: 12, color: faint },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 44, r: 10, t: 10, b: 40 },
      hovermode: "closest",
      hoverlabel: { bgcolor: variable("--card"), bordercolor: variable("--line"), font: { color: variable("--ink") } },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      modebar: { bgcolor: variable("--card"), color: variable("--faint"), activecolor: variable("--ink") },
      autosize: true,
      xaxis: joined("xaxis"),
      yaxis: joined("yaxis"),
    };
  }

  const CONFIG = {
    responsive: true, displaylogo: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, // it would lie on the figure for good
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "hoverClosestCartesian", "hoverCompareCartesian"],
    toImageButtonOptions: { format: "svg" },
  };

  function segments(titles, chosen) {
    const box = document.createElement("div");
    box.className = "segments";
    titles.forEach((title, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = title;
      button.setAttribute("aria-pressed", String(i === 0));
      button.addEventListener("click", () => {
        [...box.children].forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
        chosen(i);
      });
      box.append(button);
    });
    return box;
  }

  // a range over the rounds with a button that plays them
  function slider(changed) {
    const box = document.createElement("div");
    box.className = "slide";
    const play = document.createElement("button");
    const range = document.createElement("input");
    const told = document.createElement("output");
    Object.assign(play, { type: "button", textContent: "▶" });
    Object.assign(range, { type: "range", min: 0, step: 1, value: 0 });
    play.setAttribute("aria-label", "play the rounds");
    range.setAttribute("aria-label", "round");
    box.append(play, range, told);
    let frames = [], timer = null;
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶"; };
    const tell = () => {
      const frame = frames[range.value];
      told.textContent = `round ${frame.name} of ${frames[frames.length - 1].name}`;
      changed(frame);
    };
    range.addEventListener("input", () => { stop(); tell(); });
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (+range.value === frames.length - 1) { range.value = 0; tell(); }
      play.textContent = "❚❚";
      timer = setInterval(() => {
        if (+range.value >= frames.length - 1) return stop();
        range.value = +range.value + 1;
        tell();
      }, 450);
    });
    const use = (some) => {
      const at = frames.length ? range.value / Math.max(1, frames.length - 1) : 1; // the last round at first
      frames = some;
      range.max = frames.length - 1;
      range.value = Math.round(at * (frames.length - 1));
      tell();
    };
    return { box, use };
  }

  function checkbox(text, changed) {
    const label = document.createElement("label"), box = document.createElement("input");
    label.className = "same";
    Object.assign(box, { type: "checkbox", checked: true });
    box.addEventListener("change", () => changed(box.checked));
    label.append(box, text);
    return label;
  }

  function set_up(element) {
    const figure = FIGURES[element.dataset.figure];
    const canvas = element.querySelector(".canvas"), controls = element.querySelector(".controls");
    let choice = figure.choices[0], frame = null, same = true;
    const caption = element.querySelector("figcaption") || element.appendChild(document.createElement("figcaption"));
    const draw = () => {
      const data = choice.data.map((trace) => ({
        ...coloured(trace), ...(frame ? { x: frame.x, z: frame.z } : {}), ...(same ? {} : { zauto: true }), visible: !hidden.has(trace.legendgroup),
      }));
      Plotly.react(canvas, data, themed(choice.layout), CONFIG);
    };
    const slide = figure.choices.some((c) => c.frames) ? slider((f) => { frame = f; draw(); }) : null;
    const choose = (i) => {
      choice = figure.choices[i];
      if (choice.says) caption.textContent = choice.says;
      if (slide) slide.use(choice.frames); else draw();
    };
    if (figure.choices.length > 1) controls.append(segments(figure.choices.map((c) => c.title), choose));
    if (slide) controls.append(slide.box, checkbox("one scale for all rounds", (on) => { same = on; draw(); }));
    drawn.set(element, draw);
    choose(0);
  }

  // figures are drawn when they come near, so that a long page is there at once
  const near = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (one.isIntersecting && !drawn.has(one.target)) {
        near.unobserve(one.target);
        set_up(one.target);
      }
    }
  }, { rootMargin: "600px 0px" });
  const places = [...document.querySelectorAll("[data-figure]")];
  places.forEach((place) => near.observe(place));
  const redraw = () => drawn.forEach((draw) => draw());
  addEventListener("beforeprint", () => places.forEach((p) => { if (!drawn.has(p) && p.offsetParent) set_up(p); }));

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("fedstrata-theme", root.dataset.theme); } catch (e) { /* a page from a file may not */ }
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const group = chip.dataset.group;
      if (!hidden.delete(group)) hidden.add(group);
      for (const same of document.querySelectorAll(`.chip[data-group="${group}"]`)) {
        same.setAttribute("aria-pressed", String(!hidden.has(group)));
      }
      redraw();
    });
  }

  const method = document.getElementById("lens-method");
  if (method) {
    const show = () => document.querySelectorAll("[data-lens]").forEach((p) => { p.hidden = p.dataset.lens !== method.value; });
    method.addEventListener("change", () => { show(); dispatchEvent(new Event("resize")); });
    show(); // browsers may remember another choice
  }

  for (const table of document.querySelectorAll("table.sorted")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || (head.getAttribute("aria-sort") === "none" && !head.classList.contains("n"));
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value !== undefined ? parseFloat(cell.dataset.value) : cell.textContent.trim();
      };
      const order = (a, b) => {
        const x = key(a), y = key(b);
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1; // what is not known stays below
        return (typeof x === "number" ? x - y : x.localeCompare(y)) * (up ? 1 : -1);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
      heads.forEach((h) => h.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    }));
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre").textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch (e) {
        getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  const links = new Map([...document.querySelectorAll(".toc a")].map((a) => [a.hash.slice(1), a]));
  const spy = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (one.isIntersecting) {
        links.forEach((a, id) => a.classList.toggle("here", id === one.target.id));
      }
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("section").forEach((section) => spy.observe(section));
})();
