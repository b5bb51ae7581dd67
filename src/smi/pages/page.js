"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const selectAll = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("js");

  // -------------------------------------------------------------------------------- light and dark

  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  let choice = null; // the theme chosen by the button; null follows the system
  try {
    choice = localStorage.getItem("smi-theme");
  } catch { /* browsers may refuse storage to a page from a file */ }
  const printing = () => root.classList.contains("printing");
  const dark = () => !printing() && (choice ? choice === "dark" : systemDark.matches);
  const button = document.getElementById("theme");
  const setTheme = () => {
    root.dataset.theme = dark() ? "dark" : "light";
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
    drawn.forEach((redraw) => redraw());
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    choice = dark() ? "light" : "dark";
    try { localStorage.setItem("smi-theme", choice); } catch { /* see above */ }
    setTheme();
  });
  systemDark.addEventListener("change", () => setTheme());

  // Figures are drawn for white paper. On a dark page each of their colours has a lighter version.
  const colour = (name) => (dark() && data.colours.dark[name]) || name;
  const themed = (value) => {
    if (typeof value === "string") return colour(value);
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(themed);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
    }
    return value;
  };

  // ----------------------------------------------------------------------------------------- plots

  const NARROW = 620;
  const TALL = 650; // pixels that a figure has on paper, beneath the title of the page
  const coarse = matchMedia("(pointer: coarse)");
  const copy = (value) => JSON.parse(JSON.stringify(value));

  const axes = (layout, letter) => (
    Object.keys(layout).filter((key) => new RegExp(`^${letter}axis\\d*$`).test(key))
  );
  const short = (key) => key.replace("axis", "");

  const rows = (axis) => axis.categoryarray?.length || 6;

  // Stacks panels that are side by side. Titles placed on the paper stay with their panel.
  const stack = (layout) => {
    const panels = axes(layout, "x").map((key) => {
      const x = layout[key], name = `yaxis${(x.anchor || "y").slice(1)}`, y = layout[name];
      if (!y) return null;
      const [left, right] = x.domain || [0, 1];
      return { key, name, x, y, left, middle: (left + right) / 2, top: (y.domain || [0, 1])[1] };
    }).filter(Boolean);
    if (new Set(panels.map((panel) => panel.left)).size < 2) return false;
    panels.sort((a, b) => b.top - a.top || a.left - b.left);
    for (const note of layout.annotations || []) {
      if (note.xref !== "paper" || note.yref !== "paper") continue;
      const home = panels.find((panel) => (
        Math.abs(panel.middle - note.x) < 0.02 && Math.abs(panel.top - note.y) < 0.03
      ));
      if (!home) continue;
      const domains = { xref: `${short(home.key)} domain`, yref: `${short(home.name)} domain` };
      Object.assign(note, domains, { x: 0.5, y: 1, yanchor: "bottom" });
    }
    const gap = 92; // a list of rows needs less height than curves
    const highs = panels.map(({ y }) => (y.type === "category" ? 24 + 34 * rows(y) : 230));
    const total = highs.reduce((sum, high) => sum + high, gap * (panels.length - 1));
    let top = 1;
    panels.forEach(({ x, y }, i) => {
      x.domain = [0, 1];
      y.domain = [Math.max(0, top - highs[i] / total), top];
      y.showticklabels = true;
      top -= (highs[i] + gap) / total;
    });
    layout.height = total + (layout.margin?.t ?? 40) + 90;
    return true;
  };

  const fitted = (spec, width) => {
    const layout = copy(spec.layout);
    const narrow = !spec.width && width < NARROW; // a figure with its own width scrolls
    layout.width = width;
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    const fontSize = narrow ? 12 : layout.font?.size ?? 14;
    layout.font = { ...layout.font, color: data.colours.ink, size: fontSize };
    layout.modebar = {
      bgcolor: layout.paper_bgcolor,
      color: data.colours.hoverEdge,
      activecolor: data.colours.ink,
    };
    if (coarse.matches) layout.dragmode = false; // a finger scrolls the page
    layout.hoverlabel = {
      ...layout.hoverlabel,
      bgcolor: data.colours.hover[dark() ? 1 : 0],
      bordercolor: data.colours.hoverEdge,
      font: { size: 12, color: data.colours.ink },
    };
    for (const letter of "xy") {
      for (const key of axes(layout, letter)) {
        const axis = layout[key];
        axis.gridcolor ??= data.colours.grid;
        axis.linecolor ??= data.colours.ink;
        axis.zerolinecolor ??= data.colours.grid;
        axis.automargin = axis.automargin || letter === "y" || undefined;
      }
    }
    if (printing() && !spec.width && layout.height < TALL) { // one row of panels
      layout.height = Math.min(layout.height, 310);
    }
    if (narrow) {
      // At most two entries of the legend fit side by side.
      const named = spec.data.filter((trace) => trace.name && trace.showlegend !== false);
      const listed = named.length;
      const most = printing() ? 215 : Math.max(320, width * 0.82);
      if (!stack(layout)) layout.height = Math.min(layout.height, most);
      if (layout.showlegend !== false && listed > 2) layout.height += 15 * listed - 20;
      layout.margin = { ...layout.margin, l: 56, r: 14, ...(printing() && { b: 50 }) };
      for (const key of [...axes(layout, "x"), ...axes(layout, "y")]) {
        const axis = layout[key];
        if (axis.tickfont) axis.tickfont = { ...axis.tickfont, size: 11 };
        if (axis.title?.font) axis.title.font.size = 12;
        if (printing() && axis.title) axis.title.standoff = 2;
      }
      for (const note of layout.annotations || []) {
        note.font = { ...note.font, size: 12 };
        const words = String(note.text || ""); // a title may take two lines
        if (!words.includes("<br>") && words.length > 46) {
          note.text = words.replace(/^(.{20,46}?)[ ](?=.)/, "$1<br>");
        }
      }
      if (layout.showlegend !== false) {
        const { itemsizing } = layout.legend || {};
        const place = { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom" };
        layout.legend = { ...place, font: { size: 12 }, ...(itemsizing && { itemsizing }) };
      }
    }
    return layout;
  };

  // Saves the figure as it is printed: white, with its caption, in the width it was made for.
  const save = (spec) => Plotly.downloadImage(
    { data: copy(spec.data), layout: copy(spec.paper) },
    { format: "svg", filename: spec.file, width: spec.paper.width, height: spec.paper.height },
  );
  const config = (spec, width) => ({
    responsive: false,
    doubleClickDelay: 400,
    displaylogo: false,
    showSendToCloud: false, // nothing leaves this page
    // On a small screen it would cover titles and legends.
    displayModeBar: spec.paper && !coarse.matches && width >= NARROW ? "hover" : false,
    modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d"],
  });
  for (const saveButton of selectAll("[data-save]")) {
    saveButton.hidden = false;
    saveButton.addEventListener("click", () => save(data.plots[saveButton.dataset.save]));
  }

  const drawn = new Map(); // elements, and the functions that redraw them
  const drawPlot = (element) => {
    if (drawn.has(element)) return;
    const spec = data.plots[element.dataset.plot];
    const space = element.parentElement;
    let before = 0;
    const redraw = () => {
      const available = space.clientWidth;
      if (!available) return;
      before = available;
      // A figure with its own width is never enlarged, and shrinks to three quarters at most.
      const least = Math.round(0.75 * (spec.width || 0));
      const width = spec.width ? Math.max(Math.min(available, spec.width), least) : available;
      const shrink = printing() ? Math.min(1, TALL / spec.layout.height) : 1;
      const layout = fitted(spec, Math.round(width / shrink));
      element.style.zoom = shrink;
      element.style.width = spec.width || shrink < 1 ? `${layout.width}px` : "";
      element.style.height = `${layout.height}px`;
      Plotly.react(element, themed(spec.data), themed(layout), config(spec, layout.width));
    };
    drawn.set(element, redraw);
    redraw();
    new ResizeObserver(() => {
      if (space.clientWidth && space.clientWidth !== before) redraw();
    }).observe(space);
  };

  // ---------------------------------------------------------------------------------------- clouds

  const MAX_LEGEND_CLASSES = 30;
  const polygon = (...corners) => (c) => {
    for (const [x, y] of corners) c.lineTo(x, y);
    c.closePath();
  };
  const star = Array.from({ length: 10 }, (_, i) => {
    const radius = i % 2 ? 0.55 : 1.3;
    return [radius * Math.sin(i * Math.PI / 5), -radius * Math.cos(i * Math.PI / 5)];
  });
  const SYMBOLS = [ // paths around 0 of size 1; a class with the same number always looks the same
    (c) => c.arc(0, 0, 1, 0, 7),
    (c) => c.rect(-0.88, -0.88, 1.76, 1.76),
    polygon([0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]),
    polygon([0, -1.2], [1.15, 0.9], [-1.15, 0.9]),
    (c) => { c.rect(-1.15, -0.4, 2.3, 0.8); c.rect(-0.4, -1.15, 0.8, 2.3); },
    polygon([0, 1.2], [1.15, -0.9], [-1.15, -0.9]),
    polygon(...star),
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
    const image = new Image();
    const name = document.createElement("strong");
    const file = document.createElement("span");
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
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    const centre = [0, 1, 2].map((k) => mean(spec.points.map((point) => point[k])));
    const distance = (point) => Math.hypot(...point.map((value, k) => value - centre[k]));
    const radii = spec.points.map(distance).sort((a, b) => a - b);
    const scale = radii[radii.length - 1] || 1;
    const points = spec.points.map((place) => place.map((value, k) => (value - centre[k]) / scale));
    const present = sample.labels ? [...new Set(sample.labels)].sort((a, b) => a - b) : [0];
    const number = new Map(present.map((label, i) => [label, i]));
    const kind = (i) => (sample.labels ? number.get(sample.labels[i]) : 0);
    const hidden = new Set();
    let yaw = 0.7, pitch = 0.45, zoom = 1, chosen = -1, projected = [];

    const paint = () => {
      const width = canvas.clientWidth, height = canvas.clientHeight;
      const dense = Math.min(devicePixelRatio || 1, 2);
      if (!width) return;
      if (canvas.width !== Math.round(width * dense)) canvas.width = Math.round(width * dense);
      if (canvas.height !== Math.round(height * dense)) canvas.height = Math.round(height * dense);
      c.setTransform(dense, 0, 0, dense, 0, 0);
      c.clearRect(0, 0, width, height);
      // In perspective a point at distance 1 is at most 1.053 from the centre; 8 px for its mark.
      const size = (Math.min(width, height) / 2 - 8) / 1.053 * zoom;
      const sy = Math.sin(yaw), cy = Math.cos(yaw), sp = Math.sin(pitch), cp = Math.cos(pitch);
      const project = ([x, y, z]) => {
        const x1 = x * cy - y * sy, y1 = x * sy + y * cy;
        const z2 = z * cp - y1 * sp, depth = y1 * cp + z * sp, near = 3.2 / (3.2 + depth);
        return [width / 2 + x1 * near * size, height / 2 - z2 * near * size, depth, near];
      };
      globe(project);
      projected = points.map(project);
      const order = projected.map((_, i) => i).sort((a, b) => projected[b][2] - projected[a][2]);
      for (const i of order) {
        const [x, y, depth, near] = projected[i];
        const opacity = Math.max(0.45, Math.min(1, 0.85 - 0.3 * depth));
        c.globalAlpha = hidden.has(kind(i)) ? 0.06 : opacity;
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
    const globe = (project) => { // three circles around all points, to show how they are rotated
      c.strokeStyle = colour(data.colours.boxEdge);
      c.lineWidth = 1;
      for (const axis of [0, 1, 2]) {
        c.beginPath();
        for (let i = 0; i <= 72; i++) {
          const point = [Math.cos(i * Math.PI / 36), Math.sin(i * Math.PI / 36)];
          point.splice(axis, 0, 0);
          c.lineTo(...project(point).slice(0, 2));
        }
        c.stroke();
      }
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
      const mouse = event.pointerType === "mouse";
      if (!from) return choose(mouse ? at(event.offsetX, event.offsetY, 14) : chosen);
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
      const reach = event.pointerType === "mouse" ? 14 : 26;
      if (from && !from.moved) choose(at(event.offsetX, event.offsetY, reach));
      from = null;
    });
    canvas.addEventListener("pointercancel", () => { from = null; });
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && !from) choose(-1);
    });
    canvas.addEventListener("blur", () => choose(-1));
    canvas.addEventListener("wheel", (event) => { // only with focus; otherwise the page scrolls
      if (document.activeElement !== canvas) return;
      event.preventDefault();
      zoom = Math.max(0.5, Math.min(6, zoom * Math.exp(-event.deltaY / 400)));
      choose(-1);
    }, { passive: false });
    const step = (by) => {
      const order = points.map((_, i) => i).filter((i) => !hidden.has(kind(i)));
      order.sort((a, b) => kind(a) - kind(b) || a - b);
      if (!order.length) return;
      const start = order.indexOf(chosen) + (chosen < 0 && by < 0 ? 1 : 0);
      choose(order[(start + by + order.length) % order.length]);
    };
    canvas.addEventListener("keydown", (event) => {
      const turns = {
        ArrowLeft: [0.12, 0], ArrowRight: [-0.12, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1],
      };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (turns[event.key]) {
        yaw += turns[event.key][0];
        pitch = Math.max(-1.5, Math.min(1.5, pitch + turns[event.key][1]));
        chosen = -1;
        hideCard();
        paint();
      } else if (event.key === "+" || event.key === "=") {
        zoom = Math.min(6, zoom * 1.2);
        choose(-1);
      } else if (event.key === "-") {
        zoom = Math.max(0.5, zoom / 1.2);
        choose(-1);
      } else if (event.key === "n" || event.key === "N") step(1);
      else if (event.key === "p" || event.key === "P") step(-1);
      else if (event.key === "Escape") choose(-1);
      else return;
      event.preventDefault();
    });
    const swatches = [];
    if (sample.labels && present.length <= MAX_LEGEND_CLASSES) {
      element.querySelector(".legend").replaceChildren(...present.map((label, i) => {
        const item = document.createElement("li"), toggle = document.createElement("button");
        const swatch = document.createElement("canvas"), name = document.createElement("span");
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
      for (const [swatch, i] of swatches) {
        const pen = swatch.getContext("2d");
        pen.clearRect(0, 0, 26, 26);
        mark(pen, 13, 13, 9, i);
      }
    };
    drawn.set(element, redraw);
    redraw();
    new ResizeObserver(redraw).observe(canvas);
  };
  addEventListener("scroll", hideCard, { passive: true });

  // ---------------------------------------------------------- what is wider than the screen fades

  const fade = (element) => {
    const hidden = element.scrollWidth - element.clientWidth - element.scrollLeft;
    element.classList.toggle("more-left", element.scrollLeft > 2);
    element.classList.toggle("more-right", hidden > 2);
  };
  for (const element of selectAll(".scroll, .tabs, .gallery")) {
    element.addEventListener("scroll", () => fade(element), { passive: true });
    const sizes = new ResizeObserver(() => fade(element));
    [element, ...element.children].forEach((box) => sizes.observe(box));
  }

  // ------------------------------------------------------------ draw elements that come into sight

  const draw = (element) => {
    if (element.dataset.plot) drawPlot(element);
    else if (element.dataset.cloud) drawCloud(element);
    else if (!element.src) {
      const isSmall = () => element.classList.toggle("small", element.naturalWidth < 48);
      element.addEventListener("load", isSmall);
      element.src = data.pictures[element.dataset.picture];
    }
  };
  const pending = selectAll("[data-plot], [data-cloud], [data-picture]");
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      sight.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "700px 0px" });
  pending.forEach((element) => sight.observe(element));

  // -------------------------------------------------------------------------------------- choosers

  const choosers = selectAll(".chooser");
  const pick = (chooser, input) => {
    input.checked = true;
    for (const option of selectAll(":scope > .option", chooser)) {
      option.classList.toggle("chosen", option.dataset.value === input.value);
    }
  };
  for (const chooser of choosers) {
    const inputs = selectAll(":scope > fieldset input", chooser);
    pick(chooser, inputs.find((input) => input.checked) || inputs[0]);
    chooser.addEventListener("change", (event) => {
      hideCard();
      for (const other of choosers) { // one choice for the whole page
        const { option } = event.target.dataset;
        const inputs = selectAll(":scope > fieldset input", other);
        const same = inputs.find((input) => input.dataset.option === option);
        if (same) pick(other, same);
      }
    });
  }

  // ------------------------------------------------------------------------------------------ tabs

  const tabs = selectAll('[role="tab"]');
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
  const select = (number, focus) => {
    hideCard();
    if (!tabs.length) return; // a page with one tab
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === number));
      tab.tabIndex = i === number ? 0 : -1;
      panels[i].classList.toggle("shown", i === number);
    });
    if (focus) tabs[number].focus({ preventScroll: true });
    // scrollIntoView would also move the place where the Tab key begins.
    document.querySelector(".tabs").scrollLeft = tabs[number].offsetLeft - 60;
  };
  const go = (number, focus) => {
    const bar = document.querySelector(".tabs"), stuck = bar.getBoundingClientRect().top <= 0;
    select(number, focus);
    try {
      history.replaceState(null, "", `#${panels[number].id}`);
    } catch { /* some kinds of address refuse it */ }
    const top = document.querySelector("main").offsetTop - bar.offsetHeight - 16;
    if (stuck) scrollTo({ top, behavior: "instant" });
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", (event) => { event.preventDefault(); go(i, true); });
    tab.addEventListener("keydown", (event) => {
      const last = tabs.length - 1;
      const targets = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: last, " ": i, Enter: i };
      const to = targets[event.key];
      if (to === undefined) return;
      event.preventDefault();
      go((to + tabs.length) % tabs.length, true);
    });
  });
  const follow = () => { // a link may name a tab, or something inside it
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const number = panels.findIndex((panel) => target && panel.contains(target));
    if (number < 0) return false;
    select(number, false);
    if (target !== panels[number]) target.scrollIntoView();
    return true;
  };
  addEventListener("hashchange", follow);
  if (!follow()) select(0, false);

  // -------------------------------------------------------------------------- copying and printing

  for (const box of selectAll(".code")) {
    const copyButton = box.querySelector(".copy"), words = box.querySelector("code");
    copyButton.hidden = false;
    copyButton.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(words.textContent);
        copyButton.textContent = "Copied";
        setTimeout(() => { copyButton.textContent = "Copy"; }, 1500);
      } catch { getSelection().selectAllChildren(words); } // for the reader to copy
    });
  }

  const print = (on) => {
    if (printing() === on) return;
    hideCard();
    root.classList.toggle("printing", on);
    if (on) pending.forEach(draw);
    setTheme();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  const paper = matchMedia("print");
  paper.addEventListener("change", () => print(paper.matches));
  setTheme();
})();
