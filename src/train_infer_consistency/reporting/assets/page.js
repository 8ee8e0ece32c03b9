"use strict";
// Draws the report from the data packed into the page. Text from dumps is only ever set as text, never as markup.
(async () => {
  const byId = (id) => document.getElementById(id);
  const WORDS = JSON.parse(byId("packed-words").textContent);
  const STATS = ["max", "min", "mean", "norm"];
  const STATES = ["differs", "missing", "not compared", "within rounding", "equal", "partnerless"];
  const COLOURS = {
    "equal": "#e3edf6", "within rounding": "#6fa8d6", "differs": "#d9571f",
    "not compared": "#b4bcc6", "missing": "#75649f", "partnerless": "#f1f3f5",
  };
  const PAGE = 100;
  let lang = "en", data = null, current = null, shown = PAGE;
  const filter = { text: "", words: new Set(), layer: "" };

  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  // "layer {n}" with {n: 3}; a word that is missing is shown by its key, so that it is seen.
  const word = (key, values = {}) => {
    const found = key.split(".").reduce((at, part) => at?.[part], WORDS[lang]) ?? key;
    return found.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  };
  const among = (group, key) => WORDS[lang][group]?.[key] ?? key;
  const real = (value) => (typeof value === "string" ? Number(value) : value);
  const figure = (value) => {
    if (value === null || value === undefined) return word("not_available");
    if (typeof value === "string") return value;
    return value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6 ? value.toExponential(4) : String(Number(value.toPrecision(7)));
  };
  const short = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value.replace("Infinity", "∞") : value === 0 ? "0" : value < 1e-2 || value >= 1e4 ? value.toExponential(1) : String(Number(value.toPrecision(2))));

  // element("td", {class: "number"}, "text", another element ...)
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "style") made.style.cssText = value;
      else if (value !== null && value !== false) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };
  const table = (headers, rows, numbers = []) => element("table", {},
    element("thead", {}, element("tr", {}, ...headers.map((text, i) => element("th", { class: numbers.includes(i) ? "number" : null }, text)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", { class: numbers.includes(i) ? "number" : null }, cell))))));
  const state = (name) => element("span", { class: "word", style: `--colour:${COLOURS[name]}` }, among("words", name));
  const path = (text) => element("span", { class: "path" }, text);
  const empty = (key) => element("p", { class: "empty" }, word(key));
  const layerOf = (module) => (/^layers\.(\d+)(\.|$)/.exec(module) ?? [])[1] ?? "";

  // Error of a row as in the tables: of its elements, else the largest of its statistics.
  const errorOf = (row) => {
    if (row.tensor) return row.tensor.relative;
    const known = (row.errors ?? []).filter((value) => value !== null);
    if (known.length) return known.reduce((a, b) => (real(b) > real(a) ? b : a));
    return row.word === "equal" ? 0 : null;
  };
  const SEVERITY = { "not compared": 0, "equal": 1, "within rounding": 2, "differs": 3 };
  const worstRow = (module) => module.rows.reduce((best, row) => {
    if (!best) return row;
    const key = (r) => [SEVERITY[r.word], real(r.worst) || 0, real(errorOf(r)) || 0];
    const [a, b] = [key(row), key(best)];
    const at = a.findIndex((value, i) => value !== b[i]);
    return at >= 0 && a[at] > b[at] ? row : best;
  }, null);

  const places = (list) => element("ul", { class: "places" }, ...list.map(([file, entry, slot]) => {
    const { path: where, step, rank } = data.files[file];
    return element("li", {}, path(where), ` · ${word("step")} ${step ?? "–"} · ${word("rank")} ${rank ?? "–"} · `, path(entry), slot ? ` · ${slot}` : "");
  }));

  // Figures of both sides, their errors, and where each is from.
  const rowFigures = (row) => {
    const parts = [], rows = [];
    for (const side of ["inference", "training"]) {
      const at = row[side];
      if (at) rows.push([word(side), at.dtype.replace("torch.", ""), `${at.tokens} × ${at.features}`, ...at.stats.map(figure), at.crc ?? "–"]);
    }
    if (row.errors) rows.push([word("relative_error"), "", "", ...row.errors.map(short), ""]);
    if (rows.length) parts.push(element("div", { class: "wide" }, table(["", word("dtype"), word("size"), ...STATS.map((s) => word(s)), word("crc")], rows, [3, 4, 5, 6])));
    const facts = [];
    if (row.evidence) facts.push(word(`by_${row.evidence}`));
    if (row.tensor) for (const [name, value] of Object.entries(row.tensor)) if (value !== null) facts.push(`${word(name === "relative" ? "relative_error" : name)}: ${figure(value)}`);
    if (row.evidence && row.evidence !== "crc") facts.push(`${word("bound")}: ${short(row.bound)}`, `${word("of_bound")}: ${short(row.worst)}`);
    if (row.reason) facts.push(row.reason);
    if (facts.length) parts.push(element("div", {}, facts.join(" · ")));
    for (const side of ["inference", "training"]) {
      const at = row[side];
      if (!at) continue;
      const how = [at.merged ? word("merged", { n: at.places.length }) : "", at.derived ? word("derived", { from: at.derived }) : ""].filter(Boolean).join(", ");
      parts.push(element("div", {}, `${word(side)}, ${word("from")}${how ? ` (${how})` : ""}:`), places(at.places));
    }
    return parts;
  };
  const kindOf = (kind) => among("kinds", kind);

  const drawSummary = () => {
    const pair = current === null ? null : data.pairs[current];
    const verdict = byId("verdict");
    verdict.className = data.verdict;
    verdict.textContent = among("verdict", data.verdict);
    byId("headline").textContent = headline();
    byId("meaning").textContent = [among("meaning", data.verdict), word("reasons_language")].filter(Boolean).join(" ");
    drawPlan();
    const cards = [];
    if (pair) {
      const counts = pair.counts, counted = STATES.slice(0, 5).reduce((sum, name) => sum + counts[name], 0);
      const compared = counts.equal + counts["within rounding"] + counts.differs;
      const bar = element("div", { class: "bar" }, ...["equal", "within rounding", "differs", "not compared", "missing"].map((name) =>
        element("i", { style: `background:${COLOURS[name]};width:${counted ? (100 * counts[name]) / counted : 0}%`, title: `${counts[name]} ${among("words", name)}` })));
      cards.push(element("div", { class: "card" }, element("b", { id: "coverage" }, `${(100 * pair.coverage).toFixed(1)} %`), element("span", {}, word("coverage")), bar,
        word("coverage_of", { compared, counted }), counts.partnerless ? element("div", { class: "quiet" }, word("partnerless_more", { n: counts.partnerless })) : ""));
      cards.push(element("div", { class: "card" }, element("b", {}, String(counted)), element("span", {}, word("module_words")),
        element("ul", { style: "list-style:none;padding:0" }, ...STATES.slice(0, 5).filter((name) => counts[name]).map((name) => element("li", {}, `${counts[name]} `, state(name))))));
    }
    const verdicts = ["different", "insufficient", "consistent"].map((name) => [name, data.pairs.filter((p) => p.verdict === name).length]).filter(([, n]) => n);
    cards.push(element("div", { class: "card" }, element("b", {}, String(data.pairs.length)), element("span", {}, word("pairs_compared")),
      element("ul", {}, ...verdicts.map(([name, n]) => element("li", {}, word("pairs_by_verdict", { n, verdict: among("verdict", name) }))))));
    const unused = data.rejected.counts.reduce((sum, [, , , n]) => sum + n, 0);
    cards.push(element("div", { class: "card" }, element("b", {}, String(unused)), element("span", {}, word("steps_unused")),
      element("ul", {}, ...data.rejected.counts.slice(0, 4).map(([side, reason, text, n]) => element("li", {}, `${n} × ${WORDS[lang].reasons[reason] ?? text} (${word(side)})`)))));
    byId("cards").replaceChildren(...cards);
    byId("sides").replaceChildren(...(pair ? ["inference", "training"].filter((side) => pair[side]).map((side) => sideCard(pair, side)) : []));
    byId("notes").replaceChildren(...(pair ? [
      ...["inference", "training"].flatMap((side) => (pair[side]?.problems ?? []).map((text) => element("li", { class: "problem" }, `${word("problem")}: ${text}`))),
      ...pair.notes.map((text) => element("li", {}, `${word("note")}: ${text}`))] : []));
  };
  const drawPlan = () => {
    const plan = data.plan;
    byId("plan").hidden = !plan;
    if (!plan) return;
    const doubt = !plan.run_id ? plan.note : plan.fits === null ? word("plan_unknown") : plan.fits ? "" : word("plan_other", { runs: plan.logs_run_ids.join(", ") });
    const named = plan.run_id ? [`${word("plan", plan)} · `, path(plan.folder ? `${plan.folder} (${plan.file})` : plan.file)] : [];
    byId("plan").replaceChildren(...named, doubt ? element("strong", {}, ` ${doubt}`) : "");
  };
  const headline = () => {
    const pair = data.main === null ? null : data.pairs[data.main];
    if (lang === "en" || !pair) return data.reason;
    const difference = pair.first_difference;
    if (data.verdict === "different" && difference) {
      const error = errorOf(difference);
      const values = { module: difference.module, kind: kindOf(difference.kind), reason: difference.reason, error: short(error), bound: short(difference.bound) };
      return word(error === null ? "head_different_plain" : "head_different", values);
    }
    if (data.verdict !== "consistent" || data.pairs.length > 1) return data.reason;
    const counts = pair.counts, total = STATES.slice(0, 5).reduce((sum, name) => sum + counts[name], 0);
    return word("head_consistent", { equal: counts.equal, within: counts["within rounding"], total });
  };
  const sideCard = (pair, name) => {
    const side = pair[name], verified = side.dialect_verified === "not verified";
    const facts = [[word("dialect"), `${side.title} (${verified ? word("not_verified") : `${word("verified")}: ${side.dialect_verified}`})`],
      [word("layers"), `${side.layers}`], [word("tokens"), `${side.tokens} (${pair.identity})`]];
    if (side.tensor_parallel > 1) facts.push([word("parallel"), String(side.tensor_parallel)]);
    if (pair.request_id) facts.push([word("request"), pair.request_id]);
    const files = element("dd", {}, ...side.files.slice(0, 8).map((file) => element("div", { class: "path" }, file)), side.files.length > 8 ? `+ ${side.files.length - 8}` : "");
    return element("div", { class: "card" }, element("strong", {}, word(name)), element("dl", {},
      ...facts.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]), element("dt", {}, word("dumps")), files));
  };

  const drawDifference = () => {
    const difference = current === null ? null : data.pairs[current].first_difference;
    if (!difference) return byId("difference-body").replaceChildren(empty("no_difference"));
    const title = element("p", {}, element("strong", { class: "path", id: "difference-module" }, difference.module), ` · ${kindOf(difference.kind)}`);
    const alone = difference.side === "both" ? "" : ` ${word("side_alone", { side: word(difference.side) })}`;
    byId("difference-body").replaceChildren(title, element("p", { class: "quiet" }, word("where_different") + alone), ...rowFigures(difference));
  };

  const layout = (more) => ({ font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "#1b2430" }, paper_bgcolor: "#fff", plot_bgcolor: "#fff", hoverlabel: { align: "left" }, ...more });
  const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const onClick = (plot, act) => { plot.removeAllListeners?.("plotly_click"); plot.on("plotly_click", act); };
  const showColumn = (column) => { filter.layer = /^\d+$/.test(column) ? column : "outside"; filter.text = ""; drawFilters(); drawTable(); byId("modules").scrollIntoView(); };

  // An axis of columns, not more names on it than can be read.
  const axis = (names) => {
    const every = Math.ceil(names.length / 60), kept = names.map((_, i) => i).filter((i) => i % every === 0 || !/^\d+$/.test(names[i]));
    return { tickvals: kept, ticktext: kept.map((i) => names[i]), title: { text: word("axis_layer") }, automargin: true, showgrid: false, zeroline: false, range: [-0.6, names.length - 0.4] };
  };
  const drawCurve = () => {
    const plot = byId("curve"), points = data.pairs[current].curve, x = points.map(([column]) => column), at = x.map((_, i) => i);
    const worst = points.map(([, , cell]) => (cell ? real(cell[2]) : null)), output = points.map(([, value]) => real(value)), bound = points.map(([, , cell]) => (cell && cell[3] > 0 ? cell[3] : null));
    const positive = [...worst, ...output].filter((value) => value > 0 && Number.isFinite(value));
    // A logarithmic axis has no zero: equal layers lie on a line of their own, below the smallest error.
    const floor = positive.length ? 10 ** (Math.floor(Math.log10(Math.min(...positive))) - 1) : 1e-9;
    const top = Math.max(...positive, ...bound.filter((value) => value !== null), floor * 10);
    const put = (values) => values.map((value) => (value === null || Number.isNaN(value) ? null : value > 0 ? Math.min(value, top * 10) : floor));
    const hover = (values, cells) => values.map((value, i) => value === null ? "" : `${x[i]}<br>${word("error")}: ${short(value)}` + (cells && points[i][2] ? `<br>${points[i][2][4]} ${kindOf(points[i][2][5])}<br>${word("of_bound")}: ${short(points[i][2][1])}` : ""));
    const colours = points.map(([, , cell]) => (cell && cell[0] === "differs" ? "#c2410c" : "#1657a8"));
    const traces = [
      { name: word("curve_worst"), x: at, y: put(worst), text: hover(worst, true), mode: "lines+markers", line: { color: "#1657a8", width: 2 }, marker: { color: colours, size: 8 } },
      { name: word("curve_output"), x: at, y: put(output), text: hover(output, false), mode: "lines+markers", line: { color: "#2a9d8f", width: 1.5 }, marker: { symbol: "square-open", size: 7 } },
      { name: word("curve_bound"), x: at, y: bound, text: bound.map((value) => (value === null ? "" : `${word("bound")}: ${short(value)}`)), mode: "lines", line: { color: "#8a94a1", dash: "dash", width: 1.5 } },
    ].map((trace) => ({ type: "scatter", hovertemplate: "%{text}<extra>%{fullData.name}</extra>", connectgaps: false, ...trace }));
    const exponents = [], low = Math.round(Math.log10(floor)), high = Math.ceil(Math.log10(top)) + 1;
    for (let e = low; e <= high; e += Math.ceil((high - low + 1) / 9)) exponents.push(e);
    const ticks = { tickvals: exponents.map((e) => 10 ** e), ticktext: exponents.map((e, i) => (i === 0 ? "0" : `1e${e}`)) };
    const shapes = [], annotations = [], first = data.pairs[current].first_difference;
    const column = first ? layerOf(first.module) || first.module : null;
    // Columns are drawn at 0, 1, 2 ...: plotly would take the name "3" on an axis of names for the fourth of them.
    const here = x.indexOf(column);
    if (here >= 0) {
      shapes.push({ type: "line", x0: here, x1: here, yref: "paper", y0: 0, y1: 1, line: { color: "#c2410c", width: 1, dash: "dot" } });
      annotations.push({ x: here, yref: "paper", y: 1, yanchor: "bottom", text: `${word("first_here")}: ${first.module}`, showarrow: false, font: { color: "#c2410c" }, xanchor: here < x.length / 2 ? "left" : "right" });
    }
    if (!positive.length) annotations.push({ xref: "paper", yref: "paper", x: 0.5, y: 0.5, text: word("curve_zero"), showarrow: false });
    Plotly.react(plot, traces, layout({ margin: { l: 70, r: 20, t: 90, b: 50 }, shapes, annotations, hovermode: "closest", legend: { orientation: "h", y: 1.1, yanchor: "bottom" },
      xaxis: axis(x),
      yaxis: { type: "log", range: [Math.log10(floor) - 0.3, Math.log10(top) + 0.6], title: { text: word("axis_error") }, gridcolor: "#eef1f4", ...ticks } }), CONFIG);
    onClick(plot, (event) => showColumn(x[event.points[0].x]));
  };

  // Within rounding 0 to 1 by the share of the bound; beyond it 1 to 2 by its logarithm, a hundred bounds and more at the end.
  const heatOf = (cell) => {
    const share = real(cell[1]);
    if (cell[0] === "equal") return 0;
    if (cell[0] === "within rounding") return 0.1 + 0.85 * Math.min(1, share);
    return 1.05 + 0.95 * Math.min(1, Number.isFinite(share) ? Math.max(0, Math.log10(Math.max(share, 1)) / 2) : 1);
  };
  const SCALE = [[0, COLOURS.equal], [0.04, "#d3e3f2"], [0.48, "#4a8fc7"], [0.52, "#fdbe85"], [0.75, "#e6550d"], [1, "#8c2d04"]];
  const rowName = (name) => ({ "(outside the layers)": `(${word("outside")})`, "(layer output)": `(${word("curve_output")})` })[name] ?? name;
  const drawHeat = () => {
    const plot = byId("heat"), view = byId("view").value, { rows, columns, cells } = data.pairs[current].heat[view];
    const other = { "not compared": 0, "missing": 1, "partnerless": 2 };
    const text = cells.map((line) => line.map((cell) => cell === null ? "" : `${cell[4]} ${kindOf(cell[5])}<br>${among("words", cell[0])}` +
      (cell[2] === null ? "" : `<br>${word("error")}: ${short(cell[2])}<br>${word("of_bound")}: ${short(cell[1])}`)));
    const common = { type: "heatmap", x: columns.map((_, i) => i), y: rows, text, hovertemplate: "%{text}<extra></extra>", xgap: columns.length > 150 ? 0 : 1, ygap: 1, showscale: false, hoverongaps: false };
    const grey = [[0, COLOURS["not compared"]], [0.33, COLOURS["not compared"]], [0.34, COLOURS.missing], [0.66, COLOURS.missing], [0.67, COLOURS.partnerless], [1, COLOURS.partnerless]];
    const traces = [
      { ...common, zmin: 0, zmax: 2, colorscale: grey, z: cells.map((line) => line.map((cell) => (cell && cell[0] in other ? other[cell[0]] : null))) },
      { ...common, zmin: 0, zmax: 2, colorscale: SCALE, z: cells.map((line) => line.map((cell) => (cell && !(cell[0] in other) ? heatOf(cell) : null))) },
    ];
    Plotly.react(plot, traces, layout({ height: 180 + 22 * rows.length, margin: { l: 190, r: 20, t: 36, b: 110 },
      xaxis: axis(columns),
      yaxis: { type: "category", autorange: "reversed", automargin: true, showgrid: false, tickmode: "array", tickvals: rows, ticktext: rows.map(rowName) } }), CONFIG);
    onClick(plot, (event) => { const { x, y } = event.points[0], cell = cells[rows.indexOf(y)][x]; if (cell) showModule(cell[4]); });
    const swatch = (colour, label) => element("span", {}, element("i", { class: "swatch", style: `background:${colour}` }), label);
    byId("legend").replaceChildren(swatch(COLOURS.equal, among("words", "equal")), swatch("linear-gradient(90deg,#d3e3f2,#4a8fc7)", among("words", "within rounding")),
      swatch("linear-gradient(90deg,#fdbe85,#e6550d,#8c2d04)", `${among("words", "differs")} (1 → 100 × ${word("bound")})`), ...["not compared", "missing", "partnerless"].map((name) => swatch(COLOURS[name], among("words", name))));
  };

  const modules = () => (current === null ? [] : data.pairs[current].modules ?? []);
  const fits = (module) => {
    const layer = layerOf(module.module), text = filter.text.toLowerCase();
    if (filter.words.size && !filter.words.has(module.word)) return false;
    if (filter.layer && filter.layer !== (layer || "outside")) return false;
    return text.split(/\s+/).every((part) => `${module.module} ${module.reason} ${among("words", module.word)} ${module.rows.map((row) => `${row.kind} ${row.reason}`).join(" ")}`.toLowerCase().includes(part));
  };
  const showModule = (name) => {
    Object.assign(filter, { text: name, layer: "" });
    filter.words.clear();
    drawFilters(); drawTable();
    for (const row of document.querySelectorAll("#table tr.module")) if (row.dataset.module === name) toggle(row, true);
    byId("modules").scrollIntoView();
  };
  const toggle = (row, open) => {
    const next = row.nextElementSibling, isOpen = next?.classList.contains("detail");
    if (isOpen && !open) next.remove();
    else if (!isOpen) row.after(element("tr", { class: "detail" }, element("td", { colspan: 6 }, ...details(modules().find((module) => module.module === row.dataset.module)))));
    row.setAttribute("aria-expanded", String(!isOpen || Boolean(open)));
  };
  const details = (module) => {
    if (!module.rows.length) return [module.on ? `${word("on")}: ${word(module.on)}` : "", places(module.places)];
    return module.rows.flatMap((row) => [element("p", { class: "row-title" }, `${kindOf(row.kind)} `, state(row.word)), ...rowFigures(row)]);
  };
  const drawTable = (keep = false) => {
    if (!keep) shown = PAGE;
    const all = modules(), found = all.filter(fits), sizes = [3, 4];
    byId("table").tHead.replaceChildren(element("tr", {}, ...["module", "word", "worst_row", "error", "of_bound", "reason"].map((key, i) => element("th", { class: sizes.includes(i) ? "number" : null }, word(key)))));
    byId("table").tBodies[0].replaceChildren(...found.slice(0, shown).map((module) => {
      const row = worstRow(module);
      const act = (event) => { if (event.type === "click" || event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(event.currentTarget, false); } };
      return element("tr", { class: "module", tabindex: 0, "data-module": module.module, "aria-expanded": "false", onclick: act, onkeydown: act },
        element("td", { class: "name" }, path(module.module)), element("td", {}, state(module.word)), element("td", {}, row ? kindOf(row.kind) : "–"),
        element("td", { class: "number" }, row ? short(errorOf(row)) : "–"), element("td", { class: "number" }, row && row.evidence && row.evidence !== "crc" ? short(row.worst) : "–"), element("td", {}, module.reason || (row?.reason ?? "")));
    }));
    if (!found.length) byId("table").tBodies[0].append(element("tr", {}, element("td", { colspan: 6, class: "empty" }, word("none_found"))));
    byId("found").textContent = word("found", { n: found.length, total: all.length });
    byId("more").hidden = found.length <= shown;
  };
  const drawFilters = () => {
    byId("search").placeholder = word("search");
    byId("search").setAttribute("aria-label", word("search"));
    byId("search").value = filter.text;
    const present = new Set(modules().map((module) => module.word));
    byId("words").replaceChildren(...STATES.filter((name) => present.has(name)).map((name) => element("button", { type: "button", "data-state": name, "aria-pressed": String(filter.words.has(name)),
      onclick: () => { filter.words.has(name) ? filter.words.delete(name) : filter.words.add(name); drawFilters(); drawTable(); } }, among("words", name))));
    const layers = [...new Set(modules().map((module) => layerOf(module.module)).filter(Boolean))];
    byId("layer").replaceChildren(element("option", { value: "" }, word("all_layers")), ...layers.map((layer) => element("option", { value: layer }, layer)), element("option", { value: "outside" }, word("outside")));
    byId("layer").value = filter.layer;
    const view = byId("view").value || "all";
    byId("view").replaceChildren(...Object.entries(WORDS[lang].view).map(([name, text]) => element("option", { value: name }, text)));
    byId("view").value = view;
  };

  // "0–3, 5" for ["0", "1", "2", "3", "5"]
  const ranges = (numbers) => {
    const parts = [];
    for (const n of numbers.map(Number)) {
      const last = parts[parts.length - 1];
      if (last && n === last[1] + 1) last[1] = n; else parts.push([n, n]);
    }
    return parts.map(([a, b]) => (a === b ? String(a) : `${a}–${b}`)).join(", ");
  };
  // The same module of many layers is one line, with the places of the first.
  const drawLacking = () => {
    for (const name of ["missing", "partnerless"]) {
      const groups = new Map();
      for (const module of modules().filter((m) => (name === "missing" ? m.word === name : !m.counted && m.word !== "differs"))) {
        const layer = layerOf(module.module), title = layer ? module.module.replace(`layers.${layer}`, "layers.#") : module.module;
        const key = JSON.stringify([title, module.on, module.reason]);
        if (!groups.has(key)) groups.set(key, { title, module, layers: [] });
        if (layer) groups.get(key).layers.push(layer);
      }
      const rows = [...groups.values()].slice(0, 500).map(({ title, module, layers }) => [element("span", { class: "path name" }, title), ranges(layers) || "–",
        module.on ? word(module.on) : word("both"), module.reason, places((module.places ?? []).slice(0, 4))]);
      byId(name).replaceChildren(rows.length ? table(["module", "layer", "on", "reason", "from"].map((key) => word(key)), rows) : empty("none"), rows.length < groups.size ? word("left_out", { n: groups.size - rows.length }) : "");
    }
  };
  const drawPairs = () => {
    const headers = ["pair", "request", "word", "coverage", "first", "inference", "training", "reason"].map((key) => word(key));
    byId("used").replaceChildren(data.pairs.length ? table(headers, data.pairs.map((pair, index) => {
      const button = element("button", { type: "button", "aria-pressed": String(index === current), disabled: pair.modules ? null : "", title: pair.modules ? null : word("not_in_page"), onclick: () => choose(index) }, String(index + 1));
      const files = (side) => element("span", {}, ...(pair[side]?.files ?? []).map((file) => element("div", { class: "path" }, file)));
      return [button, pair.request_id ?? "–", among("verdict", pair.verdict), `${(100 * pair.coverage).toFixed(1)} %`, pair.first_difference?.module ?? "–", files("inference"), files("training"), pair.reason + (pair.modules ? "" : ` (${word("not_in_page")})`)];
    }), [3]) : empty("none"));
    const { counts, steps, left_out } = data.rejected;
    if (!counts.length) return byId("rejected").replaceChildren(empty("none"));
    const reasonOf = (reason, text) => `${WORDS[lang].reasons[reason] ?? text} [${reason}]`;
    const body = element("div", { class: "wide" }), all = element("details", { ontoggle: () => {
      if (!body.childElementCount) body.append(table(["side", "process", "step", "why", "request", "place"].map((key) => word(key)), steps.map(([side, process, step, reason, text, detail, request, place]) =>
        [word(side), process ?? "–", String(step ?? "–"), reasonOf(reason, text) + (detail ? `: ${detail}` : ""), request ?? "–", path(place ?? "–")])), left_out ? word("left_out", { n: left_out }) : "");
    } }, element("summary", {}, word("details")), body);
    byId("rejected").replaceChildren(element("div", { class: "wide" }, table([word("side"), word("why"), word("count")], counts.map(([side, reason, text, n]) => [word(side), reasonOf(reason, text), String(n)]), [2])), all);
  };
  const drawRest = () => {
    byId("glossary").replaceChildren(...WORDS[lang].glossary.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]));
    byId("files").replaceChildren(data.files.length ? table([word("number"), word("file"), word("step"), word("rank")], data.files.map((file, i) => [String(i + 1), path(file.path), String(file.step ?? "–"), String(file.rank ?? "–")]), [0]) : empty("none"));
    byId("footer").textContent = word("made", { version: data.version });
  };
  const draw = () => {
    document.documentElement.lang = lang === "zh" ? "zh-CN" : "en";
    document.title = `${among("verdict", data.verdict)} – ${word("title")}`;
    for (const node of document.querySelectorAll("[data-word]")) node.textContent = word(node.dataset.word);
    for (const button of document.querySelectorAll("[data-lang]")) button.setAttribute("aria-pressed", String(button.dataset.lang === lang));
    drawSummary(); drawDifference(); drawFilters(); drawTable(); drawLacking(); drawPairs(); drawRest();
    const drawn = current !== null && data.pairs[current].curve?.length > 0;
    byId("depth").hidden = !drawn;
    if (drawn) { drawCurve(); drawHeat(); }
  };
  const choose = (index) => { current = index; Object.assign(filter, { text: "", layer: "" }); filter.words.clear(); draw(); byId("summary").scrollIntoView(); };

  lang = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
  const fail = (text) => { byId("failure").hidden = false; byId("failure").textContent = text; };
  if (!window.DecompressionStream) return fail(word("old_browser"));
  try {
    data = JSON.parse(await unpack("packed-data"));
    lang = data.language ?? lang;
    current = data.main;
    document.head.append(element("script", {}, await unpack("packed-library")));
    byId("report").hidden = false;
    draw();
  } catch (error) {
    return fail(word("broken", { why: error.message }));
  }
  for (const button of document.querySelectorAll("[data-lang]")) button.addEventListener("click", () => { lang = button.dataset.lang; draw(); });
  byId("search").addEventListener("input", (event) => { filter.text = event.target.value; drawTable(); });
  byId("layer").addEventListener("change", (event) => { filter.layer = event.target.value; drawTable(); });
  byId("view").addEventListener("change", drawHeat);
  byId("reset").addEventListener("click", () => { Object.assign(filter, { text: "", layer: "" }); filter.words.clear(); drawFilters(); drawTable(); });
  byId("more").addEventListener("click", () => { shown += 5 * PAGE; drawTable(true); });
  document.body.dataset.ready = "yes";
})();
