"""The code blocks of README, docs, examples and man pages, and the commands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_UNFILLED = re.compile(r"^\.nf\n(.*?)^\.fi$", re.MULTILINE | re.DOTALL)
# What a page leaves out of a line, and a word that it shortens.
_LEFT_OUT = "..."
_SHORTENED = re.compile(r"[^\s\"']*…[^\s\"']*")


class Block(NamedTuple):
    """A code block: `language` is what follows its fence, and ``man`` in a man page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Step(NamedTuple):
    """A command as a reader pastes it, and the lines that the page shows of its output."""

    command: str
    lines: list[str]

    def pattern(self) -> str:
        """What the output must contain: these lines, in this order, among others."""
        return ".*".join(f"(?m:^{_pattern_of(line)}$)" for line in self.lines)

    def shortened(self) -> list[str]:
        """The words of the output that the page shortens, in the order of the pattern's groups."""
        return [word for line in self.lines for word in _SHORTENED.findall(line)]


def _pattern_of(line: str) -> str:
    kept = [re.escape(part) for part in _SHORTENED.split(line)]
    pattern = r"([^\s\"']+)".join(kept)
    return pattern.replace(re.escape(_LEFT_OUT), ".*")


def pages() -> list[str]:
    """All pages, by their paths in the repository."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("man/*.1")]
    found += [*ROOT.glob("examples/*.md"), *ROOT.glob("examples/*/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks(page: str) -> list[Block]:
    """The code blocks of a page."""
    text = (ROOT / page).read_text()
    if page.endswith(".md"):
        return [
            Block(page, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2])
            for match in _FENCED.finditer(text)
        ]
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, "man", _unescaped(match[1]))
        for match in _UNFILLED.finditer(text)
    ]


def _unescaped(troff: str) -> str:
    text = troff.replace(r"\-", "-").replace(r"\(dq", '"').replace(r"\(aq", "'")
    return text.replace(r"\e", "\\")


def steps(block: Block) -> Iterator[Step]:
    """The commands of a block in order. In a man page each line is a command; elsewhere one begins
    with a dollar sign, and goes on in the indented lines below."""
    if block.language == "man":
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.strip():
                yield Step(line.strip(), [])
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        while lines and lines[0].startswith("  "):
            command += "\n" + lines.pop(0)
        yield Step(command, lines)
