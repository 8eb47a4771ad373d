"use strict";

/* The page: sends the request, keeps which step is shown, and draws it. */

const byId = (id) => document.getElementById(id);
const runs = { masked: null, free: null, broken: Infinity };
const view = { run: "masked", index: 0, answered: new Map(), right: 0 };
/** Where the tab keeps the API key, for the status page as well. */
const KEY = "turnstile-api-key";
const PREDICTIONS = { s: "survives", r: "replaced", n: "nothing" };

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className || "";
  return made;
}

async function complete(constraint) {
  const key = byId("api-key").value.trim();
  sessionStorage.setItem(KEY, key);
  const response = await fetch("../v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
    body: JSON.stringify({
      messages: [{ role: "user", content: byId("prompt").value }],
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      seed: byId("seed").valueAsNumber,
      diagnostics: true,
      logprobs: true,
      raw_logprobs: true,
      ...(constraint ? { structured_outputs: constraint } : {}),
    }),
  });
  const body = await response.json();
  if (response.status === 401) {
    throw new Error(key ? "The server does not know this API key. Enter another one above." : "The server needs an API key. Enter it above.");
  }
  if (!response.ok) {
    throw new Error(body.error.message);
  }
  const choice = body.choices[0];
  const notes = body.grammar ? body.grammar.notes : [];
  return { steps: stepsOf(choice), finishReason: choice.finish_reason, constrained: Boolean(constraint), notes: notes };
}

async function submit(event) {
  event.preventDefault();
  byId("run").disabled = true;
  byId("status").className = "";
  byId("status").textContent = "Generating…";
  try {
    const constraint = constraintOf(byId("kind").value, byId("constraint").value);
    [runs.masked, runs.free] = await Promise.all([complete(constraint), complete(null)]);
    byId("status").textContent = "";
    byId("result").hidden = false;
    compare();
    view.answered.clear();
    view.right = 0;
    view.index = 0;
    select("masked");
    byId("position").focus();
  } catch (error) {
    byId("result").hidden = true;
    byId("status").className = "error";
    byId("status").textContent = error.message;
  } finally {
    byId("run").disabled = false;
  }
}

/** Both outputs side by side, and where the free one breaks. */
function compare() {
  byId("notes").hidden = runs.masked.notes.length === 0;
  byId("note-list").replaceChildren(...runs.masked.notes.map((note) => element("li", note)));
  const divergence = divergenceOf(runs.masked, runs.free);
  runs.broken = divergence !== null && divergence.breaks ? divergence.index : Infinity;
  byId("masked-text").textContent = textOf(runs.masked.steps);
  byId("free-text").textContent = textOf(runs.free.steps.slice(0, runs.broken));
  byId("broken-text").textContent = textOf(runs.free.steps.slice(runs.broken));
  byId("verdict").textContent = verdictOf(runs.masked, runs.free);
}

function textOf(steps) {
  return new TextDecoder().decode(new Uint8Array(steps.flatMap((step) => step.bytes)));
}

function select(run) {
  view.run = run;
  document.querySelector(`input[name=run][value=${run}]`).checked = true;
  const { steps, constrained, finishReason } = runs[run];
  byId("summary").textContent = summaryOf(steps, constrained, finishReason);
  byId("checks").textContent = constrained ? checksOf(steps) : "";
  byId("position").max = Math.max(1, steps.length);
  byId("tokens").replaceChildren(...steps.map(tokenItem));
  go(view.index);
}

function tokenItem(step, index) {
  const item = document.createElement("li");
  const kinds = ["forced", "drafted", "replaced"].filter((kind) => step[kind]);
  if (view.run === "free" && index >= runs.broken) {
    kinds.push("broken");
  }
  const button = element("button", shown(step.token), `token ${kinds.join(" ")}`);
  button.type = "button";
  button.tabIndex = -1;
  button.setAttribute("aria-label", `Token ${index + 1}: ${step.token}${kinds.length ? `, ${kinds.join(", ")}` : ""}`);
  button.addEventListener("click", () => go(index));
  item.append(button);
  return item;
}

function go(index) {
  const { steps } = runs[view.run];
  view.index = Math.max(0, Math.min(index, steps.length - 1));
  byId("position").value = view.index + 1;
  [...byId("tokens").children].forEach((item, i) => {
    const button = item.firstElementChild;
    button.classList.toggle("ahead", i > view.index);
    if (i === view.index) {
      button.setAttribute("aria-current", "step");
      item.scrollIntoView({ block: "nearest" });
    } else {
      button.removeAttribute("aria-current");
    }
  });
  draw();
}

function draw() {
  const { steps, constrained } = runs[view.run];
  const step = steps[view.index];
  const predicts = constrained && byId("predict").checked;
  const asks = Boolean(step) && predicts && !view.answered.has(view.index);
  // Later tokens and their colours would give the next answers away, and the one asked for this one.
  byId("tokens").classList.toggle("covered", predicts);
  byId("tokens").classList.toggle("asking", asks);
  byId("tokens").ariaHidden = String(predicts);
  byId("overview").hidden = predicts;
  byId("question").hidden = !asks;
  const told = predicts ? view.answered.get(view.index) : undefined;
  byId("feedback").hidden = told === undefined;
  byId("feedback").textContent = told || "";
  byId("step").hidden = asks || !step;
  byId("score").textContent = view.answered.size ? `${view.right} of ${view.answered.size} right` : "";
  if (asks) {
    const { text, raw } = step.favourite;
    byId("asked").textContent =
      `Token ${view.index + 1}: left alone, the model would most likely go on with ${shown(text)} (${percent(raw)}). ` +
      "What becomes of it?";
  } else if (step) {
    drawStep(step);
  }
}

