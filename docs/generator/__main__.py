"""Write the reference pages. A test compares the committed pages with the generated ones.

python -m docs.generator
"""

from __future__ import annotations

from deployments.shipped import REPOSITORY
from docs.generator.documents import documents


def main() -> None:
    """Write each page that has changed, and print its name."""
    for name, text in documents().items():
        path = REPOSITORY / "docs" / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
