"""What the site adds to the pages of docs/ when MkDocs builds it.

Pages link to files outside of docs/, such as examples and the sample configuration. The site has
these files too, below `repository/`: Markdown as pages, directories as lists, and all else as text.
So each link of a page leads somewhere, whether one reads it in the repository or in the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_BELOW = "repository/"
# Links, and code, where what looks like a link is text.
_LINK_OR_CODE = re.compile(
    r"^```.*?^```|``.+?``|`[^`\n]+`|(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))",
    re.MULTILINE | re.DOTALL,
)
# A second word after a fence tells tests what the block is: the name of a file, or of bytes.
_TITLED = re.compile(r"^```([a-z]+) (\S+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, and those that these link to in turn."""
    texts = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    while texts:
        source, text = texts.pop()
        for path in _targets(source, text):
            uri = _uri(path)
            if files.get_file_from_path(uri) is not None or not (ROOT / path).exists():
                continue
            content = _content(path)
            files.append(File.generated(config, uri, content=content))
            if uri.endswith(".md"):
                texts.append((_source(uri), content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where the site has their files."""
    here = page.file.src_uri
    source = _source(here)

    def replace(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or _is_elsewhere(target):
            return match[0]
        uri = _uri(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        return posixpath.relpath(uri, posixpath.dirname(here) or ".") + (match["anchor"] or "")

    return _TITLED.sub(r'```\1 title="\2"', _LINK_OR_CODE.sub(replace, markdown))


def _targets(source: str, text: str) -> Iterator[str]:
    """The paths from the root to which a page links."""
    for match in _LINK_OR_CODE.finditer(text):
        if match["target"] is not None and not _is_elsewhere(match["target"]):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(source), match["target"]))


def _is_elsewhere(target: str) -> bool:
    return re.match(r"[a-z]+:", target) is not None


def _uri(path: str) -> str:
    """Where the site has a file of the repository, from the site's root."""
    if (ROOT / path).is_dir():
        has_page = (ROOT / path / "README.md").exists()
        return f"{_BELOW}{path}/README.md" if has_page else f"{_BELOW}{path}.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _BELOW + (path if path.endswith(".md") else f"{path}.txt")


def _source(uri: str) -> str:
    """The path from the root of a page of the site."""
    return uri.removeprefix(_BELOW) if uri.startswith(_BELOW) else f"docs/{uri}"


def _content(path: str) -> str:
    if not (ROOT / path).is_dir():
        return (ROOT / path).read_text()
    if (ROOT / path / "README.md").exists():
        return (ROOT / path / "README.md").read_text()
    names = sorted(file.name for file in (ROOT / path).iterdir() if file.is_file())
    base = posixpath.basename(path)
    links = "\n".join(f"- [{_title(ROOT / path / name)}]({base}/{name})" for name in names)
    return f"# {base.capitalize()}\n\n{links}\n"


def _title(file: Path) -> str:
    """The title of a page, or a file's name."""
    if file.suffix == ".md" and (title := re.match(r"# (.+)", file.read_text())):
        return title[1]
    return file.name
