"""Synthetic conversations to train the embedded model: each prompt contains the facts, and has one right answer.

The tasks are: fill a JSON record from prose (the main task), look up keys in a listing, answer with one value,
classify, choose from options, and repeat a text. Repeating teaches the model to copy, which all other tasks need.
"""

import json
from dataclasses import dataclass
from random import Random
from string import Formatter
from typing import Any

from models import words
from models.domains import DOMAINS, PERSON, Domain, Field, Spoken, enumeration

Message = dict[str, str]

_SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "Answer in JSON.", "You extract data.", "Extract data as JSON.",
    "You are an information extraction engine. Reply with JSON only.", "Return only JSON.",
    "You are a careful assistant that copies facts exactly.",
)  # fmt: skip
_INSTRUCTIONS = (
    "Extract the {noun} as JSON", "Extract the {noun}", "Return JSON", "Give me the {noun} as JSON",
    "Convert to JSON", "Extract the data as JSON", "Fill in the {noun} record", "Parse this {noun}",
    "Turn this text into JSON", "Read the text and return a JSON object", "Describe the {noun} in JSON",
)  # fmt: skip
_SMALL_TALK = (
    ("Hello", "Hello! Give me a text and I will turn it into JSON."),
    ("Hi", "Hello! Give me a text and I will turn it into JSON."),
    ("Hello!", "Hello! Give me a text and I will turn it into JSON."),
    ("Who are you?", "I am a tiny model. I copy facts from a text into JSON."),
    ("What can you do?", "I can copy facts from a text into JSON. I know nothing else."),
    ("Thank you", "You are welcome."),
    ("Thanks!", "You are welcome."),
)
_KEY_HINTS = (" with {keys}", " with the keys {keys}", " with fields {keys}", " ({keys})", " having {keys}")
_TYPE_NAMES = {"string": ("string", "text"), "integer": ("integer", "int"), "number": ("number", "float"),
               "boolean": ("boolean", "bool"), "array": ("array", "list")}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A conversation with the right answer as its last message.

    Attributes:
        messages: Chat messages: dicts with `role` and `content`. The last one is the assistant's answer.
        task: Name of the task, such as `record`.
    """

    messages: tuple[Message, ...]
    task: str

    @property
    def prompt(self) -> list[Message]:
        """Messages of the conversation without the answer."""
        return list(self.messages[:-1])

    @property
    def answer(self) -> str:
        """Text of the right answer."""
        return self.messages[-1]["content"]


@dataclass(frozen=True)
class _Fact:
    field: Field
    key: str
    spoken: Spoken


def dump(value: Any) -> str:
    """Serialize a JSON value as all answers do: separators `, ` and `: `, non-ASCII characters unescaped.

    Args:
        value: The JSON value.

    Returns:
        The JSON text.
    """
    return json.dumps(value, ensure_ascii=False)


def _draw_facts(rng: Random, domain: Domain) -> list[_Fact]:
    """Return random facts: the subject and some attributes, with distinct keys."""
    subject = domain.subject.draw(rng, "")
    attributes = rng.sample(domain.attributes, min(rng.choice((1, 2, 2, 3, 3, 4, 5)), len(domain.attributes)))
    facts: list[_Fact] = []
    taken: set[str] = set()
    for field in (domain.subject, *attributes):
        key = field.keys[0] if rng.random() < 0.5 else rng.choice(field.keys)
        if key in taken:
            continue
        taken.add(key)
        facts.append(_Fact(field, key, subject if field is domain.subject else field.draw(rng, subject.text)))
    return facts


def _placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _prose(rng: Random, domain: Domain, facts: list[_Fact]) -> str:
    """Return the facts as sentences: the subject first, then the others in any order, some of them in a template."""
    subject, *rest = facts
    said: list[str] = []
    known = {fact.field.keys[0]: fact for fact in facts}
    usable = [template for template in domain.templates if _placeholders(template) <= known.keys()]
    if usable and rng.random() < 0.5:
        template = rng.choice(usable)
        said.append(template.format_map({key: fact.spoken.text for key, fact in known.items()}))
        rest = [fact for fact in rest if fact.field.keys[0] not in _placeholders(template)]
    rng.shuffle(rest)
    pronoun = rng.choice(("She", "He")) if domain is PERSON else "It"
    predicates: list[str] = []
    sentences: list[str] = []
    for fact in rest:
        clause = rng.choice(fact.field.clauses).format(fact.spoken.text)
        (sentences if clause.endswith(".") else predicates).append(clause)
    if not said and predicates and rng.random() < 0.8:
        opening, predicates = predicates[: (first := rng.randint(1, len(predicates)))], predicates[first:]
        said.append(f"{rng.choice(domain.leads)}{subject.spoken.text} {_joined(rng, opening)}.")
    elif not said:
        said.append(rng.choice(subject.field.clauses).format(subject.spoken.text))
    if predicates:
        said.append(f"{pronoun} {_joined(rng, predicates)}.")
    if rng.random() < 0.3:
        rng.shuffle(sentences)
    return " ".join(said + sentences)


def _joined(rng: Random, clauses: list[str]) -> str:
    if len(clauses) == 1 or rng.random() < 0.15:
        return ", ".join(clauses)
    return f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _list_text(rng: Random, facts: list[_Fact]) -> str:
    """Return the facts as `Key: value` lines, or in one line."""
    shown = list(facts)
    if rng.random() < 0.5:
        rng.shuffle(shown)
    equals, separator = rng.choice(
        ((": ", "\n"), (": ", ", "), (": ", "; "), ("=", " "), (" is ", ", "), (" - ", "\n"))
    )
    names = [fact.key if rng.random() < 0.7 else rng.choice(fact.field.keys) for fact in shown]
    if rng.random() < 0.5:
        names = [name.replace("_", " ").capitalize() for name in names]
    values = [dump(fact.spoken.value) if fact.field.type == "boolean" else fact.spoken.text for fact in shown]
    return separator.join(name + equals + value for name, value in zip(names, values, strict=True))


def _hint(rng: Random, facts: list[_Fact]) -> str:
    """Return a phrase with the keys of the answer, in their order."""
    keys = [fact.key for fact in facts]
    kind = rng.random()
    if kind < 0.55:
        listed = ", ".join(keys) if rng.random() < 0.7 else _joined(rng, keys)
        return rng.choice(_KEY_HINTS).format(keys=listed)
    types = [rng.choice(_TYPE_NAMES[fact.field.type]) for fact in facts]
    if kind < 0.8:
        return " with " + ", ".join(f"{key} ({name})" for key, name in zip(keys, types, strict=True))
    return " as " + dump(dict(zip(keys, types, strict=True)))


def _ask(rng: Random, instruction: str, text: str) -> str:
    """Return one message with the instruction and the text, in any order."""
    if rng.random() < 0.65:
        return instruction + rng.choice((": ", ": ", ":\n", ". ", ".\n")) + text
    return text + rng.choice((" ", "\n", "\n\n")) + instruction + rng.choice((".", ".", ""))


def _messages(rng: Random, question: str, answer: str) -> tuple[Message, ...]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if rng.random() < 0.25:
        turns.insert(0, {"role": "system", "content": rng.choice(_SYSTEM_PROMPTS)})
    return tuple(turns)


def record(rng: Random) -> Example:
    """Return an example that asks for a JSON object with the facts of a text: `Extract the person as JSON: ...`.

    The text is prose or a listing. The answer has all or some of the facts, in any order. The prompt may name the keys.

    Args:
        rng: Source of random numbers.
    """
    domain = PERSON if rng.random() < 0.25 else rng.choice(DOMAINS)
    facts = _draw_facts(rng, domain)
    text = _list_text(rng, facts) if rng.random() < 0.15 else _prose(rng, domain, facts)
    wanted = list(facts)
    if rng.random() < 0.4:
        rng.shuffle(wanted)
    if rng.random() < 0.25:
        wanted = wanted[: rng.randint(1, len(wanted))]
    instruction = rng.choice(_INSTRUCTIONS).format(noun=rng.choice(domain.nouns))
    if rng.random() < 0.65:
        instruction += _hint(rng, wanted)
    data: dict[str, Any] = {fact.key: fact.spoken.value for fact in wanted}
    if rng.random() < 0.05:
        outer = rng.choice(domain.nouns)
        instruction += f" under {outer}"
        data = {outer: data}
    return Example(_messages(rng, _ask(rng, instruction, text), dump(data)), "record")


def several_records(rng: Random) -> Example:
    """Return an example that asks for a JSON object with an array of two or three records with equal keys.

    Args:
        rng: Source of random numbers.
    """
    domain = rng.choice(DOMAINS)
    fields = rng.sample([field for field in domain.attributes if field.type in ("string", "integer", "number")],
                        rng.randint(1, 2))  # fmt: skip
    keys = [domain.subject.keys[0], *(field.keys[0] for field in fields)]
    if len(set(keys)) < len(keys):
        return record(rng)
    texts, data = [], []
    lead = rng.choice(domain.leads)
    clauses = [rng.choice([clause for clause in field.clauses if not clause.endswith(".")]) for field in fields]
    for _ in range(rng.randint(2, 3)):
        subject = domain.subject.draw(rng, "")
        drawn = [field.draw(rng, subject.text) for field in fields]
        said = [clause.format(value.text) for clause, value in zip(clauses, drawn, strict=True)]
        texts.append(f"{lead}{subject.text} {' and '.join(said)}")
        data.append(dict(zip(keys, [subject.value, *(value.value for value in drawn)], strict=True)))
    outer = rng.choice((f"{domain.nouns[0]}s", "items", "records", "results"))
    instruction = (
        f"{rng.choice(('Return JSON', 'List them as JSON', 'Extract all'))} under {outer} with {', '.join(keys)}"
    )
    text = rng.choice((". ", "; ", ".\n")).join(texts) + "."
    return Example(_messages(rng, _ask(rng, instruction, text), dump({outer: data})), "several")


def _any_value(rng: Random) -> Any:
    """Return a random value of any kind."""
    kinds = (
        words.whole_number, words.decimal_number, words.person_name, words.invented_word, words.identifier, words.date,
        lambda r: words.any_word(r, words.COMMON_WORDS), lambda r: words.proper_noun(r, words.CITIES),
        lambda r: r.random() < 0.5, words.phone_number, words.title,
    )  # fmt: skip
    return rng.choice(kinds)(rng)


def lookup(rng: Random) -> Example:
    """Return an example that asks for a JSON object with some of the arbitrary keys and values in a listing.

    Args:
        rng: Source of random numbers.
    """
    names = list(dict.fromkeys(words.any_word(rng, words.COMMON_WORDS) for _ in range(rng.randint(1, 5))))
    data = {name: _any_value(rng) for name in names}
    said = {name: value if isinstance(value, str) else dump(value) for name, value in data.items()}
    form, separator = rng.choice((("{}: {}", "\n"), ("{}: {}", ", "), ("{}={}", " "), ("The {} is {}.", " "),
                                  ("{} is {}", ", "), ("{} = {}", "\n")))  # fmt: skip
    text = separator.join(form.format(*pair) for pair in said.items())
    wanted = rng.sample(names, rng.randint(1, len(names))) if rng.random() < 0.5 else names
    instruction = rng.choice(("Return JSON", "Extract the data as JSON", "Convert to JSON"))
    if wanted is not names or rng.random() < 0.5:
        instruction += rng.choice(_KEY_HINTS).format(keys=", ".join(wanted))
    answer = dump({name: data[name] for name in wanted})
    return Example(_messages(rng, _ask(rng, instruction, text), answer), "lookup")


def bare_value(rng: Random) -> Example:
    """Return an example that asks for one fact of a text, such as `What is the city?`, with a plain text as answer.

    Args:
        rng: Source of random numbers.
    """
    domain = PERSON if rng.random() < 0.4 else rng.choice(DOMAINS)
    facts = _draw_facts(rng, domain)
    fact = rng.choice([f for f in facts if f.field.type in ("string", "integer", "number")])
    name = fact.key.replace("_", " ")
    form = rng.choice(("What is the {}?", "Which {}?", "Give the {} only.", "Extract the {}.", "The {}, please."))
    question = _ask(rng, form.format(name).rstrip("."), _prose(rng, domain, facts))
    return Example(_messages(rng, question, fact.spoken.text), "value")


def classify(rng: Random) -> Example:
    """Return an example that asks for the sentiment of a short review.

    The answer is the label (`positive` or `negative`), or a JSON object with the label and the product.

    Args:
        rng: Source of random numbers.
    """
    positive = rng.random() < 0.5
    thing = words.any_word(rng, words.THINGS)
    good, bad = rng.choice(words.GOOD_WORDS), rng.choice(words.BAD_WORDS)
    opinion = good if positive else bad
    text = rng.choice(("The {t} is {o}.", "This {t} is {o}!", "What a {o} {t}.", "I think the {t} was {o}.",
                       "My new {t} is really {o}.", "A {o} {t}, truly {o}.")).format(t=thing, o=opinion)  # fmt: skip
    if rng.random() < 0.5:
        text += rng.choice((" I love it.", " I am happy.", " I recommend it.") if positive else
                           (" I hate it.", " I want my money back.", " Never again."))  # fmt: skip
    label = "positive" if positive else "negative"
    if rng.random() < 0.5:
        ask = rng.choice(("Classify the sentiment as positive or negative", "Is this positive or negative?",
                          "Sentiment (positive or negative)", "What is the sentiment?"))  # fmt: skip
        return Example(_messages(rng, _ask(rng, ask, text), label), "label")
    keys = ["product", "sentiment"]
    rng.shuffle(keys)
    ask = f"Return JSON with {', '.join(keys)}"
    data = {"product": thing, "sentiment": label}
    return Example(_messages(rng, _ask(rng, ask, text), dump({key: data[key] for key in keys})), "label")


def repeat(rng: Random) -> Example:
    """Return an example that asks for an exact repetition of some words, names, codes and numbers.

    Args:
        rng: Source of random numbers.
    """
    values = [_any_value(rng) for _ in range(rng.randint(1, 6))]
    parts = [value if isinstance(value, str) else dump(value) for value in values]
    text = rng.choice((" ", " ", ", ", "\n")).join(parts)
    question = f"{rng.choice(('Repeat', 'Copy', 'Say', 'Write again'))}: {text}"
    return Example(_messages(rng, question, text), "repeat")


def choose(rng: Random) -> Example:
    """Return an example that asks which of some options a text mentions.

    Args:
        rng: Source of random numbers.
    """
    options = rng.sample(rng.choice((words.COLORS, words.JOBS, words.CITIES, words.THINGS, words.TOPICS)), 5)
    options = options[: rng.randint(2, 5)]
    chosen = rng.choice(options)
    text = rng.choice(("It is {}.", "I like {}.", "The answer is {}.", "She said {}.", "We have {} here.")).format(
        chosen
    )
    if rng.random() < 0.4:
        text = f"{words.person_name(rng)} is here. {text}"
    ask = rng.choice(("Choose one of", "Which one", "Options", "Pick from")) + ": " + enumeration(rng, options)
    return Example(_messages(rng, _ask(rng, ask, text), chosen), "choose")


def small_talk(rng: Random) -> Example:
    """Return an example without a task, such as a greeting.

    Args:
        rng: Source of random numbers.
    """
    question, answer = rng.choice(_SMALL_TALK)
    return Example(_messages(rng, question, answer), "talk")


_TASKS = (record, several_records, lookup, bare_value, classify, choose, repeat, small_talk)
_WEIGHTS = (62, 7, 11, 7, 4, 3, 4, 1)
_COPY_WEIGHTS = (10, 0, 40, 10, 0, 0, 40, 0)


def draw_example(rng: Random, *, copying: bool = False) -> Example:
    """Return an example of a random task. A few examples have an earlier question and answer before the task.

    Args:
        rng: Source of random numbers.
        copying: If true, most examples are short copying tasks, with which the training starts.
    """
    example = rng.choices(_TASKS, weights=_COPY_WEIGHTS if copying else _WEIGHTS)[0](rng)
    if copying or rng.random() > 0.03:
        return example
    before = bare_value(rng) if rng.random() < 0.5 else small_talk(rng)
    later = tuple(message for message in example.messages if message["role"] != "system")
    return Example(before.messages + later, example.task)
