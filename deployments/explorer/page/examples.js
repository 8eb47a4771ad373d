"use strict";

/* Requests to begin with; two of them show the limits of a constraint. */

const PERSON = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 40 },
    age: { type: "integer", minimum: 0, maximum: 150 },
    city: { type: "string", maxLength: 40 },
  },
  required: ["name", "age", "city"],
  additionalProperties: false,
};

const EXAMPLES = [
  {
    name: "Extraction: the model knows the format",
    prompt: "Extract the person: Alice Moore is 34 years old and lives in Paris.",
    kind: "json",
    constraint: JSON.stringify(PERSON, null, 2),
  },
  {
    name: "Confused: the model wants to write something else, the mask decides",
    prompt: "Extract the person: Alice Moore is 34 years old and lives in Paris.",
    kind: "regex",
    constraint: "Name: [A-Z][a-z]+ [A-Z][a-z]+\\nAge: [0-9]{1,3}",
  },
  {
    name: "Valid but wrong: the mask knows the form, not the truth",
    prompt: "What is the capital of Peru?",
    kind: "choice",
    constraint: "Oslo\nCairo\nMadrid",
  },
];
