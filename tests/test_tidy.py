"""The house style, as far as a program can judge it.

Every file is read once and parsed once. Five rules hold everywhere:

- `words`: no word or phrase that docs/glossary.md lists as not used, nor the turns in `PHRASES`;
- `length`: no function over 70 lines, no file over 500;
- `docstrings`: a public module, class, function and long method says what it is;
- `dead`: each function, class and field of the package is used by something that is not a test, or
  named in a library's guide;
- `overview`: the docstring of a package tells how it works, in five lines at least.

Links between pages lead somewhere, and generated modules are what their generator makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import pytest

from tests.client import unasync

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
PYTHON = ("src/streamd", "tests", "bench", "examples", "spark", "packaging", "docs")
PROSE = ("README.md", "CONTRIBUTING.md", "docs", "man", "config", "packaging", "Makefile")

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 500
MAX_UNTOLD_METHOD_LINES = 12  # a shorter one is its own docstring
MIN_OVERVIEW_LINES = 5
LIBRARY_GUIDES = ("python.md", "state.md")

# Turns of a translation; single words are in the glossary.
_GAP = r"[\s#*]+"
_MORE = "longer|more|less|later|earlier|older|newer|larger|smaller|greater|better|worse|different"
_THINGS = (
    "leader", "follower", "node", "reader", "writer", "client", "server", "process", "peer",
    "store", "command", "learner", "voter", "member", "task", "connection", "group", "one",
)  # fmt: skip
PHRASES = (
    (
        re.compile(
            rf"(?<![Tt]here)(?<![\s#*]){_GAP}is{_GAP}(?:none\b|no\b(?!{_GAP}(?:{_MORE})\b))"
        ),
        "say it positively, or 'is not'",
    ),
    (re.compile(r'(?:"""|# )Have (?!no\b)'), "use the imperative"),
    (re.compile(rf"\b(?:none|no{_GAP}\w+){_GAP}any{_GAP}more\b"), "say 'no longer'"),
    (re.compile(rf"\b(?:{'|'.join(_THINGS)})s?{_GAP}who\b"), "people are 'who', things 'that'"),
    (
        re.compile(
            rf"\b(?:[Tt]hose|by|for|from|than){_GAP}who\b"
            r"|(?:\"\"\"|[.:;]\s+(?:# )?)Who\b(?![^.]*\?)"
        ),
        "name it: 'a client that', 'anyone'",
    ),
    (
        re.compile(
            r"\bdef test_\w*_(?:told|said|given_up|gives_up|go(?:es)?_on|any_more|taken_for"
            r"|is_none)(?=[_(])"
        ),
        "a test's name says what happens: reported, refused, continued",
    ),
)

# Names in formats, on the wire and in metrics, which stay as they were released.
KEPT = re.compile(
    r"\b(?:behind_entries|behind_bytes|peer_behind_entries|peer_behind_bytes"
    r"|streamd_\w+)\b"
)

# Called or read by a library, by name.
CALLED_BY_LIBRARIES = {
    # pyspark.sql.datasource
    "initialOffset", "getDefaultReadLimit", "prepareForTriggerAvailableNow", "reportLatestOffset",
    "latestOffset", "streamReader", "streamWriter", "schema", "reader", "writer", "partitions",
    "read", "write", "commit", "abort", "pushFilters", "simpleStreamReader",
    # hypercorn and h2: streams of a connection; click: parameter types; json: encoders
    "push", "_read_data", "convert", "shell_complete", "get_command", "list_commands", "invoke",
    "format_help", "default",
    # trio: a clock
    "start_clock", "deadline_to_sleep_time",
}  # fmt: skip
# Fields of JSON answers, which clients read.
ANSWERED = {
    "deleted_bytes", "first_offset", "last_offset", "bucket_id", "created_at_ms", "kept_streams",
    "acked_offset", "callback_token", "write_token", "lease_remaining_ms",
    "streams_url", "cold_records", "more_producers",
}  # fmt: skip
# Fields of stored rows and commands, for programs that read the formats: docs/formats.md.
STORED = {"dead_ms", "has_gap"}
# What the simulations look at in a Raft core.
WATCHED = {"committed_configuration", "term_at", "entry_at"}
# Decorators that leave a name to be used as it is; others, such as a command's, use it themselves.
PLAIN = {
    "property", "cached_property", "staticmethod", "classmethod", "contextmanager", "cache",
    "asynccontextmanager", "dataclass", "final", "override", "runtime_checkable",
}  # fmt: skip


@dataclass(frozen=True)
class File:
    path: str  # from the root
    text: str

    @property
    def is_source(self) -> bool:
        return self.path.startswith("src/") and self.path.endswith(".py")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


