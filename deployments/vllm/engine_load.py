"""What vLLM's scheduler counts, for our metrics; its own go to Ray's metrics under its own names (`vllm:...`)."""

from __future__ import annotations

from typing import Any

from gpu_workers.inference_engine import Statistics


class Load:
    """How many generations take part in the EngineCore's steps, as of its last one; its counts go to `statistics`."""

    def __init__(self, statistics: Statistics) -> None:
        self.running = 0
        self._statistics = statistics

    def record(self, scheduler_stats: Any) -> None:
        """`scheduler_stats`: `vllm.v1.metrics.stats.SchedulerStats` of one step."""
        self.running = scheduler_stats.num_running_reqs
        self._statistics.steps += 1
        if (drafts := scheduler_stats.spec_decoding_stats) is not None:
            self._statistics.drafted_tokens += drafts.num_draft_tokens
            self._statistics.accepted_tokens += drafts.num_accepted_tokens


def stat_loggers(load: Load) -> list[Any]:
    """For `AsyncLLM`: one that tells `load`, and vLLM's own for Ray."""
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
