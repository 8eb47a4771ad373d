"""The arguments of an application, as the `args` of a Serve config file give them. Unknown keys fail by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deployments.chat.tool_formats import ToolFormatName
from deployments.shipped import ROOT
from gpu_workers.config import AnyEngineConfig, EngineConfig
from grammar_workers.artifacts.store import DEFAULT_URL
from grammar_workers.options import GrammarOptions
from grammar_workers.service.autoscaling import POLICY as BY_BACKLOG
from grammar_workers.specification import GrammarSpecification


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Autoscaling(_Arguments):
    """Bounds and pace of Serve's autoscaler for one deployment."""

    min_replicas: int = Field(1, ge=0, description="Fewest replicas; 0 lets the deployment scale to zero.")
    max_replicas: int = Field(ge=1, description="Most replicas.")
    target_ongoing_requests: float = Field(
        2.0,
        gt=0,
        description="Requests in flight per replica to aim for; of compilers: compilations, waiting or running.",
    )
    upscale_delay_s: float = Field(5.0, ge=0, description="How long demand must last before replicas are added.")
    downscale_delay_s: float = Field(600.0, ge=0, description="How long idleness must last before they are removed.")


class Scale(_Arguments):
    """How many replicas of a deployment run, where, and how much each takes on."""

    replicas: int = Field(1, ge=1, description="Number of replicas; ignored when `autoscaling` is given.")
    autoscaling: Autoscaling | None = Field(None, description="Let Serve choose the number of replicas.")
    num_cpus: float = Field(1.0, ge=0, description="CPUs that Ray reserves for each replica.")
    num_gpus: float = Field(0.0, ge=0, description="GPUs that Ray reserves for each replica.")
    resources: dict[str, float] = Field(default_factory=dict, description="Custom Ray resources of each replica.")
    max_ongoing_requests: int = Field(256, ge=1, description="Requests that one replica works on at a time.")
    max_queued_requests: int = Field(
        1024, ge=1, description="Requests that may wait at each caller before the next is answered with 429."
    )
    process_growth_mb: int = Field(
        4096,
        ge=64,
        description="MiB by which the process of a replica may grow once it is ready. Above that it refuses requests "
        "and ends the call that has grown most, before the kernel or Ray ends the process.",
    )
    drain_s: float = Field(10.0, ge=0, description="How long a replica that is told to stop may finish its requests.")

    @property
    def most_replicas(self) -> int:
        """How many there will be at most."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    def deployment_options(self) -> dict[str, Any]:
        """The arguments of `Deployment.options`."""
        count: dict[str, Any] = {"num_replicas": self.replicas}
        if self.autoscaling is not None:
            count = {"num_replicas": "auto", "autoscaling_config": self.autoscaling.model_dump()}
        return {
            **count,
            "ray_actor_options": self.model_dump(include={"num_cpus", "num_gpus", "resources"}),
            **self.model_dump(include={"max_ongoing_requests", "max_queued_requests"}),
            "backpressure_config": {"status_code": 429, "retry_after_s": 1},
            "graceful_shutdown_timeout_s": self.drain_s,
            # Looking for the end of the last request often keeps a stop short.
            "graceful_shutdown_wait_loop_s": 0.2,
            "health_check_period_s": 2,
        }


class RateLimit(_Arguments):
    """What each tenant may send."""

    requests_per_minute: float = Field(gt=0, description="How many requests in the long run.")
    burst: int = Field(ge=1, description="How many at once, after a pause.")


class ThinkingArguments(_Arguments):
    """How the served model marks what it thinks."""

    start: str = Field(min_length=1, description="The text before its thoughts, or the name of a special token.")
    end: str = Field(min_length=1, description="The one behind them.")
    by_default: bool = Field(True, description="Whether requests that do not say want thoughts.")


class RouterArguments(Scale):
    """The HTTP front. With one replica only, its death breaks the connections it holds."""

    num_cpus: float = Field(0.25, ge=0, description="CPUs that Ray reserves for each replica.")
    max_ongoing_requests: int = Field(
        4096, ge=1, description="Requests that one replica works on at a time; more than the tiers behind it hold."
    )
    api_keys: str | None = Field(
        None,
        description="A YAML file with the hashes of API keys and their tenants (`docs/api.md`, Tenants); without one "
        "everybody may send requests. A relative path means the working folder of the router's process.",
    )
    rate_limit: RateLimit | None = Field(
        None,
        description="What each tenant may send; more is answered with 429. Each router replica enforces the whole "
        "limit by itself. Limits in the key file take its place; they hold for all replicas together.",
    )
    allow_unenforced: bool = Field(
        True,
        description="Whether requests may ask that keywords which cannot be enforced are reported in place of refused "
        "(`on_unsupported: report`); else such a request is answered with 400.",
    )
    max_prompt_bytes: int = Field(
        1 << 20,  # more would keep the tokenizer of a replica busy for long
        ge=1,
        description="Largest prompt, messages and tools as JSON; a larger one is answered with 400.",
    )
    max_body_bytes: int = Field(4 << 20, ge=1, description="Largest request body; a larger one is answered with 413.")
    body_timeout_s: float = Field(
        30.0, gt=0, description="How long a request body may take to arrive; a slower one is answered with 408."
    )
    stream_timeout_s: float = Field(
        30.0, gt=0, description="How long the client of a stream may take nothing of what is there; then it ends."
    )
    timeout_s: float = Field(
        600.0,
        gt=0,
        description="How long an answer may take, waiting included, where the request does not say so by its own "
        "`timeout_s`; then it ends with 408, or an error event where it is streamed already.",
    )


class CompilerArguments(Scale):
    """The grammar tier."""

    processes: int = Field(
        1,
        ge=1,
        description="Grammars that each replica compiles at a time. It has one process more, so that those which take "
        "long hold nobody up.",
    )
    compile_timeout_s: float = Field(30.0, gt=0, description="Longest compilation; its process is killed after it.")
    compile_cpu_s: float = Field(
        2.0, gt=0, description="CPU seconds of the longest compilation. Raise it on cores that are slow."
    )
    memory_limit_mb: int = Field(4096, ge=64, description="Memory of one compile process, in MiB.")
    max_wait_s: float = Field(
        120.0, gt=0, description="Longest wait for a compilation, queue included; after it the answer is 429."
    )
    options: GrammarOptions = Field(default_factory=GrammarOptions, description="Spelling policies of all grammars.")
    max_ongoing_requests: int = Field(
        8192, ge=1, description="Requests that one replica works on at a time; most of them wait for a compilation."
    )
    precompile: list[GrammarSpecification] = Field(
        default_factory=list,
        description="Grammars that must be compiled, and in every replica's memory, before the start counts as ready.",
    )

    def deployment_options(self) -> dict[str, Any]:
        """As those of `Scale`, scaled by the queue of compilations."""
        options = super().deployment_options()
        if self.autoscaling is not None:
            options["autoscaling_config"]["policy"] = {"policy_function": BY_BACKLOG}
        return options

    def plain_precompile(self) -> list[dict[str, Any]]:
        """`precompile` as the tiers take it."""
        return [specification.model_dump(by_alias=True) for specification in self.precompile]


class ReplicaArguments(Scale):
    """The GPU tier."""

    engine: AnyEngineConfig = Field(
        default_factory=EngineConfig, description="Settings of the inference engine; `kind: vllm` makes it vLLM's."
    )

    @model_validator(mode="after")
    def _each_worker_has_a_gpu(self) -> ReplicaArguments:
        if self.engine.kind == "vllm" and self.num_gpus and self.num_gpus != self.engine.workers:
            message = f"num_gpus: {self.num_gpus:g}, but the engine arguments spread the model over"
            raise ValueError(f"{message} {self.engine.workers} (tensor and pipeline parallel)")
        return self

    def deployment_options(self) -> dict[str, Any]:
        """As those of `Scale`; the workers of vLLM's Ray executor have bundles of their own, on one node or several."""
        options = super().deployment_options()
        engine = self.engine
        if engine.kind == "vllm" and self.num_gpus and engine.engine_args.get("distributed_executor_backend") == "ray":
            first = {"CPU": self.num_cpus, "GPU": 1, **self.resources}
            options["ray_actor_options"]["num_gpus"] = 0
            options["placement_group_bundles"] = [first, *({"GPU": 1} for _ in range(engine.workers - 1))]
            options["placement_group_strategy"] = "PACK"
        return options


