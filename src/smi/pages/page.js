"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const every = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("js");

  // ------------------------------------------------------------------------------------------------------------------- light and dark

  const wanted = matchMedia("(prefers-color-scheme: dark)");
  let asked = null; // by the button; until then what the system says
  try { asked = localStorage.getItem("smi-theme"); } catch { /* a page from a file may be refused a memory */ }
  const dark = () => !root.classList.contains("printing") && (asked ? asked === "dark" : wanted.matches);
  const button = document.getElementById("theme");
  const setTheme = () => {
    root.dataset.theme = dark() ? "dark" : "light";
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
    drawn.forEach((redraw) => redraw());
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    asked = dark() ? "light" : "dark";
    try { localStorage.setItem("smi-theme", asked); } catch { /* as above */ }
    setTheme();
  });
  wanted.addEventListener("change", () => setTheme());

  // Figures are drawn for white paper. On a dark page each of their colours has a lighter version.
  const colour = (name) => (dark() && data.colours.dark[name]) || name;
  const themed = (value) => {
    if (typeof value === "string") return colour(value);
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(themed);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
    return value;
  };

  // ---------------------------------------------------------------------------------------------------------------------------- plots

  const NARROW = 620;
  const coarse = matchMedia("(pointer: coarse)");
  const copy = (value) => JSON.parse(JSON.stringify(value));

  const axes = (layout, letter) => Object.keys(layout).filter((key) => new RegExp(`^${letter}axis\\d*$`).test(key));
  const short = (key) => key.replace("axis", "");

  // Panels beside each other come one beneath the other; titles that were placed on the paper stay with their panel.
  const stack = (layout) => {
    const panels = axes(layout, "x").map((key) => {
      const x = layout[key], name = `yaxis${(x.anchor || "y").slice(1)}`, y = layout[name];
      return y && { key, name, x, y, left: (x.domain || [0, 1])[0], middle: (x.domain || [0, 1]).reduce((a, b) => a + b) / 2, top: (y.domain || [0, 1])[1] };
    }).filter(Boolean);
    if (new Set(panels.map((panel) => panel.left)).size < 2) return false;
    panels.sort((a, b) => b.top - a.top || a.left - b.left);
    for (const note of layout.annotations || []) {
      if (note.xref !== "paper" || note.yref !== "paper") continue;
      const home = panels.find((panel) => Math.abs(panel.middle - note.x) < 0.02 && Math.abs(panel.top - note.y) < 0.03);
      if (home) Object.assign(note, { xref: `${short(home.key)} domain`, yref: `${short(home.name)} domain`, x: 0.5, y: 1, yanchor: "bottom" });
    }
    const high = 230, gap = 92, total = panels.length * high + (panels.length - 1) * gap;
    panels.forEach(({ x, y }, i) => {
      const top = 1 - i * (high + gap) / total;
      x.domain = [0, 1];
      y.domain = [top - high / total, top];
      y.showticklabels = true;
    });
    layout.height = total + (layout.margin?.t ?? 40) + 90;
    return true;
  };

  const fitted = (spec, width) => {
    const layout = copy(spec.layout);
    const narrow = !spec.width && width < NARROW; // a figure with its own width scrolls
    layout.width = width;
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { ...layout.font, color: data.colours.ink, size: narrow ? 12 : layout.font?.size ?? 14 };
    layout.modebar = { bgcolor: layout.paper_bgcolor, color: data.colours.hoverEdge, activecolor: data.colours.ink };
    if (coarse.matches) layout.dragmode = false; // a finger scrolls the page
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: data.colours.hover[dark() ? 1 : 0], bordercolor: data.colours.hoverEdge, font: { size: 12, color: data.colours.ink } };
    for (const letter of "xy") {
      for (const key of axes(layout, letter)) {
        const axis = layout[key];
        axis.gridcolor ??= data.colours.grid;
        axis.linecolor ??= data.colours.ink;
        axis.zerolinecolor ??= data.colours.grid;
        axis.automargin = axis.automargin || letter === "y" || undefined;
      }
    }
    if (narrow) {
      const listed = spec.data.filter((trace) => trace.name && trace.showlegend !== false).length; // at most two beside each other
      if (!stack(layout)) layout.height = Math.min(layout.height, Math.max(320, width * 0.82));
      if (layout.showlegend !== false && listed > 2) layout.height += 15 * listed - 20;
      layout.margin = { ...layout.margin, l: 56, r: 14 };
      for (const key of [...axes(layout, "x"), ...axes(layout, "y")]) {
        const axis = layout[key];
        if (axis.tickfont) axis.tickfont = { ...axis.tickfont, size: 11 };
        if (axis.title?.font) axis.title.font.size = 12;
      }
      for (const note of layout.annotations || []) {
        note.font = { ...note.font, size: 12 };
        const words = String(note.text || ""); // a title may take two lines
        if (!words.includes("<br>") && words.length > 46) note.text = words.replace(/^(.{20,46}?)[ ](?=.)/, "$1<br>");
      }
      if (layout.showlegend !== false) layout.legend = { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 12 }, ...(layout.legend?.itemsizing && { itemsizing: layout.legend.itemsizing }) };
    }
    return layout;
  };

  // Saves the figure as it is printed: white, with its caption, in the width it was made for.
  const save = (spec) => Plotly.downloadImage(
    { data: copy(spec.data), layout: copy(spec.paper) },
    { format: "svg", filename: spec.file, width: spec.paper.width, height: spec.paper.height },
  );
  const config = (spec) => ({
    responsive: false,
    doubleClickDelay: 400,
    displaylogo: false,
    showSendToCloud: false, // nothing leaves this page
    displayModeBar: spec.paper ? "hover" : false,
    modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d"],
  });
  for (const saveButton of every("[data-save]")) {
    saveButton.hidden = false;
    saveButton.addEventListener("click", () => save(data.plots[saveButton.dataset.save]));
  }

  const drawn = new Map(); // elements, and how each is drawn anew
  const drawPlot = (element) => {
    if (drawn.has(element)) return;
    const spec = data.plots[element.dataset.plot];
    const space = element.parentElement;
    let before = 0;
    const redraw = () => {
      const available = space.clientWidth;
      if (!available) return;
      before = available;
      const width = spec.width ? Math.max(Math.min(available, spec.width), Math.round(0.75 * spec.width)) : available;
      const layout = fitted(spec, width);
      element.style.width = spec.width ? `${width}px` : "";
      element.style.height = `${layout.height}px`;
      Plotly.react(element, themed(spec.data), themed(layout), config(spec));
    };
    drawn.set(element, redraw);
    redraw();
    new ResizeObserver(() => { if (space.clientWidth && space.clientWidth !== before) redraw(); }).observe(space);
  };

  // --------------------------------------------------------------------------------------------------------------------------- clouds

  const LISTED = 30; // classes in a legend
  const SYMBOLS = [ // paths around 0 of size 1; the same number of a class always looks the same
    (c) => c.arc(0, 0, 1, 0, 7),
    (c) => c.rect(-0.88, -0.88, 1.76, 1.76),
    (c) => { c.moveTo(0, -1.25); c.lineTo(1.25, 0); c.lineTo(0, 1.25); c.lineTo(-1.25, 0); c.closePath(); },
    (c) => { c.moveTo(0, -1.2); c.lineTo(1.15, 0.9); c.lineTo(-1.15, 0.9); c.closePath(); },
    (c) => { for (const [x, y, w, h] of [[-1.15, -0.4, 2.3, 0.8], [-0.4, -1.15, 0.8, 2.3]]) c.rect(x, y, w, h); },
    (c) => { c.moveTo(0, 1.2); c.lineTo(1.15, -0.9); c.lineTo(-1.15, -0.9); c.closePath(); },
    (c) => { for (let i = 0; i < 10; i++) c.lineTo((i % 2 ? 0.55 : 1.3) * Math.sin(i * Math.PI / 5), -(i % 2 ? 0.55 : 1.3) * Math.cos(i * Math.PI / 5)); c.closePath(); },
  ];
  const mark = (c, x, y, size, number) => {
    c.save();
    c.translate(x, y);
    c.scale(size, size);
    c.beginPath();
    SYMBOLS[number % SYMBOLS.length](c);
    c.restore();
    c.fillStyle = colour(data.colours.classes[number % data.colours.classes.length]);
    c.fill();
  };

  const card = document.getElementById("card");
  const hideCard = () => { card.hidden = true; };
  const showCard = (x, y, sample, i) => {
    const image = new Image(), name = document.createElement("strong"), file = document.createElement("span");
    image.alt = "";
    image.className = "small";
    image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth < 48));
    image.src = data.pictures[sample.pictures[i]];
    name.textContent = sample.labels ? className(sample, sample.labels[i]) : "";
    file.textContent = sample.names[i];
    card.replaceChildren(image, ...(sample.labels ? [name] : []), file);
    card.hidden = false;
    const { width, height } = card.getBoundingClientRect();
    card.style.left = `${Math.max(6, x + 18 + width > innerWidth ? x - width - 18 : x + 18)}px`;
    card.style.top = `${Math.max(6, Math.min(y - height / 2, innerHeight - height - 6))}px`;
  };
  const className = (sample, label) => (sample.classes ? sample.classes[label] : String(label));

  const drawCloud = (element) => {
    if (drawn.has(element)) return;
    const spec = data.clouds[element.dataset.cloud], sample = data.samples[spec.sample];
    const canvas = element.querySelector("canvas"), c = canvas.getContext("2d");
    const centre = [0, 1, 2].map((k) => spec.points.reduce((sum, place) => sum + place[k], 0) / spec.points.length);
    const radii = spec.points.map((place) => Math.hypot(...place.map((value, k) => value - centre[k]))).sort((a, b) => a - b);
    const scale = radii[Math.floor(0.98 * (radii.length - 1))] || 1;
    const points = spec.points.map((place) => place.map((value, k) => (value - centre[k]) / scale));
    const present = sample.labels ? [...new Set(sample.labels)].sort((a, b) => a - b) : [0];
    const number = new Map(present.map((label, i) => [label, i]));
    const kind = (i) => (sample.labels ? number.get(sample.labels[i]) : 0);
    const hidden = new Set();
    let yaw = 0.7, pitch = 0.45, zoom = 1, chosen = -1, projected = [];

    const paint = () => {
      const width = canvas.clientWidth, height = canvas.clientHeight, dense = Math.min(devicePixelRatio || 1, 2);
      if (!width) return;
      if (canvas.width !== Math.round(width * dense)) canvas.width = Math.round(width * dense);
      if (canvas.height !== Math.round(height * dense)) canvas.height = Math.round(height * dense);
      c.setTransform(dense, 0, 0, dense, 0, 0);
      c.clearRect(0, 0, width, height);
      const size = Math.min(width, height) * 0.54 * zoom, sy = Math.sin(yaw), cy = Math.cos(yaw), sp = Math.sin(pitch), cp = Math.cos(pitch);
      const project = ([x, y, z]) => {
        const x1 = x * cy - y * sy, y1 = x * sy + y * cy, z2 = z * cp - y1 * sp, depth = y1 * cp + z * sp, near = 3.2 / (3.2 + depth);
        return [width / 2 + x1 * near * size, height / 2 - z2 * near * size, depth, near];
      };
      cube(project);
      projected = points.map(project);
      const order = projected.map((_, i) => i).sort((a, b) => projected[b][2] - projected[a][2]);
      for (const i of order) {
        const [x, y, depth, near] = projected[i];
        c.globalAlpha = hidden.has(kind(i)) ? 0.06 : Math.max(0.45, Math.min(1, 0.85 - 0.3 * depth));
        mark(c, x, y, Math.max(2, 4 * near * Math.sqrt(zoom)), kind(i));
      }
      c.globalAlpha = 1;
      if (chosen >= 0) {
        const [x, y] = projected[chosen];
        c.beginPath();
        c.arc(x, y, 9, 0, 7);
        c.lineWidth = 2.5;
        c.strokeStyle = getComputedStyle(document.body).color;
        c.stroke();
      }
    };
    const cube = (project) => { // edges of a box, to see which way it is turned
      c.strokeStyle = colour(data.colours.boxEdge);
      c.lineWidth = 1;
      const corners = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => project([1, 2, 4].map((bit) => (i & bit ? 0.72 : -0.72))));
      c.beginPath();
      for (let i = 0; i < 8; i++) for (const bit of [1, 2, 4]) if (!(i & bit)) { c.moveTo(...corners[i].slice(0, 2)); c.lineTo(...corners[i | bit].slice(0, 2)); }
      c.stroke();
    };
    const at = (x, y, reach) => {
      let best = -1, least = reach;
      projected.forEach(([px, py], i) => {
        const distance = Math.hypot(px - x, py - y);
        if (distance < least && !hidden.has(kind(i))) { best = i; least = distance; }
      });
      return best;
    };
    const choose = (i) => {
      if (chosen === i && !card.hidden) return;
      chosen = i;
      paint();
      if (i < 0) return hideCard();
      const box = canvas.getBoundingClientRect();
      showCard(box.left + projected[i][0], box.top + projected[i][1], sample, i);
    };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, yaw, pitch, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) return choose(event.pointerType === "mouse" ? at(event.offsetX, event.offsetY, 14) : chosen);
      const dx = event.clientX - from.x, dy = event.clientY - from.y;
      if (!from.moved && Math.hypot(dx, dy) < 5) return;
      from.moved = true;
      yaw = from.yaw - dx / 140;
      pitch = Math.max(-1.5, Math.min(1.5, from.pitch + dy / 140));
      chosen = -1;
      hideCard();
      paint();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from && !from.moved) choose(at(event.offsetX, event.offsetY, event.pointerType === "mouse" ? 14 : 26));
      from = null;
    });
    canvas.addEventListener("pointercancel", () => { from = null; });
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !from) choose(-1); });
    canvas.addEventListener("blur", () => choose(-1));
    canvas.addEventListener("wheel", (event) => { // only once it is focused: else the page scrolls
      if (document.activeElement !== canvas) return;
      event.preventDefault();
      zoom = Math.max(0.5, Math.min(6, zoom * Math.exp(-event.deltaY / 400)));
      choose(-1);
    }, { passive: false });
    const step = (by) => {
      const order = points.map((_, i) => i).filter((i) => !hidden.has(kind(i))).sort((a, b) => kind(a) - kind(b) || a - b);
      if (order.length) choose(order[(order.indexOf(chosen) + by + order.length + (chosen < 0 && by < 0 ? 1 : 0)) % order.length]);
    };
    canvas.addEventListener("keydown", (event) => {
      const turns = { ArrowLeft: [0.12, 0], ArrowRight: [-0.12, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (turns[event.key]) {
        yaw += turns[event.key][0];
        pitch = Math.max(-1.5, Math.min(1.5, pitch + turns[event.key][1]));
        chosen = -1;
        hideCard();
        paint();
      } else if (event.key === "+" || event.key === "=") { zoom = Math.min(6, zoom * 1.2); choose(-1); }
      else if (event.key === "-") { zoom = Math.max(0.5, zoom / 1.2); choose(-1); }
      else if (event.key === "n" || event.key === "N") step(1);
      else if (event.key === "p" || event.key === "P") step(-1);
      else if (event.key === "Escape") choose(-1);
      else return;
      event.preventDefault();
    });
    const swatches = [];
    if (sample.labels && present.length <= LISTED) {
      element.querySelector(".legend").replaceChildren(...present.map((label, i) => {
        const item = document.createElement("li"), toggle = document.createElement("button"), swatch = document.createElement("canvas"), name = document.createElement("span");
        swatch.width = swatch.height = 26;
        swatches.push([swatch, i]);
        name.textContent = className(sample, label);
        toggle.type = "button";
        toggle.setAttribute("aria-pressed", "true");
        toggle.append(swatch, name);
        toggle.addEventListener("click", () => {
          if (!hidden.delete(i)) hidden.add(i);
          toggle.setAttribute("aria-pressed", String(!hidden.has(i)));
          choose(-1);
          paint();
        });
        item.append(toggle);
        return item;
      }));
    }
    const redraw = () => {
      paint();
      for (const [swatch, i] of swatches) { const pen = swatch.getContext("2d"); pen.clearRect(0, 0, 26, 26); mark(pen, 13, 13, 9, i); }
    };
    drawn.set(element, redraw);
    redraw();
    new ResizeObserver(redraw).observe(canvas);
  };
  addEventListener("scroll", hideCard, { passive: true });

  // -------------------------------------------------------------------------------------------------------- what comes into sight

  const draw = (element) => {
    if (element.dataset.plot) drawPlot(element);
    else if (element.dataset.cloud) drawCloud(element);
    else if (!element.src) {
      element.addEventListener("load", () => element.classList.toggle("small", element.naturalWidth < 48));
      element.src = data.pictures[element.dataset.picture];
    }
  };
  const pending = every("[data-plot], [data-cloud], [data-picture]");
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { sight.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "700px 0px" });
  pending.forEach((element) => sight.observe(element));

  // ------------------------------------------------------------------------------------------------------------------------- choosers

  const choosers = every(".chooser");
  const pick = (chooser, input) => {
    input.checked = true;
    for (const option of every(":scope > .option", chooser)) option.classList.toggle("chosen", option.dataset.value === input.value);
  };
  for (const chooser of choosers) {
    const inputs = every(":scope > fieldset input", chooser);
    pick(chooser, inputs.find((input) => input.checked) || inputs[0]);
    chooser.addEventListener("change", (event) => {
      hideCard();
      for (const other of choosers) { // one choice for the whole page
        const same = every(":scope > fieldset input", other).find((input) => input.dataset.option === event.target.dataset.option);
        if (same) pick(other, same);
      }
    });
  }

  // ----------------------------------------------------------------------------------------------------------------------------- tabs

  const tabs = every('[role="tab"]');
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
  const select = (number, focus) => {
    hideCard();
    if (!tabs.length) return; // a page of one part
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === number));
      tab.tabIndex = i === number ? 0 : -1;
      panels[i].classList.toggle("shown", i === number);
    });
    if (focus) tabs[number].focus({ preventScroll: true });
    document.querySelector(".tabs").scrollLeft = tabs[number].offsetLeft - 60; // scrollIntoView would also move where Tab begins
  };
  const go = (number, focus) => {
    const bar = document.querySelector(".tabs"), stuck = bar.getBoundingClientRect().top <= 0;
    select(number, focus);
    try { history.replaceState(null, "", `#${panels[number].id}`); } catch { /* not for every kind of address */ }
    if (stuck) scrollTo({ top: document.querySelector("main").offsetTop - bar.offsetHeight - 16, behavior: "instant" });
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", (event) => { event.preventDefault(); go(i, true); });
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1, " ": i, Enter: i }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      go((to + tabs.length) % tabs.length, true);
    });
  });
  const follow = () => { // a link may name a part, or something in it
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const number = panels.findIndex((panel) => target && panel.contains(target));
    if (number < 0) return false;
    select(number, false);
    if (target !== panels[number]) target.scrollIntoView();
    return true;
  };
  addEventListener("hashchange", follow);
  if (!follow()) select(0, false);

  // --------------------------------------------------------------------------------------------------------------- copying, printing

  for (const box of every(".code")) {
    const copyButton = box.querySelector(".copy"), words = box.querySelector("code");
    copyButton.hidden = false;
    copyButton.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(words.textContent);
        copyButton.textContent = "Copied";
        setTimeout(() => { copyButton.textContent = "Copy"; }, 1500);
      } catch { getSelection().selectAllChildren(words); } // to be copied by hand
    });
  }

  const print = (on) => {
    if (root.classList.contains("printing") === on) return;
    hideCard();
    root.classList.toggle("printing", on);
    if (on) pending.forEach(draw);
    for (const detail of every("details")) {
      if (on) { detail.dataset.was = detail.open ? "1" : ""; detail.open = true; } else detail.open = Boolean(detail.dataset.was);
    }
    setTheme();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  const paper = matchMedia("print");
  paper.addEventListener("change", () => print(paper.matches));
  setTheme();
})();
