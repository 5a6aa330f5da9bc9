"""Signed heads of the log's tree, and the keys that sign them.

A head is a checkpoint of a transparency log (C2SP tlog-checkpoint) and a signed note (C2SP
signed-note), so witnesses of such logs can sign it, too:

    streamd/CLUSTER/GROUP/FIRST INDEX
    SIZE
    ROOT, in base64
    time MILLISECONDS

    — streamd/CLUSTER KEY ID AND SIGNATURE, in base64

The tree's leaf 0 is the entry FIRST INDEX of the log, and the last one that of index
FIRST INDEX + SIZE - 1, whose log time MILLISECONDS is.

Each node signs with a key of its own (Ed25519), which never leaves it. The first key of a cluster
is the one that others trust. A key that is known vouches for each further one: a signed note,
too, whose text is the line `streamd/CLUSTER/key` and the new key.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from hashlib import sha256

import msgspec

from streamd.proofs.tree import HASH_BYTES

KEY_BYTES = 32
SIGNATURE_BYTES = 64
# The type of a key, and of its signature, in a signed note.
_ED25519 = b"\x01"
_DASH = "\N{EM DASH} "


class Unsigned(ValueError):
    """A note that does not have the form of one, or not a valid signature by the key asked for."""


def from_base64(text: str) -> bytes:
    """The bytes that a text in base64 stands for. Raises `Unsigned`.

    They have one text only: `b64decode` ignores bits of the last character, so that a signature
    would stay valid with one of them changed.
    """
    try:
        found = b64decode(text, validate=True)
    except (ValueError, NotBase64):
        found = b""
    if b64encode(found).decode() != text:
        raise Unsigned("a signature, key or hash is not in base64")
    return found


class Head(msgspec.Struct, frozen=True):
    """A state of the tree over one group's log: its root when it had `size` leaves, the first of
    which is entry `first_index`. `time_ms` is the log time of its last entry."""

    cluster_id: str
    group_id: int
    first_index: int
    size: int
    root: bytes
    time_ms: int

    @property
    def index(self) -> int:
        """The last entry in the tree."""
        return self.first_index + self.size - 1

    @property
    def text(self) -> str:
        """What is signed."""
        origin = f"streamd/{self.cluster_id}/{self.group_id}/{self.first_index}"
        root = b64encode(self.root).decode()
        return f"{origin}\n{self.size}\n{root}\ntime {self.time_ms}\n"


class VerifierKey(msgspec.Struct, frozen=True):
    """The public half of a key with which a cluster's nodes sign: 32 bytes, and its name."""

    name: str
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes that say which of several keys has signed."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.public_key).digest()[:4]

    def __str__(self) -> str:
        told = b64encode(_ED25519 + self.public_key).decode()
        return f"{self.name}+{self.key_id.hex()}+{told}"


def key_of(cluster_id: str, public_key: bytes) -> VerifierKey:
    """A key of a cluster's node."""
    return VerifierKey(f"streamd/{cluster_id}", public_key)


def parse_key(told: str) -> VerifierKey:
    """The key that `str` of one gives. Raises `Unsigned`."""
    try:
        name, key_id, encoded = told.strip().split("+", 2)
        decoded = from_base64(encoded)
    except ValueError as error:
        raise Unsigned("a key has the form NAME+ID+KEY") from error
    key = VerifierKey(name, decoded[1:])
    if decoded[:1] != _ED25519 or len(key.public_key) != KEY_BYTES or key_id != key.key_id.hex():
        raise Unsigned("the key does not have the id that it names")
    return key


def public_key_of(private_key: bytes) -> bytes:
    """The public half of a private key of 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def signed(text: str, private_key: bytes, key: VerifierKey) -> str:
    """The note with that text and the signature of `key`, whose other half is `private_key`: an
    empty line, and the line with the signature."""
    signature = b64encode(key.key_id + sign(text, private_key)).decode()
    return f"{text}\n{_DASH}{key.name} {signature}\n"


def sign(text: str, private_key: bytes) -> bytes:
    """The signature of a text: 64 bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private_key).sign(text.encode())


def is_signed_by(text: str, signature: bytes, public_key: bytes) -> bool:
    """Whether the key has signed the text."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(public_key) != KEY_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def text_of(note: str, key: VerifierKey) -> str:
    """The text of a note that `key`, perhaps among others, has signed. Raises `Unsigned`."""
    text, separator, signatures = note.rpartition("\n\n")
    text += "\n"
    if not separator:
        raise Unsigned("a signed note has an empty line before its signatures")
    for line in signatures.splitlines():
        name, _, encoded = line.removeprefix(_DASH).rpartition(" ")
        try:
            decoded = from_base64(encoded)
        except Unsigned:
            continue
        if line.startswith(_DASH) and name == key.name and decoded[:4] == key.key_id:
            if is_signed_by(text, decoded[4:], key.public_key):
                return text
            raise Unsigned(f"the signature by key {key.key_id.hex()} is not valid")
    raise Unsigned(f"key {key.key_id.hex()} has not signed this")


def parse_head(text: str) -> Head:
    """The head that a note's text tells. Raises `Unsigned` if it is not exactly one."""
    try:
        origin, size, root, time, end = text.split("\n")
        product, cluster_id, group_id, first_index = origin.split("/")
        head = Head(
            cluster_id,
            int(group_id),
            int(first_index),
            int(size),
            from_base64(root),
            int(time.removeprefix("time ")),
        )
    except ValueError as error:
        raise Unsigned("this is not the head of a log of streamd") from error
    if head.text != text or product != "streamd" or end or len(head.root) != HASH_BYTES:
        raise Unsigned("this is not the head of a log of streamd")
    return head


def key_text(cluster_id: str, public_key: bytes) -> str:
    """What a key signs to vouch for another."""
    return f"streamd/{cluster_id}/key\n{key_of(cluster_id, public_key)}\n"