Finding = tuple[File, int, str]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def files() -> list[File]:
    found = [path for top in PYTHON for path in sorted((ROOT / top).rglob("*.py"))]
    found += sorted((ROOT / "examples").rglob("*.md"))
    for top in PROSE:
        path = ROOT / top
        found += sorted(path.rglob("*.*")) if path.is_dir() else [path] if path.exists() else []
    return [
        File(str(path.relative_to(ROOT)), path.read_text())
        for path in found
        if not {"node_modules", "__pycache__"} & set(path.parts) and path.suffix != ".png"
    ]


def python() -> Iterator[File]:
    return (file for file in files() if file.path.endswith(".py"))


# -- words --


def not_used() -> dict[str, str]:
    """Words that the glossary lists as not used, and what it says instead."""
    table = GLOSSARY.read_text().partition("## Words not used")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, flags=re.MULTILINE)
    return {word: better for words, better in rows for word in re.findall(r"`([^`]+)`", words)}


def pattern(word: str) -> re.Pattern[str]:
    """Matches a word in prose, and as a part of a name of `snake_case` or `CamelCase`."""
    first, rest = word[0], re.escape(word[1:]).replace(r"\ ", _GAP)
    return re.compile(
        rf"(?<![A-Za-z])[{first.upper()}{first}]{rest}(?![a-z])"
        rf"|(?<=[a-z]){first.upper()}{rest}(?![a-z])"
    )


def wrong_words(file: File, words: dict[str, str]) -> Iterator[Finding]:
    if file.path in ("docs/glossary.md", "tests/test_tidy.py"):
        return
    text = KEPT.sub(lambda kept: "_" * len(kept[0]), file.text)
    lowered = text.lower()
    listed = [
        (pattern(word), better) for word, better in words.items() if word.split()[0] in lowered
    ]
    for wrong, better in (*listed, *PHRASES):
        for match in wrong.finditer(text):
            found = " ".join(match[0].split())
            yield file, file.line(match.start() + 1), f"{found!r}: {better}"


def words_rule() -> Iterator[Finding]:
    words = not_used()
    assert len(words) > 10, "the table of words is where it is expected"
    for file in files():
        yield from wrong_words(file, words)


# -- length --


def too_long(file: File) -> Iterator[Finding]:
    lines = file.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield file, 1, f"{lines} lines: a file has {MAX_FILE_LINES} at most"
    for node in statements(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield file, node.lineno, f"`{node.name}` has {lines} lines"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.excepthandler):
            yield inner
            yield from statements(inner)


def length_rule() -> Iterator[Finding]:
    for file in python():
        yield from too_long(file)


# -- docstrings --


def untold(file: File) -> Iterator[Finding]:
    if ast.get_docstring(file.tree) is None and not file.path.endswith("__main__.py"):
        yield file, 1, "the module has no docstring"
    for node, in_class in definitions(file.tree):
        name, lines = node.name, (node.end_lineno or 0) - node.lineno + 1
        short = in_class and not isinstance(node, ast.ClassDef) and lines < MAX_UNTOLD_METHOD_LINES
        if not name.startswith("_") and not short and ast.get_docstring(node) is None:
            yield file, node.lineno, f"`{name}` has no docstring"


def definitions(tree: ast.Module) -> Iterator[tuple[Definition, bool]]:
    """Classes, functions and methods of a module, and whether they are in a class."""
    for node in tree.body:
        if isinstance(node, Definition):
            yield node, False
        if isinstance(node, ast.ClassDef):
            yield from ((inner, True) for inner in node.body if isinstance(inner, Definition))


def docstrings_rule() -> Iterator[Finding]:
    for file in python():
        if file.is_source:
            yield from untold(file)


def overview_rule() -> Iterator[Finding]:
    for file in python():
        if file.is_source and file.path.endswith("__init__.py"):
            lines = len((ast.get_docstring(file.tree) or "").splitlines())
            if lines < MIN_OVERVIEW_LINES:
                yield file, 1, f"the package's docstring has {lines} line(s): how does it work?"


# -- dead names --


def used_names(found: Iterator[File]) -> set[str]:
    """Names that something reads, calls or spells in a string; importing them is not enough."""
    used = CALLED_BY_LIBRARIES | ANSWERED | STORED | WATCHED
    for file in found:
        listed = {id(name) for node in file.nodes for name in _exported(node)}
        for node in file.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
                used.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.MatchClass):
                used.update(node.kwd_attrs)
            elif isinstance(node, ast.Constant) and id(node) not in listed:
                used.add(str(node.value))
    return used


def _exported(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign) and set(_assigned(node)) & {"__all__", "__slots__"}:
        yield from ast.walk(node.value)


