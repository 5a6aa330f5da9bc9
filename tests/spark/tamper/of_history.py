"""Changes that are made everywhere at once, so that log, packs and states agree again or nearly."""

from __future__ import annotations

from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.commands import Append
from streamd.streams.token_commands import CreateToken
from streamd.streams.tokens import Token
from tests.spark.forging import Rows, edit_row, flipped, with_bytes
from tests.spark.tamper.changes import Site, Unfit, change

Slices = list[tuple[int, Chunk]]


@change("element")
def pack_everywhere(site: Site) -> str:
    """A record in a pack, and everything that refers to the pack, but not the append."""
    folder, random = site.folder, site.random
    name = random.choice(folder.packs())
    slices = folder.chunks(name)
    number = random.randrange(len(slices))
    stream_id, chunk = slices[number]
    if not chunk.size or not folder.find(lambda one: getattr(one, "name", "") == name):
        raise Unfit  # retention has removed the command that made the pack
    at = random.randrange(chunk.size)
    slices[number] = stream_id, with_bytes(chunk, flipped(chunk.data, at))
    folder.forge_pack(name, slices)
    return f"pack/forged-but-for-the-append: slice {number}, byte {at}"


@change("history")
def append_everywhere(site: Site) -> str:
    """The bytes of an append, in the log, in its pack, and in states from before that."""
    folder = site.folder
    said = site.random.choice(folder.find(lambda one: isinstance(one, Append) and bool(one.data)))
    data = said.command.data
    changed = flipped(data, site.random.randrange(len(data)))

    def edit(rows: Rows) -> None:
        for key in [key for key in rows if key[:1] == keys.CHUNK]:
            rows[key] = rows[key].replace(data, changed, 1)

    for name in folder.packs():
        slices = folder.chunks(name)
        for number, (stream_id, chunk) in enumerate(slices):
            is_made = folder.find(lambda one, name=name: getattr(one, "name", "") == name)
            if data in chunk.data and is_made:
                made = with_bytes(chunk, chunk.data.replace(data, changed, 1))
                slices[number] = stream_id, made
                folder.forge_command(said.index, said.position, replace(said.command, data=changed))
                folder.forge_pack(name, slices)
                folder.forge_states(edit)
                return f"append-and-its-pack: entry {said.index}"
    raise Unfit


@change("history")
def token_everywhere(site: Site) -> str:
    """What a token permits, in the log and in all states."""
    folder = site.folder
    said = site.random.choice(folder.find(lambda one: isinstance(one, CreateToken)))
    key = keys.TOKEN + keys.number(said.command.token_id)

    def edit(rows: Rows) -> None:
        if key in rows:
            edit_row(rows, key, Token, scopes=("admin:*",))

    folder.forge_command(said.index, said.position, replace(said.command, scopes=["admin:*"]))
    folder.forge_states(edit)
    return f"token-and-all-states: {said.command.name}"
