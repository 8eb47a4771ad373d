"""The shipped character model behind the HTTP application: static, hand-made and compiled masks over 65 characters.

Everything but Ray is real: application, replica, engine, compiler, and a socket.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import string
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
import uvicorn
from ray.serve import Deployment
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from gpu_workers.replica import ModelReplica
from grammar_workers import GrammarError, compile_grammar
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from models.shakespeare import CONTEXT, loss_of, train
from models.train import Recipe
from tests.deployments.applications import application
from tests.deployments.fakes import FakeCompiler, FakeHandle, FakeReplica
from tests.documents import REPOSITORY, blocks, printed

FOLDER = REPOSITORY / "models" / "turnstile-shakespeare"
DOCUMENT = "docs/character-model.md"
CHARACTERS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
CLASSES = {
    "UPPER": string.ascii_uppercase,
    "LOWER": string.ascii_lowercase,
    "LETTER": string.ascii_letters,
    "DIGIT": "3",
    "SPACE": " ",
    "NEWLINE": "\n",
    "PUNCT": "!$&',-.:;?",
    "ANY": CHARACTERS,
}
"""SPACE is the space alone. PUNCT is what no other class but ANY has."""
SPEECH = [["UPPER", "+"], [": ", "1"], ["LOWER", "+"], ["\n", "1"]]


class Compiler(FakeCompiler):
    """Compiles in this process, for routers (`compile`) and for the replica (`get`)."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary = load_vocabulary(str(FOLDER))

    async def info(self, *, options: dict[str, Any]) -> dict[str, Any]:
        return {"vocabulary_fingerprint": self.vocabulary.fingerprint, "options": {}}

    async def get(
        self, key: str, specification: Any, tenant: str, anew: bool, *, options: dict[str, Any]
    ) -> bytes | dict[str, Any]:
        try:
            return (await asyncio.to_thread(compile_grammar, specification, self.vocabulary)).to_bytes()
        except GrammarError as error:
            return {"status": "refused", "error": error.to_dict()}

    async def compile(self, key: str, specification: Any, *_: Any, options: dict[str, Any]) -> dict[str, Any]:
        compiled = await self.get(key, specification, "", False, options=options)
        if isinstance(compiled, dict):
            return {"key": key, **compiled}
        return {"key": key, "status": "ready", "source": "compiled", "notes": [], "artifact": compiled}


