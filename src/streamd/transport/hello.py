"""The contents of the handshake: who is there, and why a peer is turned away."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamd.streams.content import UNDECODABLE
from streamd.transport.errors import ProtocolError, Refusal, RefusalCode, RefusalMessage

PROTOCOL_VERSION = 1
MAX_HELLO_BYTES = 4096

_MAX_MESSAGE_LENGTH = 500


class Hello(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A node's introduction. Fields are only ever added at the end, with a default.

    `cluster_id` is empty until the node is a member of a cluster. `instance` is the transport's
    own: a number that each process draws, by which a node notices that it has dialled itself, and
    that another one was restarted. `log_format` is the log format that it understands
    (`group.log_formats`). `nonce` offers a proof of knowing the cluster's secret, and asks for one
    (`credentials`); with `proves_first` the node understands a `CHALLENGE` in answer.
    """

    protocol_version: int = PROTOCOL_VERSION
    cluster_name: str
    cluster_id: str
    node_id: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    peer_address: str
    client_address: str
    log_is_empty: bool
    instance: int = 0
    log_format: int = 0
    nonce: bytes = b""
    proves_first: bool = False


_HELLO = msgspec.msgpack.Decoder(Hello)
_REFUSED = msgspec.msgpack.Decoder(RefusalMessage)


def check(own: Hello, peer: Hello) -> None:
    """What every node checks about every peer, whichever side dialled. Raises `Refusal`."""
    if peer.protocol_version != own.protocol_version:
        raise Refusal(
            RefusalCode.PROTOCOL_VERSION,
            f"node {own.node_id} speaks version {own.protocol_version} of the peer protocol, not "
            f"{peer.protocol_version}; run the same release of streamd on both",
        )
    if (peer.instance, peer.node_id) == (own.instance, own.node_id):
        raise Refusal(RefusalCode.SELF, "the address is this node's own")
    if peer.cluster_name != own.cluster_name:
        raise Refusal(
            RefusalCode.CLUSTER_NAME,
            f"node {own.node_id} belongs to the cluster named {own.cluster_name!r}, not "
            f"{peer.cluster_name!r}; correct cluster.name or cluster.routes",
        )
    if peer.cluster_id and own.cluster_id and peer.cluster_id != own.cluster_id:
        raise Refusal(
            RefusalCode.CLUSTER_ID,
            f"node {own.node_id} holds data of cluster {own.cluster_id}, not {peer.cluster_id}; "
            "one of the two was given the other cluster's routes or data directory",
        )
    if peer.node_id == own.node_id:
        raise Refusal(
            RefusalCode.NODE_ID_IN_USE,
            f"node id {own.node_id} is taken by the node at {own.peer_address}; "
            "give this one an id that no node has had",
        )


def check_successor(current: Hello, newcomer: Hello) -> None:
    """A second live connection with one node id must be from the same node. Raises `Refusal`.

    The same address means a restart whose old connection has not ended yet. A cluster id learnt
    in between does not matter.
    """
    same_cluster = newcomer.cluster_id == current.cluster_id or not current.cluster_id
    if newcomer.peer_address != current.peer_address or not same_cluster:
        raise Refusal(
            RefusalCode.NODE_ID_IN_USE,
            f"node id {newcomer.node_id} is connected from {current.peer_address}; if that node "
            f"has moved to {newcomer.peer_address}, try again when it is gone, otherwise give "
            "this one an id that no node has had",
        )


def encode_hello(hello: Hello) -> bytes:
    """The payload of a `HELLO` or `WELCOME` frame."""
    return msgspec.msgpack.encode(hello)


def parse_hello(payload: bytes) -> Hello:
    """Raises `ProtocolError`."""
    try:
        return _HELLO.decode(payload)
    except UNDECODABLE as error:
        raise ProtocolError(f"cannot decode its introduction: {error}") from error


def encode_refusal(refusal: Refusal) -> bytes:
    """The payload of a `REFUSED` frame."""
    # A message may quote what the peer sent; the frame must fit all the same.
    return msgspec.msgpack.encode(
        RefusalMessage(refusal.code, refusal.message[:_MAX_MESSAGE_LENGTH])
    )


def parse_refusal(payload: bytes) -> Refusal:
    """Raises `ProtocolError`."""
    try:
        refused = _REFUSED.decode(payload)
    except UNDECODABLE as error:
        raise ProtocolError(f"cannot decode its refusal: {error}") from error
    return Refusal(refused.code, refused.message)
