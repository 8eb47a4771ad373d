"""Page of the config fields, generated from their pydantic models."""

from __future__ import annotations

from deployments.arguments import AppArguments
from docs.generator.schema_tables import sections

INTRODUCTION = """\
# Config

A config is a [Serve config file](https://docs.ray.io/en/latest/serve/production-guide/config.html). The tables
of this page list the `args` of its application. A config with an unknown key is rejected, and the error names the key.
`make reference` generates this page from `deployments/arguments.py`.

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
    """Return the page as Markdown."""
    whole = AppArguments.model_json_schema()
    schemas = {**whole.pop("$defs"), "AppArguments": whole}
    # The reference of features describes them; here they would be most of the text.
    specification = {"type": "[grammar specification](../features.md#specifications)"}
    schemas["CompilerArguments"]["properties"]["precompile"]["items"] = specification
    return "\n\n".join([INTRODUCTION, *sections(["AppArguments"], schemas, level=2)]) + "\n"
