"""Arguments of a Turnstile application: pydantic models of `args` in a Ray Serve config file.

Each model rejects unknown keys. `AppArguments` is the whole of `args`. Its parts `RouterArguments`, `CompilerArguments`
and `ReplicaArguments` configure one deployment each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, field_validator, model_validator

from deployments.chat.thinking import ThinkingArguments
from deployments.chat.tool_formats import ToolFormatName
from deployments.http.tenants import RateLimit
from deployments.shipped import ROOT
from gpu_workers.config import AnyEngineConfig, EngineConfig
from grammar_workers.artifacts.store import DEFAULT_URL, open_store
from grammar_workers.options import GrammarOptions
from grammar_workers.service.autoscaling import POLICY as BY_BACKLOG
from grammar_workers.specification import GrammarSpecification
from grammar_workers.validation import RenamedFields, by_json_type


class Autoscaling(RenamedFields):
    """Bounds and delays of Ray Serve's autoscaler for one deployment."""

    min_replicas: int = Field(1, ge=0)
    """Minimum number of replicas. 0: scale to zero."""
    max_replicas: int = Field(ge=1)
    """Maximum number of replicas."""
    target_ongoing_requests: float = Field(2.0, gt=0)
    """Target number of open requests per replica. For compilers: queued and running compilations."""
    upscale_delay_s: float = Field(5.0, ge=0)
    """Seconds for which the load must be high before Serve adds replicas."""
    downscale_delay_s: float = Field(600.0, ge=0)
    """Seconds for which the load must be low before Serve removes replicas."""


class Scale(RenamedFields):
    """Scale of a Ray Serve deployment: number of replicas, resources of each replica, and limits of each replica."""

    renamed: ClassVar[Mapping[str, str]] = {"drain_s": "graceful_shutdown_timeout_s"}

    replicas: int = Field(1, ge=1)
    """Number of replicas. Ignored if `autoscaling` is set."""
    autoscaling: Autoscaling | None = None
    """Scale the number of replicas with the load."""
    num_cpus: float = Field(1.0, ge=0)
    """CPUs that Ray reserves for each replica."""
    num_gpus: float = Field(0.0, ge=0)
    """GPUs that Ray reserves for each replica."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources of each replica."""
    max_ongoing_requests: int = Field(256, ge=1)
    """Maximum number of concurrent requests per replica."""
    max_queued_requests: int = Field(1024, ge=1)
    """Maximum number of requests that wait at each caller. Further requests get HTTP 429."""
    process_growth_mb: int = Field(4096, ge=64)
    """MiB by which the memory of a replica's process may grow after its start. Above this limit, the replica rejects
    requests and ends the call whose memory has grown most, so that Ray does not kill the process."""
    graceful_shutdown_timeout_s: float = Field(10.0, ge=0)
    """Maximum number of seconds that a graceful shutdown waits for open requests."""

    @property
    def most_replicas(self) -> int:
        """Maximum number of replicas: `autoscaling.max_replicas`, or `replicas` without autoscaling."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas

    def deployment_options(self) -> dict[str, Any]:
        """Return the keyword arguments for Ray Serve's `Deployment.options`.

        Returns:
            A new dictionary. It sets the number of replicas (or the autoscaling), the Ray resources and the limits on
            requests. It also sets the timing of the graceful shutdown and of health checks.
        """
        count: dict[str, Any] = {"num_replicas": self.replicas}
        if self.autoscaling is not None:
            count = {"num_replicas": "auto", "autoscaling_config": self.autoscaling.model_dump()}
        return {
            **count,
            "ray_actor_options": self.model_dump(include={"num_cpus", "num_gpus", "resources"}),
            **self.model_dump(include={"max_ongoing_requests", "max_queued_requests"}),
            "backpressure_config": {"status_code": 429, "retry_after_s": 1},
            "graceful_shutdown_timeout_s": self.graceful_shutdown_timeout_s,
            # Serve polls for the end of open requests at this interval. A short interval makes shutdown fast.
            "graceful_shutdown_wait_loop_s": 0.2,
            "health_check_period_s": 2,
        }


class RouterArguments(Scale):
    """Scale, limits and security of the deployment that answers HTTP requests.

    If the deployment has only one replica and this replica fails, all open connections break.
    """

    num_cpus: float = Field(0.25, ge=0)
    """CPUs that Ray reserves for each replica."""
    max_ongoing_requests: int = Field(4096, ge=1)
    """Maximum number of concurrent requests per replica. The default is above the limits of the other deployments,
    because a router holds the requests that wait for them."""
    api_keys: str | None = None
    """A YAML file with the hashes of API keys and their tenants (`docs/authentication.md`). Absent: requests need no
    key. A relative path starts at the working folder of the router's process."""
    rate_limit: RateLimit | None = None
    """Rate limit of each tenant. Requests above the limit get HTTP 429. Each router replica enforces the whole limit. A
    limit in the key file replaces this limit, and applies to all router replicas together."""
    allow_unenforced: bool = True
    """`true`: requests may have `on_unsupported: report`, which reports keywords that cannot be enforced instead of
    rejecting the schema. `false`: these requests get HTTP 400."""
    # A larger prompt would block the tokenizer of a replica for long.
    max_prompt_bytes: int = Field(1 << 20, ge=1)
    """Maximum size of prompt, messages and tools as JSON, in bytes. Larger requests get HTTP 400."""
    max_body_bytes: int = Field(4 << 20, ge=1)
    """Maximum size of a request body in bytes. Larger requests get HTTP 413."""
    body_timeout_s: float = Field(30.0, gt=0)
    """Maximum number of seconds in which a request body must arrive. Slower requests get HTTP 408."""
    stream_timeout_s: float = Field(30.0, gt=0)
    """Maximum number of seconds for which the client of a stream may read nothing. Then the router closes the
    stream."""
    timeout_s: float = Field(600.0, gt=0)
    """Maximum duration of a response in seconds, including the time in queues, if the request has no `timeout_s`. A
    longer response ends with HTTP 408, or with an error event if the stream has begun."""


