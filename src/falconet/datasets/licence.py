"""The usage licence in a release's README."""

from __future__ import annotations

import html
import re
from pathlib import Path

_NAMES = ("README.txt", "README", "README.html")
_LINES = 30


def usage_licence(folder: Path) -> str | None:
    """The README's licence section, about thirty lines of it, and the file it stands in; None where there is none."""
    for name in _NAMES:
        path = folder / name
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            section = _section(_plain(text) if name.endswith(".html") else text)
            return None if section is None else f"{section}\n\nThe whole text: {path}"
    return None


def _section(text: str) -> str | None:
    """From the heading that says `usage license` to the next heading (a line above `====` or `----`)."""
    lines = [line.rstrip() for line in text.splitlines()]
    headings = [i for i, line in enumerate(lines[:-1]) if line.strip() and re.fullmatch(r"\s*[=-]{3,}", lines[i + 1])]
    for place, start in enumerate(headings):
        if "usage license" in lines[start].lower():
            end = headings[place + 1] if place + 1 < len(headings) else len(lines)
            body = "\n".join([lines[start], *lines[start + 2 : end]]).strip()
            kept = re.sub(r"\n{3,}", "\n\n", body).splitlines()
            return "\n".join(kept[:_LINES] + (["…"] if len(kept) > _LINES else []))
    return None


def _plain(page: str) -> str:
    """HTML without its tags, headings underlined as in the text files."""
    page = re.sub(r"(?is)<(script|style)\b.*?</\1>", "", page)
    page = re.sub(r"(?is)<h\d[^>]*>(.*?)</h\d>", r"\n\1\n====\n", page)
    page = re.sub(r"(?i)<li[^>]*>", "\n* ", page)
    return html.unescape(re.sub(r"<[^>]+>", "", page))
