"""A plain FastAPI server around transformers' `generate`, with which `benchmarks.serve_load` compares Turnstile.

    python -m benchmarks.generate_server MODEL --port N [--together]

`POST /v1/chat/completions` reads `messages`, `max_tokens`, `temperature` and `response_format`, and always streams.
`GET /health` returns 200. Every request is one call of `generate` in its own thread. The calls run one after another
or, with `--together`, concurrently. xgrammar's logits processor enforces a schema. Its compiler caches schemas.
"""

from __future__ import annotations

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

from benchmarks.frame import new_parser

MOST_CLIENTS = 256


class CountingStreamer(TextIteratorStreamer):
    """Text streamer that counts the generated tokens.

    Attributes:
        tokens: Number of tokens after the prompt.
    """

    tokens = -1

    def put(self, value: torch.Tensor) -> None:
        """Count a token, and pass it to the text streamer. `generate` calls this method for the prompt first.

        Args:
            value: The token, or the tokens of the prompt.
        """
        self.tokens += 1  # the first call has the prompt
        super().put(value)


class Model:
    """The model, its tokenizer and the grammar compiler.

    Args:
        path: Folder of the model.
        lock: Context manager that is entered during each call of `generate`: a lock, or `nullcontext` for concurrent
            calls.
    """

    def __init__(self, path: str, lock: contextlib.AbstractContextManager[Any]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        info = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=self._model.config.vocab_size, stop_token_ids=self._model.config.eos_token_id
        )
        self._compiler = xgrammar.GrammarCompiler(info)
        self._lock = lock

    def chunks(self, body: dict[str, Any]) -> Iterator[str]:
        """Generate a response, and yield it as server-sent events.

        Args:
            body: Body of the request.

        Yields:
            Events with text, an event with the number of tokens, and `[DONE]`.
        """
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
    """Return the FastAPI application of the server.

    Args:
        model: The model to serve.
    """
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
    """Parse the command line and serve the model."""
    parser = new_parser(__doc__)
    parser.add_argument("model", help="a folder with a model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--together", action="store_true", help="no lock around `generate`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(options.model, contextlib.nullcontext() if options.together else threading.Lock())
    uvicorn.run(create_app(model), port=options.port, log_level="error")


if __name__ == "__main__":
    main()
