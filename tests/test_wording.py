"""The wording of what streamd says, as far as a program can judge it.

- `turns`: texts of the package say who does what, without the turns in `TURNS`;
- `help`: the HELP text of a metric says by itself what is counted;
- `twice`: no new class has the name of another one, but for those in `TWICE`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from tests.test_tidy import File, Finding, python

# Turns that leave the reader to derive the meaning; in messages, help texts and docstrings.
TURNS = re.compile(
    r"\b(?:told|said|exclude each other|does not lead|no longer leads|makes? no sense)\b"
    r"|\b(?:is|are) another(?: one)? than\b|\bto before\b|\bas (?:it (?:is|was)|they are)\b"
)
# How many each package still has: that of `state` is in a format.
TURNS_LEFT = {"state": 1}

# Functions that register a metric, and which of their arguments is its HELP text.
METRICS = {
    "gauge": 1, "info": 1, "family": 1, "gauge_by": 2, "counter_by": 2, "CounterMetricFamily": 1,
}  # fmt: skip
HELP = re.compile(r"(?!(?:That|Of|As|From|Made|What|Whether|In)\b)[A-Z0-9]\S*( \S+){3,}\.")

# Names that two classes or more have, each in another package, never used side by side.
TWICE = {
    "Handler", "Operator", "Path",  # of routes
    "Answer", "Batch", "Begin", "Begun", "Bucket", "Change", "Chunk", "Consumer", "Counted",
    "Entry", "Event", "Exchange", "Fenced", "Guard", "Head", "Header", "Host", "Identity",
    "Journal", "Limits", "Link", "Member", "Notification", "OffsetGone", "Operation",
    "OutcomeUnknown", "Pack", "Part", "Pause", "Piece", "Place", "Plan", "Progress", "Range",
    "Ready", "Records", "Refused", "Reply", "Request", "RequestRefused", "Resume", "Settings",
    "Sink", "Snapshot", "State", "Step", "Stored", "Stores", "Stream", "Subscription", "Table",
    "Transfer", "Transport", "Unavailable", "Upload", "Verdict", "View", "Wake",
    "WebhookUrlRejected", "Webhooks", "Wire", "Write", "Writes", "_Backup", "_Exchange", "_Rows",
    "_Write",
}  # fmt: skip


def sources() -> Iterator[File]:
    return (file for file in python() if file.is_source)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings, messages and other strings of several words, on one line each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, " ".join(node.value.split())


def turns_rule() -> Iterator[Finding]:
    found: dict[str, list[Finding]] = {}
    for file in sources():
        for line, text in texts(file.tree):
            for turn in TURNS.finditer(text):
                finding = (file, line, f"{turn[0]!r}: say who does what to what")
                found.setdefault(file.path.split("/")[2], []).append(finding)
    for package, findings in found.items():
        if len(findings) > TURNS_LEFT.get(package, 0):
            yield from findings


def poor_help(file: File) -> Iterator[Finding]:
    for node in file.nodes:
        if isinstance(node, ast.Call):
            place = METRICS.get(ast.unparse(node.func).rpartition(".")[2], len(node.args))
            for text in node.args[place : place + 1]:
                if isinstance(text, ast.Constant) and not HELP.fullmatch(str(text.value)):
                    yield file, node.lineno, f"{text.value!r} does not say what is counted"


def twice_rule() -> Iterator[Finding]:
    first: dict[str, File] = {}
    for file in sources():
        for node in file.nodes:
            if isinstance(node, ast.ClassDef):
                known = first.setdefault(node.name, file)
                if known is not file and node.name not in TWICE:
                    yield file, node.lineno, f"{known.path} has a `{node.name}`, too"


RULES: dict[str, Callable[[], Iterator[Finding]]] = {
    "turns": turns_rule,
    "help": lambda: chain(*(poor_help(file) for file in sources())),
    "twice": twice_rule,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_wording_is_plain(rule: str) -> None:
    found = [f"{file.path}:{line} {what}" for file, line, what in RULES[rule]()]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text", ["That are needed.", "Bytes.", "Whether the last round failed.", "Bytes of all packs"]
)
def test_a_help_text_that_says_nothing_by_itself_is_found(text: str) -> None:
    assert list(poor_help(File("a.py", f"metrics.gauge('x', {text!r}, read)")))
    assert not list(poor_help(File("a.py", "metrics.gauge('x', 'Bytes of all packs.', read)")))


def test_a_turn_is_found_in_a_message_and_a_docstring() -> None:
    tree = ast.parse("def f():\n  'As it\\n is told.'\n  raise E(f'{a} is another one than {b}')")
    assert [len(TURNS.findall(text)) for _, text in texts(tree)] == [1, 1]
