"""What travels with the code: the configs, the embedded model, its draft head, and the character model.

In a checkout this folder has symbolic links to them, whose home is the repository's `configs/` and `models/`; a wheel
has the files in their place.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
REPOSITORY = _FOLDER.parents[1]
"""The checkout, where this is one."""
ROOT = REPOSITORY if (REPOSITORY / "models" / "turnstile-tiny").is_dir() else _FOLDER
"""What relative paths in a config mean, whatever the working directory of the process that reads them."""
EMBEDDED_MODEL = ROOT / "models" / "turnstile-tiny"
