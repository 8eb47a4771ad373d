"use strict";

/* Draws a whole automaton and where a generation is in it. Knows numbers and texts, nothing of the page. */

const GAP_X = 110;
const GAP_Y = 64;

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
    places.set(state, { x: 40 + column.get(state) * GAP_X, y: 50 + row * GAP_Y });
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

function labelOf(edge) {
  const [first] = edge.tokens;
  const others = edge.tokens.length - 1 + edge.more_tokens;
  return `${shown(nameOf(first))}${others ? ` +${others}` : ""}`;
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

/** A straight line to a later column, an arc to any other state, a loop to itself. */
function drawnEdge(edge, from, to, kind) {
  const group = drawn("g", { class: kind });
  const loops = edge.source === edge.target;
  const bend = to.x > from.x ? 0 : 34;
  const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 - (loops ? 42 : bend) };
  const path = loops
    ? `M${from.x - 8} ${from.y - RADIUS} C${from.x - 26} ${from.y - 46} ${from.x + 26} ${from.y - 46} ${from.x + 8} ${from.y - RADIUS}`
    : `M${from.x} ${from.y} Q${middle.x} ${middle.y - bend} ${to.x} ${to.y}`;
  group.append(drawn("path", { d: path }));
  if (!loops) {
    const length = Math.hypot(to.x - middle.x, to.y - middle.y + bend) || 1;
    const [dx, dy] = [(to.x - middle.x) / length, (to.y - middle.y + bend) / length];
    const [x, y] = [to.x - dx * (RADIUS + 4), to.y - dy * (RADIUS + 4)];
    group.append(drawn("path", { class: "head", d: `M${x} ${y} l${-9 * dx - 4 * dy} ${-9 * dy + 4 * dx} l${8 * dy} ${-8 * dx} z` }));
  }
  group.append(drawn("text", { class: "token-label", x: middle.x, y: middle.y - 5, "text-anchor": "middle" }, labelOf(edge)));
  return group;
}