class CompilerArguments(Scale):
    """Scale, limits and default options of the deployment that compiles grammars (constraints) on CPUs."""

    renamed: ClassVar[Mapping[str, str]] = {**Scale.renamed, "max_wait_s": "queue_timeout_s"}

    processes: int = Field(1, ge=1)
    """Number of compile workers of each replica. A replica has one more compile worker for slow compilations, so that
    they do not delay other compilations."""
    compile_timeout_s: float = Field(30.0, gt=0)
    """Maximum duration of a compilation in seconds. Then the server ends it."""
    compile_cpu_s: float = Field(2.0, gt=0)
    """Maximum CPU time of a compilation in seconds. Raise this limit on slow cores."""
    memory_limit_mb: int = Field(4096, ge=64)
    """Maximum memory of one compile worker, in MiB."""
    queue_timeout_s: float = Field(120.0, gt=0)
    """Maximum number of seconds that a request waits in the queue for a compilation and for its result. Then the
    request gets HTTP 429."""
    options: GrammarOptions = Field(default_factory=GrammarOptions)
    """Default options of all grammars."""
    max_ongoing_requests: int = Field(8192, ge=1)
    """Maximum number of concurrent requests per replica. Most of these requests wait for a compilation."""
    precompile: list[GrammarSpecification] = Field(default_factory=list)
    """Constraints that are compiled at startup. Before the application is ready, the grammars are in the memory of
    every replica."""

    def deployment_options(self) -> dict[str, Any]:
        """Return the keyword arguments for Ray Serve's `Deployment.options`, with an autoscaling policy.

        Returns:
            A new dictionary with the entries of `Scale.deployment_options`. If `autoscaling` is set, the dictionary
            also selects a policy, under which the number of replicas depends on the number of waiting and running
            compilations.
        """
        options = super().deployment_options()
        if self.autoscaling is not None:
            options["autoscaling_config"]["policy"] = {"policy_function": BY_BACKLOG}
        return options

    def plain_precompile(self) -> list[dict[str, Any]]:
        """Return the constraints of `precompile` as plain data, which can be sent to other processes.

        Returns:
            One dictionary per constraint. It has `type` and the other fields under the names of the config file, such
            as `{"type": "regex", "pattern": "[0-9]+"}`.
        """
        return [specification.model_dump(by_alias=True) for specification in self.precompile]


