"""How all compiled loops are compiled."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
"""They release the GIL and keep no lock. Indices are not checked: whoever calls them has checked the arrays."""
BORROWS: dict[str, Any] = {**OPTIONS, "_nrt": False}
"""For kernels that neither make nor return arrays: they count no references to those they are passed, which was two
fifths of their time (docs/decisions/0029)."""
