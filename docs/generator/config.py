"""The arguments of an application in a config file, from their pydantic models."""

from __future__ import annotations

from deployments.arguments import AppArguments
from docs.generator.schema_tables import sections

INTRODUCTION = """\
# Config

Made by `make reference` from `deployments/arguments.py`. A config is a
[Serve config file](https://docs.ray.io/en/latest/serve/production-guide/config.html); the tables below are the `args`
of its application. Unknown keys fail with their name.

```yaml
http_options:
  host: 127.0.0.1    # 0.0.0.0: reachable from other machines
  port: 8000
applications:
  - name: turnstile
    route_prefix: /
    import_path: deployments.app:build_app
    args:            # AppArguments
      model: models/turnstile-tiny
      router: {}     # RouterArguments
      compiler: {}   # CompilerArguments
      replica: {}    # ReplicaArguments
```"""


def config() -> str:
    """The document as Markdown."""
    whole = AppArguments.model_json_schema()
    schemas = {**whole.pop("$defs"), "AppArguments": whole}
    # The reference of features describes them; here they would be most of the text.
    specification = {"type": "[grammar specification](../features.md#specifications)"}
    schemas["CompilerArguments"]["properties"]["precompile"]["items"] = specification
    return "\n\n".join([INTRODUCTION, *sections(["AppArguments"], schemas, level=2)]) + "\n"
