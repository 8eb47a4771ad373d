"""Config files with one mistake each, for `python -m tests.deployments.messages` and the test of their messages."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from deployments.cli.arguments import UsageFailure
from deployments.config_file import ConfigError, load_config
from deployments.local import preflight
from deployments.shipped import REPOSITORY

DIGEST = hashlib.sha256(b"secret").hexdigest()
KEYS = f"keys:\n- {{tenant: a, sha256: {DIGEST}}}\n"

Config = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A mistake: its place in the config, the value there, and what must be in the message that it gets."""

    name: str
    place: str
    value: Any
    said: tuple[str, ...]
    warning: bool = False
    """True where the server starts without what is missing."""


def wrong_configs(folder: Path) -> list[Wrong]:
    """The mistakes; `folder` gets the files that they name."""
    keys = {
        "digest": KEYS.replace(DIGEST, "secret"),
        "yaml": "keys: [",
        "empty": "",
        "unknown": KEYS + "limit: {}\n",
        "twice": KEYS + f"- {{tenant: b, sha256: {DIGEST}}}\n",
        "stranger": KEYS + "limits: {b: {new_grammars: 1}}\n",
    }
    for name, text in keys.items():
        (folder / name).write_text(text)
    (folder / "model").mkdir()
    (folder / "file").write_text("")
    arguments, engine = "applications.0.args.", "applications.0.args.replica.engine."
    api_keys = f"{arguments}router.api_keys"
    told = ("`router.api_keys`", "cannot be used")
    return [
        Wrong("unknown key", f"{arguments}modle", "x", ("unknown key `applications.0.args.modle`; is `model` meant?",)),
        Wrong("unknown section", "http_option", {}, ("unknown key `http_option`",)),
        Wrong("unknown engine option", f"{engine}slot", 4, (f"unknown key `{engine}slot`",)),
        Wrong(
            "option of vLLM in a wrong place",
            f"{arguments}replica.engine",
            {"kind": "vllm", "max_model_len": 9},
            (f"unknown key `{engine}max_model_len`; the keys here are ", "engine_args"),
        ),
        Wrong("tool format", f"{arguments}tool_format", "hermess", ("must be 'apertus'", "'auto'; is 'hermes' meant?")),
        Wrong("marker is missing", f"{arguments}thinking", {"start": "<t>"}, ("`applications.0.args.thinking.end`",)),
        Wrong("off without quotes", f"{arguments}thinking", False, ('"off" (with quotes)',)),
        Wrong("no applications", "applications", [], ("`applications` is empty", "`import_path: ")),
        Wrong("port is too large", "http_options.port", 99_999, ("`http_options.port` is 99999", "to 65535")),
        Wrong("port is text", "http_options.port", "eighty", ("`http_options.port`", "whole number")),
        Wrong("max_num_seqs is 0", f"{engine}max_num_seqs", 0, (f"`{engine}max_num_seqs`", "must be 1 or more")),
        Wrong(
            "steps too small",
            f"{engine}max_num_batched_tokens",
            16,
            ("max_num_batched_tokens (16) must exceed max_num_seqs (16)",),
        ),
        Wrong(
            "unknown engine",
            f"{engine}kind",
            "sglang",
            ("applications.0.args.replica.engine", "`kind` must be", "native", "vllm"),
        ),
        Wrong("import path", "applications.0.import_path", "app:x", ("'app:x'", "'deployments.app:build_app'")),
        Wrong(
            "model is not there",
            f"{arguments}model",
            "./none",
            ("`applications.0.args`: `model`", "there is no folder", "OWNER/NAME"),
        ),
        Wrong("model is empty", f"{arguments}model", str(folder / "model"), ("(no config.json)", "OWNER/NAME")),
        Wrong("draft model", f"{engine}draft_model", "./none", ("`replica.engine.draft_model`", "OWNER/NAME")),
        Wrong("EAGLE head", f"{engine}eagle_head", "/no/head", ("`replica.engine.eagle_head`", "/no/head")),
        Wrong("draft vocabulary", f"{engine}draft_vocabulary", "/no/file", ("draft_vocabulary`: /no/file is no file",)),
        Wrong("vLLM is missing", f"{arguments}replica.engine", {"kind": "vllm"}, ("vLLM is not installed", "pip")),
        Wrong("device", f"{engine}device", "gpu", (f"`{engine}device`: must be a device", "`cuda:0`")),
        Wrong("no GPU", f"{engine}device", "cuda", ("1 GPUs are asked for", "torch finds 0", "`device: cpu`")),
        Wrong("CPUs", f"{arguments}router.num_cpus", 999, ("1000.5 CPUs, Ray has", "lower them")),
        Wrong("key file is missing", api_keys, "/no/keys", (*told, "/no/keys", "No such file")),
        Wrong("key in place of its hash", api_keys, str(folder / "digest"), (*told, "keys.0.sha256", "sha256sum")),
        Wrong("key file is no YAML", api_keys, str(folder / "yaml"), (*told, "line 1", "keys: [{tenant")),
        Wrong(
            "key file is empty",
            api_keys,
            str(folder / "empty"),
            (*told, "it is empty", "keys: [{tenant", "docs/authentication.md"),
        ),
        Wrong("key file has an unknown key", api_keys, str(folder / "unknown"), (*told, "unknown key `limit`")),
        Wrong("key of two tenants", api_keys, str(folder / "twice"), (*told, "a key has one tenant")),
        Wrong("limits of a stranger", api_keys, str(folder / "stranger"), (*told, "tenants without a key: b")),
        Wrong(
            "store URL",
            f"{arguments}store",
            "s3://bucket",
            ("`applications.0.args.store`: ", "file://", "redis://", "'s3'"),
        ),
        Wrong("store without a scheme", f"{arguments}store", "redis//x", ("`applications.0.args.store`: ", "redis://")),
        Wrong("store option", f"{arguments}store", "file:///tmp/x?size=4", ("unknown store URL parameters: size",)),
        Wrong("store folder", f"{arguments}store", f"file://{folder}/file", ("cannot write into", "another folder")),
        Wrong(
            "Redis is down",
            f"{arguments}store",
            f"redis://127.0.0.1:1/0?file={folder}/redis",
            ("Redis does not answer", "start it, or correct the URL"),
            warning=True,
        ),
        Wrong(
            "certificate behind HAProxy",
            "http_options",
            {"ssl_certfile": str(folder / "file"), "ssl_keyfile": str(folder / "file")},
            ("has no TLS of its own", "reverse proxy"),
        ),
        Wrong(
            "certificate is missing",
            "http_options",
            {"ssl_certfile": "/no/certificate", "ssl_keyfile": str(folder / "file")},
            ("`http_options.ssl_certfile`: this server has no TLS", "remove the `ssl_` options"),
        ),
        Wrong("host", "http_options.host", "192.0.2.7", ("`http_options.host` must be an address of this machine",)),
        Wrong("port is taken", "http_options.port", "TAKEN", ("in use", "a free one: ", "--port ", " of make")),
    ]


