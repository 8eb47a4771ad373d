"""The peer of `benchmarks.serve_load`: a model behind FastAPI and transformers' `generate`, as one would write it.

    python -m benchmarks.generate_server MODEL --port N [--together]

`POST /v1/chat/completions` with `messages`, `max_tokens`, `temperature`, `response_format` and `stream`, which must be
true; `GET /health`. Every request is one call of `generate` in a thread of its own: one after the other, or, with
`--together`, all at the same time. A schema goes to xgrammar's logits processor, whose compiler remembers schemas.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import torch
import uvicorn
import xgrammar
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
from xgrammar.contrib.hf import LogitsProcessor

MOST_CLIENTS = 256


class CountingStreamer(TextIteratorStreamer):
    """Knows how many tokens came after the prompt."""

    tokens = -1

    def put(self, value: torch.Tensor) -> None:
        self.tokens += 1  # the first call has the prompt
        super().put(value)


class Model:
    """The model, its tokenizer and the grammar compiler."""

    def __init__(self, path: str, lock: contextlib.AbstractContextManager[Any]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        info = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=self._model.config.vocab_size, stop_token_ids=self._model.config.eos_token_id
        )
        self._compiler = xgrammar.GrammarCompiler(info)
        self._lock = lock

    def chunks(self, body: dict[str, Any]) -> Iterator[str]:
        """The answer as server-sent events."""
        streamer = CountingStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        threading.Thread(target=self._generate, args=(body, streamer)).start()
        for text in streamer:
            if text:
                yield _event({"choices": [{"index": 0, "delta": {"content": text}}]})
        yield _event({"choices": [], "usage": {"completion_tokens": streamer.tokens}})
        yield "data: [DONE]\n\n"

    def _generate(self, body: dict[str, Any], streamer: CountingStreamer) -> None:
        prompt = self._tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        processors = []
        if (asked := body.get("response_format")) is not None:
            schema = json.dumps(asked["json_schema"]["schema"])
            processors.append(LogitsProcessor(self._compiler.compile_json_schema(schema, any_whitespace=False)))
        try:
            with self._lock:
                self._model.generate(
                    **prompt,
                    streamer=streamer,
                    logits_processor=processors,
                    max_new_tokens=body["max_tokens"],
                    do_sample=True,
                    temperature=float(body["temperature"]),
                    top_k=0,
                )
        except Exception:
            streamer.end()  # or its reader would wait for ever
            raise


def create_app(model: Model) -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        # Starlette reads each stream in one of 40 threads unless told otherwise.
        anyio.to_thread.current_default_thread_limiter().total_tokens = MOST_CLIENTS
        return {"status": "ok"}

    @app.post("/v1/chat/completions")
    def chat_completions(body: dict[str, Any] = Body()) -> StreamingResponse:  # noqa: B008
        return StreamingResponse(model.chunks(body), media_type="text/event-stream")

    return app


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--together", action="store_true", help="no lock around `generate`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(options.model, contextlib.nullcontext() if options.together else threading.Lock())
    uvicorn.run(create_app(model), port=options.port, log_level="error")


if __name__ == "__main__":
    main()
