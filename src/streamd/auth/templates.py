"""Templates of scopes, such as ``read:users/{sub}/*``: a credential's claims fill the braces.

A value ends its segment and has no slash, so it cannot name a shorter path than the template does,
and two users' values never make the same scope unless they are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamd.auth.scopes import Scope, ScopeError, parse_scope

_PLACE = re.compile(r"\{([A-Za-z0-9_]+)\}")
# One place in a segment, at its end: with `{a}-{b}` the values x-y, z and x, y-z would be the same.
_SEGMENT = re.compile(r"[^{}]*(\{[A-Za-z0-9_]+\})?")
# With a star a value would be a pattern, with a slash or dots another place.
_VALUE = re.compile(r"(?!\.{1,2}\Z)[^*/\\\x00-\x1f\x7f]+")


class Template(NamedTuple):
    """The text of a scope, and the claims that it names in braces."""

    text: str
    claims: tuple[str, ...]

    def fill(self, claims: Mapping[str, object]) -> str | None:
        """The scope's text with these claims; None if it lacks one.

        Raises `ScopeError` for a value that could be more than one name.
        """
        for name in self.claims:
            value = claims.get(name)
            if value is None:
                return None
            if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
                raise ScopeError(f"the claim {name} cannot be a part of a scope")
        return _PLACE.sub(lambda place: str(claims[place[1]]), self.text)


def parse_template(text: str) -> Template:
    """The template that a text states, which may be an ordinary scope. Raises `ScopeError`."""
    _, _, pattern = text.partition(":")
    if any(_SEGMENT.fullmatch(segment) is None for segment in pattern.split("/")):
        raise ScopeError(f"{text!r} must have a claim such as {{sub}} at the end of a segment only")
    parse_scope(_PLACE.sub("x", text))
    return Template(text, tuple(_PLACE.findall(text)))


def filled(templates: Iterable[Template], claims: Mapping[str, object]) -> list[Scope]:
    """The scopes for which there are claims. Raises `ScopeError`."""
    texts = (template.fill(claims) for template in templates)
    return [parse_scope(text) for text in texts if text is not None]
