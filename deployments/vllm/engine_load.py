"""Counts of vLLM's scheduler for Turnstile's metrics: running generations, steps, and draft tokens.

vLLM also sends its own metrics to Ray, under their own names (`vllm:...`).
"""

from __future__ import annotations

from typing import Any

from gpu_workers.inference_engine import Statistics


class Load:
    """Load of vLLM's EngineCore: number of running generations, and counts of steps and draft tokens.

    Args:
        statistics: Counters of the engine. Each call of `record` increases its counts of steps, drafted tokens and
            accepted draft tokens.

    Attributes:
        running: Number of generations in the last step of the EngineCore. An idle EngineCore makes no steps, so the
            number may be out of date.
    """

    def __init__(self, statistics: Statistics) -> None:
        self.running = 0
        self._statistics = statistics

    def record(self, scheduler_stats: Any) -> None:
        """Add the counts of one step of the EngineCore.

        Args:
            scheduler_stats: vLLM's `SchedulerStats` of the step.
        """
        self.running = scheduler_stats.num_running_reqs
        self._statistics.steps += 1
        if (drafts := scheduler_stats.spec_decoding_stats) is not None:
            self._statistics.drafted_tokens += drafts.num_draft_tokens
            self._statistics.accepted_tokens += drafts.num_accepted_tokens


def stat_loggers(load: Load) -> list[Any]:
    """Return the classes of statistics loggers for vLLM's `AsyncLLM`. vLLM calls the loggers after each step.

    Args:
        load: Load of the EngineCore, which the first logger updates.

    Returns:
        Two logger classes. The first class updates `load`. The second class is vLLM's own logger, which sends vLLM's
        metrics to Ray.
    """
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

    class LoadLogger(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            if scheduler_stats is not None:
                load.record(scheduler_stats)

        def log_engine_initialized(self) -> None: ...

    return [LoadLogger, RayPrometheusStatLogger]