class Replica(FakeReplica):
    """The real replica with the character model."""

    def __init__(self, compiler: Compiler) -> None:
        super().__init__()
        engine = {"max_num_seqs": 4, "threads": 1, "max_model_len": 128}
        make = cast(Deployment, ModelReplica).func_or_class
        self.real: Any = make(str(FOLDER), "memory://", compiler.handle, engine=engine)

    @property
    def handle(self) -> Any:
        return FakeHandle(self)

    async def info(self, template_arguments: Any, *, options: dict[str, Any]) -> dict[str, Any]:
        return await self.real.info(template_arguments)

    def generate(self, request: dict[str, Any], *, options: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:  # type: ignore[override]
        return self.real.generate(request)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    compiler = Compiler()
    replica = Replica(compiler)
    app = application(compiler, replica, model="turnstile-shakespeare")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
    replica.real.__del__()


def post(url: str, constraint: dict[str, Any] | None, **fields: Any) -> httpx.Response:
    body = {"prompt": "\n", "max_tokens": 60, "structured_outputs": constraint, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=200, trust_env=False)


def choice(url: str, constraint: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """Return the choice of a completion."""
    response = post(url, constraint, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def ids(characters: str) -> list[int]:
    return [CHARACTERS.index(character) for character in characters]


def speech_by_hand() -> dict[str, Any]:
    """Return the automaton of SPEECH with its 6 states and 7 transitions."""
    upper, lower = ids(CLASSES["UPPER"]), ids(CLASSES["LOWER"])
    steps = [(0, upper, 1), (1, upper, 1), (1, ids(":"), 2), (2, ids(" "), 3), (3, lower, 4), (4, lower, 4)]
    steps.append((4, ids("\n"), 5))
    transitions = [{"from": this, "tokens": tokens, "to": following} for this, tokens, following in steps]
    return {"automaton": {"initial": 0, "accepting": [5], "transitions": transitions}}


def test_the_document_prints_what_it_shows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    namespace: dict[str, Any] = {}
    found = blocks(DOCUMENT, "python", "text")
    for block, shown in zip(found[::2], found[1::2], strict=True):
        assert (block.language, shown.language) == ("python", "text")
        addressed = replace(block, text=block.text.replace("http://127.0.0.1:8000", url))
        assert printed(addressed, DOCUMENT, namespace) == shown.text, f"line {block.line}"


def test_static_masks(url: str) -> None:
    static = {"positions": [ids(CLASSES["LOWER"])] * 5 + [ids("\n")]}
    for seed in range(5):
        given = choice(url, static, seed=seed)
        assert re.fullmatch("[a-z]{5}\n", given["text"]) and given["finish_reason"] == "stop"
    refused = post(url, {"positions": [ids("ab"), []]})
    assert refused.status_code == 400 and "positions" in refused.json()["error"]["message"]


def test_the_automaton_by_hand_and_the_compiled_pattern_are_one(url: str) -> None:
    """Both end by themselves in the format, and give the same output for the same seed."""
    outputs = []
    for seed in range(5):
        by_hand, compiled = (choice(url, one, seed=seed) for one in (speech_by_hand(), {"pattern": SPEECH}))
        assert by_hand["text"] == compiled["text"]
        assert re.fullmatch("[A-Z]+: [a-z]+\n", compiled["text"]) and compiled["finish_reason"] == "stop"
        outputs.append(compiled["text"])
    assert len(set(outputs)) == 5


def test_masks_keep_what_the_model_prefers(url: str) -> None:
    """26 or 27 letters are allowed in a name or a word, one token between them; ratios of probabilities stay."""
    given = choice(url, {"pattern": SPEECH}, seed=1, diagnostics=True, logprobs=0)
    name, word = given["text"].rstrip("\n").split(": ")
    counts = [26] + [27] * len(name) + [1] + [26] + [27] * len(word)
    assert [step["allowed"] for step in given["diagnostics"]] == counts
    compared = 0
    for step in given["diagnostics"]:
        raw = {one["text"]: one["logprob"] for one in step["raw_choices"]}
        kept = 1 - step["rejection_mass"]
        if step["forced"]:
            assert step["masked_choices"][0]["logprob"] == pytest.approx(0, abs=1e-6)
        for one in step["masked_choices"]:
            if one["text"] in raw:
                assert one["logprob"] == pytest.approx(raw[one["text"]] - math.log(kept), abs=1e-3)
                compared += 1
    assert compared > 20


def test_the_classes_of_the_vocabulary() -> None:
    vocabulary = load_vocabulary(str(FOLDER))
    assert [vocabulary.token_bytes(token).decode() for token in range(65)] == list(CHARACTERS)
    assert vocabulary.eos_token_ids == () and not vocabulary.special_tokens
    for name, characters in CLASSES.items():
        fsm = compile_grammar({"type": "pattern", "elements": [[name, "1"]]}, vocabulary)
        assert fsm.allowed_tokens(fsm.initial_state) == set(ids(characters)), name
    assert {name: len(characters) for name, characters in CLASSES.items()} == {
        "UPPER": 26, "LOWER": 26, "LETTER": 52, "DIGIT": 1, "SPACE": 1, "NEWLINE": 1, "PUNCT": 10, "ANY": 65,
    }  # fmt: skip


def test_the_files_are_small_and_what_the_training_writes(tmp_path: Path) -> None:
    """Two steps of training give the same tokenizer and settings, and weights of the same shapes."""
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000
    train(Recipe(steps=2, rows=2, warm_up_steps=1), CHARACTERS * 60, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((FOLDER / name).read_text()), name
    made, shipped = (load_file(folder / "model.safetensors") for folder in (tmp_path, FOLDER))
    assert {name: weight.shape for name, weight in made.items()} == {name: w.shape for name, w in shipped.items()}


def test_the_model_has_learned_from_the_text() -> None:
    """1.54 nats a character on lines that are not in its text; an untrained model has 4.2."""
    text = (
        "To die: to sleep;\nNo more; and by a sleep to say we end\nThe heart-ache and the thousand natural shocks\n" * 2
    )
    rows = torch.tensor([ids(text)[: CONTEXT + 1]])
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.inference_mode():
        assert loss_of(model, rows).item() < 1.6