def changed(wrong: Wrong) -> Config:
    """The config of this machine with the mistake in it."""
    config: Any = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())
    config["http_options"]["port"] = 0
    *parents, key = wrong.place.split(".")
    node = config
    for parent in parents:
        node = node[int(parent)] if isinstance(node, list) else node.setdefault(parent, {})
    node[key] = wrong.value
    config["http_options"].setdefault("port", 0)
    return config


def message(wrong: Wrong, folder: Path) -> tuple[list[str], bool]:
    """The lines that a start says about the mistake, and whether it goes on."""
    told: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = changed(wrong)
        if wrong.value == "TAKEN":
            config["http_options"]["port"] = taken.getsockname()[1]
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
        try:
            preflight.check_config(path, load_config(path), None, None, told.append)
        except (ConfigError, UsageFailure) as error:
            return str(error).replace(f"{folder}/", "").splitlines(), False
    return [line.replace(f"{folder}/", "") for line in told], True


def messages(folder: Path, found: Callable[[Path], list[Wrong]] = wrong_configs) -> Iterator[tuple[Wrong, str, bool]]:
    """Each mistake, its message, and whether the start goes on."""
    for wrong in found(folder):
        lines, goes_on = message(wrong, folder)
        yield wrong, "\n".join(lines), goes_on
