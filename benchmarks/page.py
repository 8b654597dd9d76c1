"""A page of the docs that tables are put into."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def put_into(page: Path, text: str) -> None:
    """Put the text in place of what stands between the page's two markers; ends the program where they lack."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(
            f"{page} lacks the lines {BEGIN.strip()} and {END.strip()}, between which tables go."
        )
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
