"""What a stream's reader gets, however the engine's deliveries fall."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_workers.output import GenerationOutput, Outbox, OutputStream

HOUR_S = 3600.0


async def read(stream: OutputStream) -> GenerationOutput:
    return await asyncio.wait_for(stream.next(), 200)


def test_neither_the_first_token_nor_the_end_waits_for_the_interval() -> None:
    async def scenario() -> None:
        outbox = Outbox()
        stream = OutputStream(3, outbox, HOUR_S)
        stream.push(1, "a")
        outbox.deliver()
        assert (await read(stream)).token_ids == [1]
        for token_id, text in ((2, "b"), (3, "c")):
            stream.push(token_id, text)
            outbox.deliver()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.next(), 0.01)
        stream.end(GenerationOutput(finish_reason="stop"), "d")
        outbox.deliver()
        last = await read(stream)
        assert (last.text, last.token_ids, last.finish_reason) == ("bcd", [2, 3], "stop")

    asyncio.run(scenario())


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=30), st.sampled_from([0.0, 0.001, 0.01]))
def test_nothing_is_lost_repeated_or_reordered(delivered: list[bool], interval_s: float) -> None:
    """The engine thread adds a token each time, and delivers where told so, while the reader reads."""

    async def scenario() -> list[GenerationOutput]:
        outbox = Outbox()
        stream = OutputStream(3, outbox, interval_s)

        def engine() -> None:
            for token_id, now in enumerate(delivered):
                stream.push(token_id, f"{token_id} ")
                if now:
                    outbox.deliver()
            stream.end(GenerationOutput(finish_reason="length"))
            outbox.deliver()

        thread = threading.Thread(target=engine)
        thread.start()
        outputs = [await read(stream)]
        while outputs[-1].finish_reason is None:
            outputs.append(await read(stream))
        thread.join()
        return outputs

    outputs = asyncio.run(scenario())
    assert [token_id for output in outputs for token_id in output.token_ids] == list(range(len(delivered)))
    assert "".join(output.text for output in outputs) == "".join(f"{token_id} " for token_id in range(len(delivered)))
    assert all(output.token_ids for output in outputs[:-1])
