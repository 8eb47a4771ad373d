"use strict";

/* Requests to begin with; the last three show the limits of a constraint. */

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
    note: "The model writes JSON by itself and needs the mask at one place only. Find it.",
    prompt: "Extract the person: Alice Moore is 34 years old and lives in Paris.",
    kind: "json",
    constraint: JSON.stringify(PERSON, null, 2),
  },
  {
    name: "Confused about the format: the model wants JSON, the constraint a form",
    note: "The favourite is forbidden again and again. The form is kept; whether the words still make sense is another matter.",
    prompt: "Extract the person: Alice Moore is 34 years old and lives in Paris.",
    kind: "regex",
    constraint: "Name: [A-Z][a-z]+ [A-Z][a-z]+\\nAge: [0-9]{1,3}",
  },
  {
    name: "Valid but wrong: the right answer is not among the choices",
    note: "None of the choices is right. The mask still takes one of them: it knows the form, not the truth.",
    prompt: "What is the capital of Peru?",
    kind: "choice",
    constraint: "Oslo\nCairo\nMadrid",
  },
  {
    name: "Valid but wrong: the text does not say what the schema requires",
    note: "There is no age and no city in the text. Required properties are written all the same, with invented values.",
    prompt: "Extract the person: Alice Moore called this morning.",
    kind: "json",
    constraint: JSON.stringify(PERSON, null, 2),
  },
];