class ReplicaArguments(Scale):
    """Scale, limits and engine of the deployment that runs the model on GPUs."""

    engine: AnyEngineConfig = Field(default_factory=EngineConfig)
    """Settings of the inference engine. `kind: vllm` selects vLLM."""

    @model_validator(mode="after")
    def _each_worker_has_a_gpu(self) -> ReplicaArguments:
        if self.engine.kind == "vllm" and self.num_gpus and self.num_gpus != self.engine.workers:
            message = f"num_gpus: {self.num_gpus:g}, but the engine arguments spread the model over"
            raise ValueError(f"{message} {self.engine.workers} (tensor and pipeline parallel)")
        return self

    def deployment_options(self) -> dict[str, Any]:
        """Return the keyword arguments for Ray Serve's `Deployment.options`, including the GPUs of vLLM's workers.

        Returns:
            A new dictionary with the entries of `Scale.deployment_options`. If vLLM distributes the model over GPUs
            with Ray (`distributed_executor_backend: ray`), the dictionary also has a placement group: bundles of
            resources that Ray reserves together. There is one bundle with one GPU for each GPU worker.
        """
        options = super().deployment_options()
        engine = self.engine
        if engine.kind == "vllm" and self.num_gpus and engine.engine_args.get("distributed_executor_backend") == "ray":
            first = {"CPU": self.num_cpus, "GPU": 1, **self.resources}
            options["ray_actor_options"]["num_gpus"] = 0
            options["placement_group_bundles"] = [first, *({"GPU": 1} for _ in range(engine.workers - 1))]
            options["placement_group_strategy"] = "PACK"
        return options


class AppArguments(RenamedFields, hide_input_in_errors=True):  # the URL of the store may have a password
    """Arguments of one Turnstile application, which serves one model: `args` of a Ray Serve config file."""

    model: str
    """A Hugging Face model ID, or a folder. A relative folder starts at Turnstile's own folder: the checkout, or the
    installed package."""
    served_model_name: str | None = None
    """Name of the model in requests. Absent: the last part of `model`."""
    store: str = DEFAULT_URL
    """Store of compiled grammars: `file:///folder`, `redis://host:port/0` (with files on each node as a cache),
    `rediss://...` (Redis with TLS) or `memory://`."""
    tool_format: Literal[ToolFormatName, "auto"] = "auto"  # type: ignore[valid-type]
    """Format of tool calls (`docs/tools.md`). `auto`: the server detects it from the chat template."""
    thinking: Annotated[
        Annotated[ThinkingArguments, Tag("object")] | Annotated[Literal["auto", "off"], Tag("string")],
        by_json_type('"auto", "off" (with quotes), or an object with `start` and `end`'),
    ] = "auto"
    """Markers of the reasoning section. `auto`: the server detects them from the chat template."""
    router: RouterArguments = Field(default_factory=RouterArguments)
    """Deployment that answers HTTP requests."""
    compiler: CompilerArguments = Field(default_factory=CompilerArguments)
    """Deployment that compiles grammars."""
    replica: ReplicaArguments = Field(default_factory=ReplicaArguments)
    """Deployment that runs the model."""

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
        # Replicas would fail on the folder, too, but only after Serve has started each of them several times.
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise ValueError(
                f"the folder {folder} holds no model (no config.json): name one that does, or OWNER/NAME of a hub"
            )
        return model

    @field_validator("store")
    @classmethod
    def _is_a_store(cls, store: str) -> str:
        open_store(_expanded(store))  # it contacts nothing
        return store

    @property
    def model_source(self) -> str:
        """Location of the model: its absolute path if `model` is an existing folder, else the Hugging Face ID."""
        return model_source(self.model)

    @property
    def model_name(self) -> str:
        """Name by which clients request the model: `served_model_name`, or the last part of `model`."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that clients may request as `model`: first `model_name`, then the LoRA adapters' names (vLLM only)."""
        engine = self.replica.engine
        return (self.model_name, *(engine.lora_adapters if engine.kind == "vllm" else ()))

    @property
    def store_url(self) -> str:
        """URL of the store of compiled grammars: the field `store`, with `~` at the start of its path expanded."""
        return _expanded(self.store)


def _expanded(store: str) -> str:
    return store.replace("://~", f"://{Path.home()}", 1)


def model_source(model: str) -> str:
    """Return the absolute path of a model's folder. A Hugging Face ID is returned unchanged.

    Args:
        model: Folder or Hugging Face ID. A relative folder is looked up in Turnstile's own folder (the checkout, or the
            installed package). A leading `~` is the home folder. If there is no such folder, `model` is an ID.
    """
    folder = _model_folder(model)
    return str(folder) if folder.is_dir() else model


def _model_folder(model: str) -> Path:
    return ROOT / Path(model).expanduser()
