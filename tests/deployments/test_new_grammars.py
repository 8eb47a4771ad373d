"""Turns for grammars that a router has not seen ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.http.errors import ApiError
from deployments.routing.grammar_admission import PAUSE, NewGrammars
from tests.deployments.fakes import settled, skip

pytestmark = pytest.mark.anyio


class Holders:
    """Tasks that hold a turn until they are told to let go."""

    def __init__(self, turns: NewGrammars) -> None:
        self._turns = turns
        self._tasks: list[asyncio.Task[None]] = []
        self.inside: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}

    async def enter(self, tenant: str, key: str, left_s: float | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(self._hold(tenant, key, left_s))
        self._tasks.append(task)
        await settled()
        return task

    async def _hold(self, tenant: str, key: str, left_s: float | None) -> None:
        leave = self.leave.setdefault(key, asyncio.Event())
        async with self._turns.turn(tenant, key, left_s=left_s):
            self.inside.append(key)
            await leave.wait()

    async def let_go(self, key: str) -> None:
        self.leave[key].set()
        await settled()

    async def are_inside(self, *keys: str) -> None:
        """Returns when these have entered, in this order, and nobody else."""
        async with asyncio.timeout(1e7):  # of a clock that tests move
            while len(self.inside) < len(keys):
                await asyncio.sleep(0.001)
        assert self.inside == list(keys)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not self._turns._lines and not self._turns._under_way


@contextlib.asynccontextmanager
async def holders(at_once: int = 2) -> AsyncIterator[tuple[NewGrammars, Holders]]:
    turns = NewGrammars(at_once)
    found = Holders(turns)
    try:
        yield turns, found
    finally:
        await found.close()


async def test_a_tenants_own_limit_is_divided_among_the_routers() -> None:
    turns = NewGrammars(8, routers=2)
    async with contextlib.AsyncExitStack() as inside:
        for key in "ab":
            await inside.enter_async_context(turns.turn("one", key, 5))
        third = asyncio.create_task(turns.turn("one", "c", 5).__aenter__())
        await settled()
        assert turns.waiting == 1 and not third.done()
        third.cancel()
        for key in "defg":
            await inside.enter_async_context(turns.turn("two", key))


async def test_first_come_first_served_within_a_tenant() -> None:
    async with holders() as (_, held):
        for key in "abcd":
            await held.enter("one", key)
        assert held.inside == ["a", "b"]
        await held.enter("two", "x")
        assert held.inside == ["a", "b", "x"]
        await held.let_go("b")
        await held.are_inside("a", "b", "x", "c")
        await held.let_go("a")
        await held.let_go("c")
        await held.are_inside("a", "b", "x", "c", "d")


async def test_half_the_turns_while_others_are_active() -> None:
    async with holders(4) as (_, held):
        await held.enter("two", "x")
        for key in "abc":
            await held.enter("one", key)
        assert held.inside == ["x", "a", "b"]


async def test_others_are_active_while_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.ACTIVE_S", 0)
    async with holders(6) as (turns, held):
        await held.enter("two", "x")
        await held.let_go("x")
        await held.enter("one", "a")
        with turns.served("two"):
            for key in "bcde":
                await held.enter("one", key)
            assert held.inside == ["x", "a", "b", "c", "d"]
        await held.enter("one", "f")
        assert held.inside == ["x", "a", "b", "c", "d", "f"]


async def test_the_pause_of_a_long_line_lasts_until_nobody_else_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.LONG_LINE", 0)
    monkeypatch.setattr("deployments.routing.grammar_admission.LONGEST_PAUSE", 1e9)
    async with holders(1) as (turns, held):
        turns.learn("known", {}, "one")
        await held.enter("two", "known")
        await held.enter("one", "a")
        await held.enter("one", "b")
        await held.let_go("a")
        await asyncio.sleep(0.05)
        assert held.inside == ["known", "a"]
        await held.let_go("known")
        await held.are_inside("known", "a", "b")


async def test_the_pause_of_a_long_line_ends_when_the_line_is_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.LONG_LINE", 1)
    monkeypatch.setattr("deployments.routing.grammar_admission.LONGEST_PAUSE", 1e9)
    async with holders(1) as (turns, held):
        turns.learn("known", {}, "one")
        await held.enter("two", "known")
        for key in "ab":
            await held.enter("one", key)
        leaving = await held.enter("one", "c")
        await held.let_go("a")
        leaving.cancel()
        skip(monkeypatch, 100)
        await settled()
        assert held.inside == ["known", "a", "b"]


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_pause_has_an_end_and_a_short_line_none(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.LONG_LINE", 0 if is_long else 8)
    if not is_long:
        monkeypatch.setattr("deployments.routing.grammar_admission.PAUSE", 1e9)
    async with holders(1) as (turns, held):
        turns.learn("known", {}, "one")
        await held.enter("two", "known")
        await held.enter("one", "a")
        await held.enter("one", "b")
        await asyncio.sleep(0.01)
        await held.let_go("a")
        skip(monkeypatch, 1e6)
        await held.are_inside("known", "a", "b")


async def test_a_long_line_pauses_after_each_turn_while_others_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.LONG_LINE", 0)
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    async with holders(1) as (_, held):
        for others in (False, True):
            if others:
                await held.enter("two", "x")
                await held.let_go("x")
            first, second = f"a{others}", f"b{others}"
            await held.enter("one", first)
            await held.enter("one", second)
            now += 0.5
            await settled()
            assert held.inside[-1] == first
            await held.let_go(first)
            if others:
                now += 0.49 * PAUSE
                await settled()
                assert held.inside[-1] == first
                now += 0.02 * PAUSE
                await settled()
            assert held.inside[-1] == second
            await held.let_go(second)


async def test_a_turn_ends_when_the_grammar_is_ready_not_with_the_first_token() -> None:
    async with holders(1) as (turns, held):
        for key in "abc":
            await held.enter("one", key)
        turns.learn("a", {}, "one")
        await held.are_inside("a", "b")
        await held.let_go("a")  # its turn is over already: nobody gets another for it
        assert held.inside == ["a", "b"]
        turns.learn("b", {}, "one")
        await held.are_inside("a", "b", "c")


async def test_who_waited_for_a_grammar_that_another_has_brought_needs_no_turn() -> None:
    async with holders(2) as (turns, held):
        for key in "abccd":
            await held.enter("one", key)
        turns.learn("a", {}, "one")
        turns.learn("b", {}, "one")
        await held.are_inside(*"abccd")
    async with holders(1) as (turns, held):
        for key in "abbc":
            await held.enter("one", key)
        turns.learn("a", {}, "one")
        await held.are_inside(*"ab")
        turns.learn("b", {}, "one")
        await held.are_inside(*"abbc")


async def test_a_pause_is_measured_by_the_grammar_not_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.LONG_LINE", 0)
    async with holders(1) as (turns, held):
        turns.learn("known", {}, "one")
        await held.enter("two", "known")
        await held.enter("one", "a")
        await held.enter("one", "b")
        turns.learn("a", {}, "one")
        await settled()
        skip(monkeypatch, 1e4)
        # Neither "a" nor "known" has a first token.
        await held.are_inside("known", "a", "b")


async def test_known_grammars_and_those_under_way_need_no_turn() -> None:
    async with holders() as (turns, held):
        for key in "abc":
            await held.enter("one", key)
        await held.enter("one", "a")
        assert held.inside == ["a", "b", "a"]
        turns.learn("k", {}, "one")
        await held.enter("one", "k")
        assert held.inside == ["a", "b", "a", "k"]


async def test_who_leaves_the_line_takes_no_turn() -> None:
    async with holders(1) as (_, held):
        await held.enter("one", "a")
        waiting = await held.enter("one", "b")
        await held.enter("one", "c")
        waiting.cancel()
        await settled()
        await held.let_go("a")
        await held.are_inside("a", "c")


async def test_a_turn_that_takes_long_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.LONGEST_TURN_S", 0.01)
    async with holders(1) as (_, held):
        await held.enter("one", "a")
        await held.enter("one", "b")
        await held.are_inside("a", "b")
        await held.let_go("a")  # its turn is over already: nobody gets another for it
        await held.let_go("b")
        monkeypatch.setattr("deployments.routing.grammar_admission.LONGEST_TURN_S", 1e6)
        for key in "cd":
            await held.enter("one", key)
        assert held.inside == ["a", "b", "c"]


async def test_a_full_line_and_a_line_that_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.MOST_WAITING", 1)
    async with holders(1) as (turns, held):
        await held.enter("one", "a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), turns.turn("one", "b"):
                pass
        await held.enter("one", "c")
        with pytest.raises(ApiError) as full:
            async with turns.turn("one", "d"):
                pass
        assert (full.value.status, full.value.headers) == (429, {"Retry-After": "1"})
        await held.enter("two", "x")
        assert held.inside == ["a", "x"]


async def test_who_would_wait_too_long_is_rejected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.ACTIVE_S", 0)
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def retry_after(turns: NewGrammars, left_s: float | None, key: str = "late") -> str | None:
        """`Retry-After` of the rejection; None if the request waits, for it is cancelled."""
        waiting = asyncio.ensure_future(turns.turn("one", key, None, left_s).__aenter__())
        await settled()
        if waiting.done():
            error = waiting.exception()
            assert isinstance(error, ApiError) and error.status == 429
            return error.headers["Retry-After"]
        waiting.cancel()
        await settled()
        return None

    async with holders(1) as (turns, held):
        for key in "abcdefg":
            await held.enter("one", key)
        now += 2
        await settled()
        assert await retry_after(turns, 0.1) is None, "nobody knows yet how long a turn takes"
        await held.let_go("a")  # two seconds for each of the five that still wait
        assert await retry_after(turns, 9.9) == "10"
        assert await retry_after(turns, 10.1) is None
        assert await retry_after(turns, None) is None
        await held.enter("one", "g")  # the same grammar needs no other turn
        await held.enter("one", "h")
        assert await retry_after(turns, None) is None
        with turns.served("two"):
            assert await retry_after(turns, None) == "12"
            assert await retry_after(turns, 600) == "14", "one rejected request after the other"
            assert await retry_after(turns, None, "h") is None, "a grammar that waits already"
        now += 10
        await settled()
        await held.let_go("b")  # two seconds and ten, six on average
        assert await retry_after(turns, 29.9) == "30"
        assert await retry_after(turns, 30.1) is None
        for key in "ijklmnop":
            await held.enter("one", key)
        assert await retry_after(turns, 60) == "60", "no more than clients accept"


async def test_the_estimate_outlives_the_queue_and_is_dropped_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.ACTIVE_S", 0)
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    async with holders(2) as (turns, held):
        with turns.served("two"):
            for key in "abcd":
                await held.enter("one", key)
            for key in "abcd":
                now += 7
                await settled()
                await held.let_go(key)
            await held.enter("one", "e")
            for key in "fg":
                await held.enter("one", key)
            await held.enter("one", "h", left_s=13.0)  # two wait, for seven seconds each
            assert turns.waiting == 2
        # Now all admissions are the tenant's, and nobody knows how long its grammars take.
        await held.enter("one", "i", left_s=1.0)
        assert turns.waiting >= 2


async def test_grammars_that_are_admitted_in_groups_have_their_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.routing.grammar_admission.ACTIVE_S", 0)
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    async with holders(4) as (turns, held):
        keys = [f"k{number}" for number in range(60)]
        for key in keys:
            await held.enter("one", key)
        for group in range(0, 40, 4):
            now += 1  # a quarter of a second for each
            await settled()
            for key in keys[group : group + 4]:
                await held.let_go(key)
        waiting = turns.waiting
        assert 12 <= waiting <= 20
        await held.enter("one", "late", left_s=0.8 * waiting / 4)
        await held.enter("one", "in time", left_s=1.25 * waiting / 4)
        assert turns.waiting == waiting + 1


async def test_the_wait_is_measured_while_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    async with holders(1) as (turns, held):
        await held.enter("one", "a")
        now += 3600  # nobody waits for this hour
        await held.enter("one", "b")
        await held.let_go("a")
        await held.enter("one", "c")
        await held.enter("one", "d", left_s=1.0)
        assert turns.waiting == 2


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "let_go", "cancel"]), st.integers(0, 5), st.integers(0, 2))),
    st.integers(1, 3),
)
def test_whatever_happens_nobody_has_too_many_turns_and_none_is_lost(
    steps: list[tuple[str, int, int]], at_once: int
) -> None:
    async def scenario() -> None:
        turns = NewGrammars(at_once)
        running: dict[str, set[int]] = {}
        tasks: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}

        async def hold(number: int, tenant: str, leave: asyncio.Event) -> None:
            async with turns.turn(tenant, str(number)):
                running.setdefault(tenant, set()).add(number)
                try:
                    assert len(running[tenant]) <= at_once
                    await leave.wait()
                finally:
                    running[tenant].discard(number)

        for number, (step, which, tenant) in enumerate(steps):
            if step == "enter":
                leave = asyncio.Event()
                tasks[number] = (asyncio.create_task(hold(number, str(tenant), leave)), leave)
            elif which < len(tasks):
                task, leave = list(tasks.values())[which]
                if step == "let_go":
                    leave.set()
                else:
                    task.cancel()
            await asyncio.sleep(0)
        for _, leave in tasks.values():
            leave.set()
        ended = await asyncio.gather(*(task for task, _ in tasks.values()), return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in ended)
        assert not turns._lines and not turns._under_way

    asyncio.run(scenario())
