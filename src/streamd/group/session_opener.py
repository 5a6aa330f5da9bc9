"""Opens this node's session with the log, once every member is known to understand sessions."""

from __future__ import annotations

import msgspec
import trio

from streamd.group.log_formats import SESSIONS_FORMAT, LogFormats
from streamd.group.peers import Peers
from streamd.group.proposals import OutcomeUnknown, Proposal, Unavailable
from streamd.raft.core import Core, Role
from streamd.streams import keys
from streamd.streams.bounds import Number
from streamd.streams.commands import OpenSession
from streamd.streams.content import UNDECODABLE
from streamd.streams.state import State

# When to ask again a leader that does not open sessions yet, or that could not be asked; and how
# long opening a session may take.
ASK_AGAIN_S = 1.0
_RETRY_S = 0.1
_OPEN_TIMEOUT_S = 10.0
# How many requests to open a session may wait, of all nodes together.
_MAX_WAITING = 64


class SessionRequest(msgspec.Struct, frozen=True, array_like=True):
    """A node asks the leader for a session; see `OpenSession`."""

    nonce: Number
    replaces: Number


class SessionAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The node's present session, and the nonce of the process that opened it. With `is_refused`
    sessions are not used, because some member is not known to understand them."""

    is_refused: bool
    session_id: int = 0
    nonce: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_REQUEST = msgspec.msgpack.Decoder(SessionRequest)
_ANSWER = msgspec.msgpack.Decoder(SessionAnswer)


class SessionOpener:
    """Asks for a session, here or at the leader, until this node has one.

    `formats` says what the members understand. `waiting` holds the commands to open sessions that
    this leader will propose. `nonce` tells this process from every other process of this node.
    """

    def __init__(self, core: Core, state: State, peers: Peers, nonce: int) -> None:
        self._core = core
        self._state = state
        self._peers = peers
        self.formats = LogFormats(core, state, peers)
        self._nonce = nonce
        self._is_refused = False
        self._ask_at = 0.0
        self._replaces = self._known_session().session_id
        self._call: trio.CancelScope | None = None
        self.waiting: list[Proposal] = []

    def _known_session(self) -> SessionAnswer:
        return self._session_of(self._core.node_id)

    def _session_of(self, node_id: int) -> SessionAnswer:
        session = self._state.sessions.get(keys.number(node_id))
        if session is None:
            return SessionAnswer(False)
        return SessionAnswer(False, session.session_id, session.nonce)

    @property
    def is_needed(self) -> bool:
        """Whether writes of this node need a session. A leader that is the only voter cannot lose
        leadership to another node."""
        configuration = self._core.configuration
        alone = len(configuration.voters) == 1 and not configuration.voters_outgoing
        return not (alone and self._core.role == Role.LEADER)

    @property
    def is_refused(self) -> bool:
        """Whether there are no sessions yet, so that writes have to do without."""
        if self._core.role == Role.LEADER:
            return self._refuses()
        return self._is_refused or self._peers.log_format_of(self._core.leader_id) == 0

    def _may_open(self) -> bool:
        return self.formats.may_use(SESSIONS_FORMAT)

    def _refuses(self) -> bool:
        """Whether this leader opens no sessions. Until it has applied an entry of its own term, its
        state may lack sessions that are open, which say that every member understands them."""
        knows = self._state.header.applied_term == self._core.term
        return knows and not self._may_open()

    def leader_changed(self) -> None:
        """Ask the next leader, which may decide otherwise."""
        self._is_refused = False
        self._ask_at = 0.0
        if self._call is not None:
            self._call.cancel()
            self._call = None

    @property
    def is_due(self) -> bool:
        """Whether to ask now. A leader of a build before 0.1.0 cannot open sessions."""
        if self._call is not None or not self.is_needed or not self._core.leader_id:
            return False
        if self._core.role == Role.LEADER:
            return self._may_open()
        asks = trio.current_time() >= self._ask_at
        return asks and (self._peers.log_format_of(self._core.leader_id) or 0) >= SESSIONS_FORMAT

    def begin(self) -> trio.CancelScope:
        """Note that `ask` is about to run, within the scope returned."""
        self._call = trio.CancelScope()
        return self._call

    async def ask(self, call: trio.CancelScope) -> int:
        """Ask once; returns the id of the opened session, 0 if none was."""
        try:
            with call:
                return self._taken(await self._answer())
        except (Unavailable, OutcomeUnknown):
            self._ask_at = trio.current_time() + _RETRY_S
        finally:
            if self._call is call:
                self._call = None
        return 0

    async def _answer(self) -> SessionAnswer:
        request = SessionRequest(self._nonce, self._replaces)
        if self._core.role == Role.LEADER:
            return await self.open(self._core.node_id, request)
        payload = await self._peers.open_session(self._core.leader_id, _ENCODER.encode(request))
        try:
            return _ANSWER.decode(payload)
        except UNDECODABLE as error:
            raise OutcomeUnknown(f"cannot decode the leader's answer: {error}") from error

    def _taken(self, answer: SessionAnswer) -> int:
        self._is_refused = answer.is_refused
        if answer.is_refused:
            self._ask_at = trio.current_time() + ASK_AGAIN_S
            return 0
        if answer.nonce == self._nonce:
            return answer.session_id
        self._replaces = answer.session_id
        return 0

    # -- at the leader ------------------------------------------------------------------------

    async def open_for(self, node_id: int, payload: bytes) -> bytes:
        """Open a session for a node that asks. Raises `Unavailable`, `OutcomeUnknown`."""
        try:
            request = _REQUEST.decode(payload)
        except UNDECODABLE as error:
            raise Unavailable(f"cannot decode the request for a session: {error}") from error
        if node_id not in self._core.configuration.members():
            raise Unavailable(f"node {node_id} is not a member of the cluster")
        return _ENCODER.encode(await self.open(node_id, request))

    async def open(self, node_id: int, request: SessionRequest) -> SessionAnswer:
        """The node's session after its request."""
        if self._core.role != Role.LEADER:
            raise Unavailable("this node is not the leader")
        if self._refuses():
            return SessionAnswer(True)
        if not self._may_open():
            raise Unavailable("this leader has not applied all entries of earlier terms")
        if len(self.waiting) >= _MAX_WAITING:
            raise Unavailable("too many nodes are requesting sessions")
        command = OpenSession(node_id, request.nonce, request.replaces)
        proposal = Proposal([command], 0, trio.current_time() + _OPEN_TIMEOUT_S)
        self.waiting.append(proposal)
        await proposal.outcome()
        return self._session_of(node_id)

    def take(self) -> list[Proposal]:
        """Take the commands that begin the next entry."""
        taken, self.waiting = self.waiting, []
        return taken
