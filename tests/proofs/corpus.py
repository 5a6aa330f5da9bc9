"""Proofs of a log that this module makes up.

Made from a seed, by the server's own code for trees, leaves, heads and proofs.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from copy import copy
from random import Random
from typing import Any, NamedTuple

import msgspec

from streamd.proofs import heads, leaves
from streamd.proofs.heads import Head
from streamd.proofs.record_proofs import (
    Claim,
    FoundEntry,
    RecordProof,
    ShownCommand,
    ShownEntry,
    prove,
)
from streamd.proofs.tree import Place, consistency, inclusion, leaf_hash, path_of, root_of
from streamd.raft.messages import EntryKind
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Append, Command, Create, Delete, Sweep
from streamd.streams.content import split_body
from streamd.streams.model import ProducerStamp, Settings

CLUSTER = "7d0c3a52-0000-4000-8000-000000000001"
OFFSET = "0000000000000000_0000000000000000"
TYPES = ("text/plain", "application/json", "application/json; charset=utf-8", "image/png")


class Made(NamedTuple):
    """A proof, the key to trust, and what a verifier has to say of it."""

    content: bytes
    trusted: str
    stream: str
    record: bytes
    content_type: str | None
    entry: int


class MadeLog:
    """A log of random commands, and a cluster whose nodes have signed its heads."""

    def __init__(self, seed: int, entries: int = 40, keys: int = 3) -> None:
        self.random = random = Random(seed)
        self.first_index = random.choice((1, 1, 1000))
        self.batches = [self._batch() for _ in range(entries)]
        self.payloads = [encode_batch(batch) for batch in self.batches]
        self.hashes = [
            leaves.entry_hash(
                self.first_index + at, 3, EntryKind.COMMANDS, payload, has_commands=True
            )
            for at, payload in enumerate(self.payloads)
        ]
        self.privates = [random.randbytes(32) for _ in range(keys)]

    def _batch(self) -> Batch:
        now_ms = 1_764_000_000_000 + self.random.randrange(10**9)
        return Batch(now_ms, [self._command() for _ in range(self.random.randint(1, 6))])

    def _command(self) -> Command:
        random = self.random
        key = b"agents\0run/%d" % random.randrange(5)
        kind = random.choice(TYPES)
        messages = [{"step": random.randrange(1000)} for _ in range(random.randint(1, 4))]
        body = json.dumps(messages).encode() if "json" in kind else random.randbytes(20)
        data, lengths = split_body(kind, body)
        commands: list[Command] = [
            Append(key, kind, data, lengths),
            Append(key, kind, data, lengths, producer=ProducerStamp("p", 0, 7)),
            Create(key, Settings(kind), False, data, lengths),
            Create(key, Settings(), False, data, lengths, cut_as=kind),
            Delete(key),
            Sweep([key]),
        ]
        return random.choices(commands, [6, 4, 2, 2, 1, 1])[0]

    def public(self, number: int) -> str:
        """The key of a node, as it is told."""
        return str(heads.key_of(CLUSTER, heads.public_key_of(self.privates[number])))

    def head(self, size: int | None = None, signer: int = -1) -> dict[str, Any]:
        """A head, as it is published, over the first `size` entries."""
        size = len(self.hashes) if size is None else size
        root = root_of(self.hashes[:size])
        head = Head(CLUSTER, 0, self.first_index, size, root, 1_764_000_000_000 + size)
        signer %= len(self.privates)
        key = heads.key_of(CLUSTER, heads.public_key_of(self.privates[signer]))
        note = heads.signed(head.text, self.privates[signer], key)
        return {"note": note, "keys": [self._signed_key(at) for at in range(signer + 1)]}

    def _signed_key(self, number: int) -> dict[str, Any]:
        by = max(0, number - 1)
        text = heads.key_text(CLUSTER, heads.public_key_of(self.privates[number]))
        return {
            "key": self.public(number),
            "node": number + 1,
            "signed_by": self.public(by) if number else None,
            "signature": b64encode(heads.sign(text, self.privates[by])).decode(),
        }

    def grown(self, old: int, size: int, signer: int = -1) -> tuple[bytes, bytes]:
        """Two heads, the second with the proof that it extends the first."""
        path = path_of(consistency(old, size), self._node)
        later = self.head(size, signer)
        later["consistency"] = [b64encode(one).decode() for one in path]
        return encoded(self.head(old, 0)), encoded(later)

    def proofs(self, size: int | None = None) -> Iterator[Made]:
        """A proof of each record in the first `size` entries."""
        size = len(self.hashes) if size is None else size
        for at, batch in enumerate(self.batches[:size]):
            for number, command in enumerate(batch.commands):
                if isinstance(command, Append | Create):
                    for record in range(len(command.lengths)):
                        yield self.proof(at, number, record, size)

    def proof(self, at: int, number: int, record: int, size: int | None = None) -> Made:
        """That of one record of an append or create."""
        size = len(self.hashes) if size is None else size
        command = self.batches[at].commands[number]
        assert isinstance(command, Append | Create)
        begin = sum(command.lengths[:record])
        data = command.data[begin : begin + command.lengths[record]]
        kind = _type_of(command)
        stream = command.key.replace(b"\0", b"/", 1).decode()
        content = self.proof_of(
            Claim(stream, "0000000000000000_0000000000000000", record), at, number, size
        )
        if "json" in kind:
            data = data.removesuffix(b",")
        return Made(content, self.public(0), stream, data, kind, self.first_index + at)

    def proof_of(self, claim: Claim, at: int, number: int, size: int) -> bytes:
        """The file that proves a command."""
        entry = FoundEntry(self.first_index + at, 3, self.payloads[at])
        path = path_of(inclusion(at, size), self._node)
        return prove(claim, entry, number, path, self.head(size))

    def proof_of_bytes(self, command: bytes, claim: Claim) -> bytes:
        """The proof of a further entry, whose only command is these bytes, whatever they are."""
        prefix, suffix = b"\x93\xcf" + bytes(8) + b"\x91", b"\x90"
        index, root = self.first_index + len(self.hashes), root_of([leaf_hash(command)])
        hashed = leaves.hash_of(index, 3, EntryKind.COMMANDS, prefix, 1, root, suffix)
        log = copy(self)
        log.hashes = [*self.hashes, hashed]
        path = path_of(inclusion(len(self.hashes), len(log.hashes)), log._node)
        return msgspec.json.encode(
            RecordProof(
                claim,
                ShownEntry(index, 3, prefix, 1, suffix),
                ShownCommand(0, command, []),
                path,
                log.head(),
            )
        )

    def _node(self, place: Place) -> bytes:
        return root_of(self.hashes[place.number << place.level : (place.number + 1) << place.level])


def _type_of(command: Append | Create) -> str:
    if isinstance(command, Append):
        return command.content_type
    kind = command.settings.content_type or command.cut_as
    assert kind is not None
    return kind


def encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
