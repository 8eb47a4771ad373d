"""Paths of the data files that are distributed with the code: config files and small models.

The models are the embedded model `turnstile-tiny`, its draft head, and a character-level model. In a checkout, this
folder has symbolic links to the folders `configs/` and `models/` of the repository. In a wheel, it has the files.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
# Root of the checkout. Without a checkout, the path has no meaning.
REPOSITORY = _FOLDER.parents[1]
# Folder that relative paths in a config refer to, whatever the working directory of the process is.
ROOT = REPOSITORY if (REPOSITORY / "models" / "turnstile-tiny").is_dir() else _FOLDER
# Folder of the embedded model.
EMBEDDED_MODEL = ROOT / "models" / "turnstile-tiny"