function drawStep(step) {
  const { steps, constrained } = runs[view.run];
  const flags = ["forced", "drafted"].filter((flag) => step[flag]);
  const remarks = step.takenBack ? [...flags, `${step.takenBack} tokens taken back`] : flags;
  byId("headline").textContent =
    `Token ${view.index + 1} of ${steps.length}: ${shown(step.token)}${remarks.length ? ` (${remarks.join(", ")})` : ""}`;
  byId("allowed").textContent = constrained ? step.allowed.toLocaleString("en") : "all: there is no mask";
  byId("mass").value = step.rejectionMass;
  byId("mass-number").textContent = percent(step.rejectionMass);
  byId("favourite").textContent =
    `${shown(step.favourite.text)} (${percent(step.favourite.raw)})${step.replaced ? ", which breaks the constraint" : ""}`;
  byId("state").textContent = constrained ? step.state : "none";
  byId("row").textContent = constrained ? rowOf(steps, view.index) : "none";
  byId("choices").replaceChildren(...step.rows.map(choiceRow));
  drawSurroundings(step);
  const graph = constrained ? graphOf(steps) : null;
  byId("graph-figure").hidden = graph === null;
  if (graph !== null) {
    drawGraph(byId("graph"), steps, view.index);
    const here = byId("graph").querySelector(".here circle").cx.baseVal.value;
    byId("graph-figure").scrollLeft = here - byId("graph-figure").clientWidth / 2;
  }
}

function drawSurroundings(step) {
  byId("automaton-figure").hidden = step.automaton === null;
  if (step.automaton !== null) {
    const following = runs[view.run].steps[view.index + 1];
    const around = surroundingsOf(step, following === undefined ? null : following.state);
    const width = Math.max(280, Math.min(560, byId("automaton-figure").clientWidth));
    drawAutomaton(byId("automaton"), around, width);
  }
}

function choiceRow(row) {
  const line = document.createElement("tr");
  line.className = row.allowed ? "" : "forbidden";
  const name = element("th", shown(row.text));
  name.scope = "row";
  const fate = [row.allowed ? "allowed" : "forbidden"];
  if (row.favourite) {
    fate.push("the model's favourite");
  }
  if (row.drawn) {
    fate.push("chosen");
  }
  line.append(name, bar(row.raw, "raw"), bar(row.masked, "masked"), element("td", fate.join(", ")));
  return line;
}

function bar(probability, className) {
  const cell = element("td", "", className);
  const filled = document.createElement("progress");
  filled.max = 1;
  filled.value = probability;
  filled.setAttribute("aria-hidden", "true");
  cell.append(filled, element("span", percent(probability)));
  return cell;
}

function answer(predicted) {
  const step = runs[view.run].steps[view.index];
  const truth = step.replaced ? "replaced" : "survives";
  view.answered.set(view.index, feedbackOf(step, predicted));
  view.right += predicted === truth ? 1 : 0;
  draw();
}

function keyed(event) {
  const typing = event.target.matches("textarea, select, input:not([type=range], [type=radio], [type=checkbox])");
  if (byId("result").hidden || typing || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const last = runs[view.run].steps.length - 1;
  const moves = { ArrowLeft: view.index - 1, ArrowRight: view.index + 1, Home: 0, End: last };
  if (event.key in moves) {
    event.preventDefault();
    go(moves[event.key]);
  } else if (event.key === "m") {
    select(view.run === "masked" ? "free" : "masked");
  } else if (!byId("question").hidden && event.key in PREDICTIONS) {
    answer(PREDICTIONS[event.key]);
  }
}

function show(example) {
  byId("note").textContent = example.note;
  byId("prompt").value = example.prompt;
  byId("kind").value = example.kind;
  byId("constraint").value = example.constraint;
}

byId("example").append(...EXAMPLES.map((example) => element("option", example.name)));
byId("example").addEventListener("change", (event) => show(EXAMPLES[event.target.selectedIndex]));
byId("request").addEventListener("submit", submit);
byId("previous").addEventListener("click", () => go(view.index - 1));
byId("next").addEventListener("click", () => go(view.index + 1));
byId("position").addEventListener("input", (event) => go(event.target.valueAsNumber - 1));
byId("predict").addEventListener("change", draw);
byId("survives").addEventListener("click", () => answer("survives"));
byId("is-replaced").addEventListener("click", () => answer("replaced"));
byId("is-stuck").addEventListener("click", () => answer("nothing"));
document.querySelectorAll("input[name=run]").forEach((radio) => {
  radio.addEventListener("change", () => select(radio.value));
});
document.addEventListener("keydown", keyed);
window.addEventListener("resize", () => byId("result").hidden || draw());
byId("api-key").value = sessionStorage.getItem(KEY) || "";
show(EXAMPLES[0]);
