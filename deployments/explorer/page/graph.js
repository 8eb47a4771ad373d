"use strict";

/* Draws a whole automaton and where a generation is in it. Knows numbers and texts, nothing of the page. */

/* Room for the label of an edge between two columns, and for that of a loop between two rows. */
const GAP_X = 160;
const GAP_Y = 104;
/** The longest token that a label has whole. */
const LONGEST_NAME = 7;

/** Where states stand: columns by their distance from the initial one, which comes first. state -> {x, y}. */
function layoutOf(graph) {
  const column = new Map([[graph.states[0].state, 0]]);
  const queue = [graph.states[0].state];
  for (const state of queue) {
    for (const edge of graph.edges.filter((one) => one.source === state && !column.has(one.target))) {
      column.set(edge.target, column.get(state) + 1);
      queue.push(edge.target);
    }
  }
  const filled = new Map();
  const places = new Map();
  for (const state of queue) {
    const row = filled.get(column.get(state)) || 0;
    filled.set(column.get(state), row + 1);
    places.set(state, { x: 40 + column.get(state) * GAP_X, y: 80 + row * GAP_Y });
  }
  return places;
}

/** The graph of a run, told with its first step; null where the automaton is large or there is none. */
function graphOf(steps) {
  const told = steps.find((step) => step.graph !== null);
  return told === undefined ? null : told.graph;
}

/** The edges that a run has taken before step `index`, and the one that this step takes, as "source>target". */
function wayOf(steps, index) {
  const pairs = steps.slice(0, index + 1).map((step, i) => {
    const following = steps[i + 1];
    return following === undefined ? null : `${step.state}>${following.state}`;
  });
  return { taken: new Set(pairs.slice(0, index)), next: pairs[index] || null };
}

/** One sentence for those who cannot see the drawing. */
function describeGraph(graph, here) {
  const edges = graph.edges.map((edge) => `${edge.source} to ${edge.target} on ${labelOf(edge)}`);
  return `The whole automaton, ${graph.states.length} states; now in state ${here}. ${edges.join("; ")}.`;
}

function labelOf(edge, longest = Infinity) {
  const name = shown(nameOf(edge.tokens[0]));
  const others = edge.tokens.length - 1 + edge.more_tokens;
  return `${name.length > longest ? `${name.slice(0, longest - 1)}…` : name}${others ? ` +${others}` : ""}`;
}

/** Fills `svg`: circles are states, doubled where the text may end; the way so far and the next edge in colour. */
function drawGraph(svg, steps, index) {
  const graph = graphOf(steps);
  const here = steps[index].state;
  const places = layoutOf(graph);
  const way = wayOf(steps, index);
  const corner = (side) => Math.max(...[...places.values()].map((place) => place[side])) + 50;
  svg.setAttribute("viewBox", `0 0 ${corner("x")} ${corner("y")}`);
  svg.setAttribute("width", corner("x"));
  svg.setAttribute("aria-label", describeGraph(graph, here));
  svg.replaceChildren();
  for (const edge of graph.edges) {
    const pair = `${edge.source}>${edge.target}`;
    const kind = pair === way.next ? "edge taken" : way.taken.has(pair) ? "edge passed" : "edge";
    svg.append(drawnEdge(edge, places.get(edge.source), places.get(edge.target), kind));
  }
  for (const one of graph.states) {
    const { x, y } = places.get(one.state);
    svg.append(circle(x, y, one.state, one.terminal, one.state === here ? "here" : ""));
  }
}

/** A line to the next column, an arc within a column (on its left) and to an earlier one (above), a loop to itself. */
function drawnEdge(edge, from, to, kind) {
  const group = drawn("g", { class: kind });
  const label = (x, y, anchor) =>
    drawn("text", { class: "token-label", x: x, y: y, "text-anchor": anchor }, labelOf(edge, LONGEST_NAME));
  if (edge.source === edge.target) {
    const [top, left, right] = [from.y - 66, from.x - 8, from.x + 8];
    const path = `M${left} ${from.y - RADIUS} C${left - 18} ${top} ${right + 18} ${top} ${right} ${from.y - RADIUS}`;
    group.append(drawn("path", { d: path }), label(left, top + 8, "start"));
    return group;
  }
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  const next = to.x > from.x;
  const bend = next ? middle : to.x < from.x ? { x: middle.x, y: middle.y - 84 } : { x: middle.x - 44, y: middle.y };
  const length = Math.hypot(to.x - bend.x, to.y - bend.y) || 1;
  const [dx, dy] = [(to.x - bend.x) / length, (to.y - bend.y) / length];
  const [x, y] = [to.x - dx * (RADIUS + 4), to.y - dy * (RADIUS + 4)];
  group.append(
    drawn("path", { d: `M${from.x} ${from.y} Q${bend.x} ${bend.y} ${x} ${y}` }),
    drawn("path", { class: "head", d: `M${x} ${y} l${-9 * dx - 4 * dy} ${-9 * dy + 4 * dx} l${8 * dy} ${-8 * dx} z` }),
    // Nearer to the source than to the target: lines that cross do so in the middle.
    next ? label(from.x + (to.x - from.x) * 0.4, from.y + (to.y - from.y) * 0.4 - 5, "middle")
    : to.x < from.x ? label((from.x + bend.x) / 2 - 8, from.y * 0.49 + bend.y * 0.42 + to.y * 0.09 - 5, "middle") : label(middle.x - 26, middle.y + 4, "end"),
  );
  return group;
}
