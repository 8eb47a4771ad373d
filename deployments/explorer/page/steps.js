"use strict";

/* From an answer of /v1/chat/completions to what the page shows. Knows nothing of the page. */

/** One object for each token of a choice that was asked for with `diagnostics`, `logprobs` and `raw_logprobs`. */
function stepsOf(choice) {
  return (choice.diagnostics || []).map((told, index) => {
    const drawn = choice.logprobs.content[index];
    const rows = rowsOf(told, drawn);
    const favourite = rows.find((row) => row.favourite);
    return {
      token: told.token,
      state: told.state,
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

/** The likeliest tokens, each with its probability before the mask (`raw`) and after it (`masked`, 0 if forbidden). */
function rowsOf(told, drawn) {
  const rows = new Map();
  const put = (choice, raw, masked) => {
    const key = choice.bytes.join() + "|" + (choice.text === undefined ? choice.token : choice.text);
    if (!rows.has(key)) {
      rows.set(key, { text: choice.text === undefined ? choice.token : choice.text, raw: raw, masked: masked });
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
    text: row.text,
    raw: row.raw,
    masked: row.masked,
    allowed: row.masked > 0,
    favourite: row.favourite === true,
    drawn: row.drawn === true,
  }));
  return result.sort((a, b) => Math.max(b.raw, b.masked) - Math.max(a.raw, a.masked));
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