class AppArguments(_Arguments):
    """Everything an operator chooses about one application."""

    model: str = Field(
        description="A Hugging Face model id, or a folder. A relative folder is looked up in Turnstile's own folder: "
        "the checkout, or the installed package."
    )
    served_model_name: str | None = Field(
        None, description="The name clients use; the last part of `model` when absent."
    )
    store: str = Field(
        DEFAULT_URL,
        description="Where compiled grammars are kept: `file:///folder`, `redis://host:port/0` (with files on each "
        "node in front), `rediss://...` or `memory://`.",
    )
    tool_format: ToolFormatName | Literal["auto"] = Field(
        "auto",
        description="How the model writes tool calls (`docs/tools.md`); `auto`: by its chat template.",
    )
    thinking: ThinkingArguments | Literal["auto", "off"] = Field(
        "auto", description="How the model marks what it thinks before it answers; `auto`: by its chat template."
    )
    router: RouterArguments = Field(default_factory=RouterArguments, description="The HTTP front.")
    compiler: CompilerArguments = Field(default_factory=CompilerArguments, description="The grammar tier.")
    replica: ReplicaArguments = Field(default_factory=ReplicaArguments, description="The GPU tier.")

    @model_validator(mode="after")
    def _fits_together(self) -> AppArguments:
        if len(set(self.model_names)) < len(self.model_names):
            raise ValueError(f"replica.engine.lora_adapters: {self.model_name} is the model's own name")
        if self.replica.engine.kind == "vllm" and self.store.startswith("memory:"):
            raise ValueError("store: vLLM's EngineCore is another process, which cannot see memory://; use file://")
        if self.compiler.options.on_unsupported == "report" and not self.router.allow_unenforced:
            raise ValueError("compiler.options.on_unsupported: report contradicts router.allow_unenforced: false")
        return self

    @field_validator("model")
    @classmethod
    def _is_a_model(cls, model: str) -> str:
        folder = _model_folder(model)
        # Replicas would find out, too, but only after Serve has started each of them several times.
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise ValueError(
                f"the folder {folder} holds no model (no config.json): name one that does, or OWNER/NAME of a hub"
            )
        return model

    @property
    def model_source(self) -> str:
        """`model` as the tiers load it."""
        return model_source(self.model)

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients may use: the model's first, then those of its adapters."""
        engine = self.replica.engine
        return (self.model_name, *(engine.lora_adapters if engine.kind == "vllm" else ()))

    @property
    def store_url(self) -> str:
        """`store` with the home folder filled in."""
        return self.store.replace("://~", f"://{Path.home()}", 1)


def model_source(model: str) -> str:
    """An absolute path when `model` names a folder that exists, else the model id that it is."""
    folder = _model_folder(model)
    return str(folder) if folder.is_dir() else model


def _model_folder(model: str) -> Path:
    return ROOT / Path(model).expanduser()