def dead_names(file: File, used: set[str]) -> Iterator[Finding]:
    for node in file.nodes:
        if isinstance(node, Definition) and _is_plain(node) and node.name not in used:
            if not (node.name.startswith("__") and node.name.endswith("__")):
                yield file, node.lineno, f"`{node.name}` is used by nothing but tests"
        elif isinstance(node, ast.ClassDef | ast.Module):
            for inner in node.body:
                for name in _assigned(inner):
                    if name not in used and not name.startswith("__"):
                        yield file, inner.lineno, f"`{name}` is read by nothing but tests"


def _is_plain(node: Definition) -> bool:
    """Whether it is reached by its name alone, not by what a decorator does with it."""
    return {ast.unparse(each).partition("(")[0] for each in node.decorator_list} <= PLAIN


def _assigned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def named_in_guides() -> set[str]:
    """Words in the guides of the libraries, whose callers are other people's programs."""
    text = "".join((ROOT / "docs" / guide).read_text() for guide in LIBRARY_GUIDES)
    return set(re.findall(r"[A-Za-z_]\w+", text))


def dead_rule() -> Iterator[Finding]:
    used = used_names(file for file in python() if not file.path.startswith("tests/"))
    used |= named_in_guides()
    for file in python():
        if file.is_source:
            yield from dead_names(file, used)


# -- pages --


def dead_links(page: Path) -> Iterator[str]:
    """Links of a page to files that are not there."""
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not (page.parent / link).exists():
            yield f"{page.relative_to(ROOT)}: {link}"


def test_every_link_between_pages_leads_somewhere() -> None:
    folders = [(ROOT / folder).rglob("*.md") for folder in ("docs", "examples")]
    pages = [page for page in chain(*folders) if "node_modules" not in page.parts]
    pages += ROOT.glob("*.md")
    assert [link for page in pages for link in dead_links(page)] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


# -- generated modules --


def test_the_blocking_client_is_what_is_generated_from_the_asynchronous_one() -> None:
    other = [path.name for path, text in unasync.generated().items() if path.read_text() != text]
    assert not other, f"run `make fix`, which generates {other}"


# -- the tests --

RULES: dict[str, Callable[[], Iterator[Finding]]] = {
    "words": words_rule,
    "length": length_rule,
    "docstrings": docstrings_rule,
    "dead": dead_rule,
    "overview": overview_rule,
}


@pytest.mark.long  # `make verify` runs it, too
@pytest.mark.parametrize("rule", RULES)
def test_the_house_is_tidy(rule: str) -> None:
    found = [f"{file.path}:{line} {what}" for file, line, what in RULES[rule]()]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "the follower is behind",
        "def size_behind(): ...",
        "StateBehindLog",
        "class Behind: ...",
        "there, and begins anew",
        "whoever asks",
        "a command of\n    # before",
        "what is no request",
        "a leader that is none any more",
        '    """Have it stored."""',
        "a follower who asks",
        "read by who comes",
        "Those who read",
        "An end. Who comes again is told why.",
        "def test_an_outage_is_told_once(): ...",
        "def test_a_slow_body_is_given_up(): ...",
    ],
)
def test_a_wrong_word_is_found_in_prose_and_in_names(text: str) -> None:
    assert list(wrong_words(File("src/streamd/raft/core.py", text), not_used()))


@pytest.mark.parametrize(
    "text",
    [
        "it is no longer there; there is no store, and there\n    is none",
        "streamd_peer_behind_entries and behind_bytes",
        '"""Have no mercy."""',
        "an operator who asks who leads",
        "forewish, or renew",
        "it is no more than that",
        "def test_an_outage_is_reported_once(told: str): ...",
    ],
)
def test_the_right_words_are_not_found(text: str) -> None:
    assert not list(wrong_words(File("src/streamd/raft/core.py", text), not_used()))


def test_a_function_that_fills_more_than_a_screen_is_found() -> None:
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert list(too_long(File("a.py", f"class A:\n  def f():\n{body}")))
    assert not list(too_long(File("a.py", f"def f():\n{body[:-9]}")))


def test_a_file_that_is_too_long_is_found() -> None:
    assert list(too_long(File("a.py", "pass\n" * (MAX_FILE_LINES + 1))))
    assert not list(too_long(File("a.py", "pass\n" * MAX_FILE_LINES)))


def test_a_public_name_without_a_docstring_is_found() -> None:
    assert [what for _, _, what in untold(File("a.py", "def f(): ...\ndef _g(): ..."))] == [
        "the module has no docstring",
        "`f` has no docstring",
    ]


def test_a_name_that_nothing_uses_is_found() -> None:
    source = File(
        "a.py",
        "__all__ = ['f', 'g', 'C']\n"
        "def f(): g()\n"
        "def g(): print(C().read)\n"
        "class C:\n    read: int\n    unread: int\n    def call(self): ...\n"
        "@app.command()\ndef command(): ...\n",
    )
    found = dead_names(source, used_names(iter([source])))
    assert [what.split("`")[1] for _, _, what in found] == ["f", "unread", "call"]
