"use strict";

/* From an answer of /v1/chat/completions to what the page shows. Knows nothing of the page. */

/** One object for each token of a choice that was asked for with `diagnostics`, `logprobs` and `raw_logprobs`. */
function stepsOf(choice) {
  return (choice.diagnostics || []).map((told, index) => {
    const drawn = choice.logprobs.content[index];
    const rows = rowsOf(told, drawn);
    const favourite = rows.find((row) => row.favourite);
    return {
      key: keyOf(drawn),
      token: nameOf(drawn),
      bytes: drawn.bytes,
      state: told.state,
      automaton: told.automaton || null,
      graph: told.graph || null,
      allowed: told.allowed,
      rejectionMass: told.rejection_mass,
      forced: told.forced,
      drafted: told.drafted,
      takenBack: told.rolled_back,
      favourite: favourite,
      replaced: !favourite.allowed,
      rows: rows,
    };
  });
}

/** A token as people read it; bytes that are no whole characters in hexadecimal. */
function nameOf(token) {
  const text = token.text === undefined ? token.token : token.text;
  if (!text.includes("\ufffd")) {
    return text;
  }
  return token.bytes.map((byte) => (byte < 128 ? String.fromCharCode(byte) : `‹${byte.toString(16).toUpperCase()}›`)).join("");
}

/** What tells one token from another: special ones have no bytes, incomplete characters no text of their own. */
function keyOf(token) {
  return `${token.bytes.join()}|${token.text === undefined ? token.token : token.text}`;
}

/** The likeliest tokens, each with its probability before the mask (`raw`) and after it (`masked`, 0 if forbidden). */
function rowsOf(told, drawn) {
  const rows = new Map();
  const put = (choice, raw, masked) => {
    const key = keyOf(choice);
    if (!rows.has(key)) {
      rows.set(key, { key: key, text: nameOf(choice), raw: raw, masked: masked });
    }
    return rows.get(key);
  };
  for (const choice of told.masked_choices) {
    const masked = Math.exp(choice.logprob);
    put(choice, masked * (1 - told.rejection_mass), masked);
  }
  // An allowed token among the likeliest before the mask is among the likeliest after it, too: what is not there is not.
  for (const choice of told.raw_choices) {
    put(choice, 0, 0).raw = Math.exp(choice.logprob);
  }
  put(told.raw_choices[0], 0, 0).favourite = true;
  put(drawn, Math.exp(drawn.raw_logprob), Math.exp(drawn.logprob)).drawn = true;
  const result = [...rows.values()].map((row) => ({
    key: row.key,
    text: row.text,
    raw: row.raw,
    masked: row.masked,
    allowed: row.masked > 0,
    favourite: row.favourite === true,
    drawn: row.drawn === true,
  }));
  return result.sort((a, b) => Math.max(b.raw, b.masked) - Math.max(a.raw, a.masked));
}

/**
 * Where the output without the mask leaves the one under it: `index` of its token, and whether that token `breaks` the
 * constraint (null: it is none of those that are told about). Null when it is the same up to its end.
 */
function divergenceOf(masked, free) {
  for (let index = 0; index < free.steps.length; index++) {
    const [step, other] = [masked.steps[index], free.steps[index]];
    if (step === undefined) {
      const complete = masked.finishReason === "stop" && other.bytes.length > 0;
      return complete ? { index: index, breaks: true } : null;
    }
    if (step.key !== other.key) {
      const row = step.rows.find((one) => one.key === other.key);
      return { index: index, breaks: row === undefined ? null : !row.allowed };
    }
  }
  return null;
}

/** One sentence about the two outputs. */
function verdictOf(masked, free) {
  const divergence = divergenceOf(masked, free);
  if (divergence === null) {
    return "The mask changed nothing: the model alone writes the same.";
  }
  const place = `token ${divergence.index + 1}, ${shown(free.steps[divergence.index].token)}`;
  if (divergence.breaks) {
    return `Alone, the model breaks the constraint at ${place}: no valid output goes on like this.`;
  }
  const known = divergence.breaks === null ? "an unlikely one that this page knows nothing about" : "allowed, too";
  return `The two part at ${place}, which is ${known}: under the mask, chances are other ones and another token was drawn.`;
}

/** What to tell somebody who predicted what becomes of the model's favourite: "survives", "replaced" or "nothing". */
function feedbackOf(step, predicted) {
  const favourite = shown(step.favourite.text);
  const truth = step.replaced
    ? `${favourite} would break the constraint, and ${shown(step.token)} took its place.`
    : `${favourite} is allowed${step.key === step.favourite.key ? " and was chosen" : `, but ${shown(step.token)} was drawn`}.`;
  if (predicted === "nothing") {
    return `That never happens: a token is allowed only if a complete output can still follow it. ${truth}`;
  }
  return `${(predicted === "replaced") === step.replaced ? "Right" : "Wrong"}: ${truth}`;
}

/** One sentence about a whole generation. */
function summaryOf(steps, constrained, finishReason) {
  const count = (name) => steps.filter((step) => step[name]).length;
  const parts = [`${steps.length} tokens, ${count("forced")} forced, ${count("drafted")} drafted`];
  const first = steps.findIndex((step) => step.replaced);
  if (!constrained) {
    parts.push("no mask");
  } else if (first < 0) {
    parts.push("the model's favourite was always allowed");
  } else {
    const wanted = shown(steps[first].favourite.text);
    parts.push(`the favourite was forbidden at ${count("replaced")} of them, first at token ${first + 1}: ${wanted}`);
  }
  const ending = finishReason === "stop" ? "" : " The token limit cut it, so it is not complete.";
  return `${parts.join("; ")}.${ending}`;
}

/** Whether the mask row of a step had to be made, or was there from an earlier step of this output. */
function rowOf(steps, index) {
  const first = steps.findIndex((step) => step.state === steps[index].state);
  return first === index ? "made at this step, unless another output was here" : `looked up: made at token ${first + 1}`;
}

/** What checking every token at every step would cost, beside rows that are kept for each state. */
function checksOf(steps) {
  const states = new Set(steps.map((step) => step.state)).size;
  return (
    `Naive: every token of the vocabulary is checked at each of ${steps.length} steps. ` +
    `Cached: ${states} mask rows at most, one for each state, and ${steps.length - states} look-ups.`
  );
}

/** A token's text with its spaces and line ends made visible. */
function shown(text) {
  if (text === "") {
    return "(no text)";
  }
  return text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

/** A probability for people. */
function percent(probability) {
  if (probability > 0 && probability < 0.0005) {
    return "< 0.1 %";
  }
  return `${(100 * probability).toFixed(1)} %`;
}

/** `structured_outputs` of a request; throws SyntaxError for a schema that is no JSON. */
function constraintOf(kind, text) {
  if (kind === "json") {
    return { json: JSON.parse(text) };
  }
  if (kind === "choice") {
    return { choice: text.split("\n").filter((line) => line !== "") };
  }
  return { [kind]: text };
}
