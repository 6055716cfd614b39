"""Write ``dashboards/generated`` anew: ``python -m dashboards``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dashboards.files import generated


def main() -> None:
    """Write every file, and take away what is generated no more."""
    top = Path(__file__).parent / "generated"
    shutil.rmtree(top, ignore_errors=True)
    for name, text in generated():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.stdout.write(f"wrote {top}\n")


if __name__ == "__main__":
    main()
