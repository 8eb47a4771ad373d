"use strict";

/* Draws the automaton around a state: where its tokens lead. Knows numbers and texts, nothing of the page. */

const ROW = 52;
const RADIUS = 16;

/** An SVG element with attributes and text; the page's own drawing knows the namespace. */
function drawn(name, attributes, text) {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  made.textContent = text || "";
  return made;
}

/** What leads from a step's state, one row for each successor; `next`: the state of the next step, null after the last. */
function surroundingsOf(step, next) {
  const rows = step.automaton.successors.map((one) => {
    const taken = one.tokens.some((token) => keyOf(token) === step.key);
    return {
      state: one.state === null && taken && next !== null ? next : one.state,
      terminal: one.terminal,
      taken: taken,
      same: one.state === step.state,
      tokens: one.tokens.map((token) => shown(nameOf(token))),
      others: one.more_tokens,
    };
  });
  return { state: step.state, terminal: step.automaton.terminal, rows: rows, others: step.automaton.more_successors };
}

/** One sentence for those who cannot see the drawing. */
function describeSurroundings(around) {
  const parts = around.rows.map((row) => {
    const name = row.same ? "itself" : row.state === null ? "a state not visited yet" : `state ${row.state}`;
    return `${row.tokens.join(" ")}${row.others ? ` and ${row.others} more` : ""} to ${name}` +
      `${row.terminal ? ", accepting" : ""}${row.taken ? ", taken" : ""}`;
  });
  const kind = around.terminal ? "accepting" : "not accepting";
  return `State ${around.state}, ${kind}. ${parts.join("; ")}.${around.others ? ` And ${around.others} more states.` : ""}`;
}

/** Fills `svg`, `width` pixels wide. Circles are states, doubled where the text may end. */
function drawAutomaton(svg, around, width) {
  const height = Math.max(around.rows.length, 1) * ROW + (around.others ? 24 : 0);
  const middle = (around.rows.length * ROW) / 2;
  const [left, bend, right] = [RADIUS + 6, RADIUS + Math.min(90, width / 4), width - RADIUS - 6];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("aria-label", describeSurroundings(around));
  svg.replaceChildren();
  around.rows.forEach((row, index) => {
    const y = (index + 0.5) * ROW;
    const group = drawn("g", { class: row.taken ? "edge taken" : "edge" });
    const end = right - RADIUS - (row.terminal ? 4 : 0);
    group.append(
      drawn("path", { d: `M${left + RADIUS} ${middle} C${bend} ${middle} ${left + RADIUS + 10} ${y} ${bend} ${y} L${end} ${y}` }),
      drawn("path", { class: "head", d: `M${end} ${y} l-9 -4.5 v9 z` }),
      edgeLabel(row, bend, y - 7, (end - bend - 12) / 8),
      circle(right, y, row.same ? "↺" : row.state === null ? "" : row.state, row.terminal),
    );
    svg.append(group);
  });
  if (around.others) {
    svg.append(drawn("text", { x: bend, y: height - 6 }, `and ${around.others} more states`));
  }
  svg.append(circle(left, middle, around.state, around.terminal, "here"));
}

function circle(x, y, label, terminal, className) {
  const group = drawn("g", { class: `state ${className || ""}` });
  if (terminal) {
    group.append(drawn("circle", { cx: x, cy: y, r: RADIUS + 4 }));
  }
  group.append(drawn("circle", { cx: x, cy: y, r: RADIUS }));
  group.append(drawn("text", { x: x, y: y + 4, "text-anchor": "middle" }, String(label)));
  return group;
}

/** As many tokens as fit on the edge, at least one, then how many others there are. */
function edgeLabel(row, x, y, room) {
  const count = row.tokens.length + row.others;
  const [texts, rest] = [[], (many) => (many ? ` +${many}` : "")];
  for (const token of row.tokens) {
    const length = [...texts, token].join("  ").length + rest(count - texts.length - 1).length;
    if (texts.length && length > room) {
      break;
    }
    texts.push(token);
  }
  const label = drawn("text", { class: "token-label", x: x, y: y });
  label.append(drawn("tspan", {}, texts.join("\u00a0\u00a0")), drawn("tspan", { class: "rest" }, rest(count - texts.length)));
  return label;
}
