"""Two lanes: whatever comes, nobody quick waits behind slow ones, and nobody slow for ever."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.lanes import Lanes, Run


@dataclasses.dataclass(eq=False)
class Job:
    tenant: str
    outlasts: bool = False


def taken(lanes: Lanes[Job]) -> Run[Job]:
    run = lanes.take()
    assert run is not None
    return run


def test_a_slow_job_changes_lanes_where_it_runs_and_frees_the_quick_one() -> None:
    lanes: Lanes[Job] = Lanes(1, 9, 9)
    for tenant in "ab":
        lanes.put(Job(tenant))
    slow = taken(lanes)
    assert lanes.take() is None
    assert lanes.outlasts_slice(slow) and slow.slow
    assert not taken(lanes).slow
    assert lanes.outlasts_slice(slow), "it stays there"


def test_without_room_it_stays_until_somebody_waits_and_then_waits_itself() -> None:
    lanes: Lanes[Job] = Lanes(1, 9, 9)
    runs = []
    for tenant in "ab":
        lanes.put(Job(tenant))
        runs.append(taken(lanes))
        assert lanes.outlasts_slice(runs[-1])
    first, last = runs
    assert first.slow and not last.slow
    lanes.put(Job("c"))
    assert not lanes.outlasts_slice(last)
    lanes.end(last)
    assert taken(lanes).job.tenant == "c"
    assert lanes.take() is None, "the slow lane has no room"
    lanes.end(first)
    again = taken(lanes)
    assert again.slow and again.job is last.job


def test_who_changes_lanes_does_not_overtake_those_in_the_line() -> None:
    lanes: Lanes[Job] = Lanes(2, 9, 9)
    runs = []
    for _ in range(3):
        lanes.put(Job("a"))
        runs.append(taken(lanes))
        lanes.outlasts_slice(runs[-1])
    lanes.put(Job("b"))
    assert not lanes.outlasts_slice(runs[2])
    lanes.end(runs[2])
    quick = taken(lanes)
    lanes.end(runs[0])
    assert lanes.outlasts_slice(quick) and not quick.slow


def test_a_full_line_of_the_slow_lane() -> None:
    lanes: Lanes[Job] = Lanes(1, 2, 1)
    for number in range(3):
        lanes.put(Job("a"))
        run = taken(lanes)
        lanes.put(Job("b"))
        try:
            assert lanes.outlasts_slice(run) == (number == 0)
        except QueueFullError:
            assert number == 2
        if not run.slow:
            lanes.end(run)
        lanes.end(taken(lanes))
    assert (lanes.running, lanes.waiting) == (1, 1)


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    st.lists(st.integers(0, 7), max_size=120),
)
def test_bounds_hold_nobody_waits_behind_the_other_lane_and_everything_ends(
    at_once: int, coming: list[tuple[str, bool]], steps: list[int]
) -> None:
    """`steps`: whether a job comes (0 to 3), or which of the runs ends or outlasts its slice."""
    lanes: Lanes[Job] = Lanes(at_once, 99, 99)
    jobs = [Job(*job) for job in coming]
    runs: list[Run[Job]] = []
    ended: list[Job] = []

    def fill() -> None:
        while len(runs) <= at_once and (run := lanes.take()) is not None:
            runs.append(run)
        slow = sum(run.slow for run in runs)
        assert slow <= at_once and len(runs) - slow <= at_once and lanes.running == len(runs)
        assert not lanes._quick or slow < len(runs)
        assert not lanes._slow or slow

    def step(run: Run[Job]) -> None:
        if not run.job.outlasts or run.slow:
            ended.append(run.job)
        elif lanes.outlasts_slice(run):
            run.job.outlasts = run.slow  # who may stay in the quick lane ends there the next time
            return
        runs.remove(run)
        lanes.end(run)

    for which in (*steps, *[4] * 500):
        if which < 4 and len(jobs) > len(ended) + len(runs) + lanes.waiting:
            lanes.put(jobs[len(ended) + len(runs) + lanes.waiting])
        elif which >= 4 and runs:
            step(runs[which % len(runs)])
        fill()
    assert lanes.waiting == lanes.running == 0
    assert len(ended) == len(set(map(id, ended)))


def test_what_nobody_wants_is_dropped_from_both_lines() -> None:
    lanes: Lanes[Job] = Lanes(1, 9, 9)
    for tenant in "aab":
        lanes.put(Job(tenant))
    lanes.outlasts_slice(taken(lanes))
    overdue = taken(lanes)
    assert not lanes.outlasts_slice(overdue)
    lanes.end(overdue)
    assert {job.tenant for job in lanes.keep(lambda job: False)} == {"a", "b"}
    assert lanes.waiting == 0
