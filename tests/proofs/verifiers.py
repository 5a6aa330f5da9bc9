"""Both verifiers, that in Python and that in JavaScript, asked the same."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamd_audit.proof import Head, NotProved, verify_heads, verify_record
from tests.official_clients.test_npm_client import Script
from tests.support import tether
from tests.support.tools import node_or_skip

HERE = Path(__file__).parent
_AT_ONCE = 40

Answer = dict[str, Any]
Question = tuple[str, str, bytes] | tuple[str, str, bytes, bytes]


class Verifiers:
    """Ask both; what they answer must be the same, except for the words of a refusal."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def record(self, content: bytes, trusted: str) -> Answer | None:
        """What a proof shows; None if nothing."""
        return self.all([("record", trusted, content)])[0]

    def heads(self, old: bytes, new: bytes, trusted: str) -> Answer | None:
        """The two heads of a log that has only grown; None if that is not proved."""
        return self.all([("heads", trusted, old, new)])[0]

    def all(self, questions: list[Question]) -> list[Answer | None]:
        """The answers to many questions. JavaScript gets some at once, which is faster, but not so
        many that it waits to be read while we wait to write."""
        answers: list[Answer | None] = []
        for begin in range(0, len(questions), _AT_ONCE):
            some = questions[begin : begin + _AT_ONCE]
            for what, trusted, *files in some:
                self._script.tell(json.dumps([what, trusted, *(_base64(file) for file in files)]))
            for question in some:
                answer = python(*question)
                other: Answer | None = json.loads(self._script.says())
                assert other is not None
                if "refused" in other:
                    other = None
                assert answer == other, question
                answers.append(answer)
        return answers


def python(what: str, trusted: str, content: bytes, later: bytes = b"") -> Answer | None:
    """What the verifier in Python answers, in the form of JavaScript's answer."""
    try:
        if what == "heads":
            return {"heads": [_shown(head) for head in verify_heads(content, later, trusted)]}
        proved = verify_record(content, trusted)
    except NotProved:
        return None
    return {
        "stream": proved.stream,
        "record": _base64(proved.record),
        "contentType": proved.content_type,
        "entry": proved.entry,
        "head": _shown(proved.head),
        "claimedOffset": proved.claimed_offset,
    }


def _shown(head: Head) -> Answer:
    cluster, group, first_index, size, root, time_ms = head
    return {
        "cluster": cluster,
        "group": group,
        "firstIndex": first_index,
        "size": size,
        "root": _base64(root),
        "timeMs": time_ms,
    }


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


@contextmanager
def both() -> Iterator[Verifiers]:
    """The verifiers. Skips the test where there is no Node."""
    node_or_skip()
    process: subprocess.Popen[bytes] = tether.start(
        ["node", "--disable-warning=ExperimentalWarning", "verify.mjs"],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    with process:
        try:
            script = Script(process)
            yield Verifiers(script)
            script.end_input()
            assert script.status() == 0
        finally:
            process.kill()
