"""The `[storage]` section of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec


class StorageConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[storage]` section. While the file system of the data directory has less than
    `min_free_bytes` free, the node takes no more bytes into its log; 0 lets it fill the disk. None
    is 256 MiB, or a sixteenth of a file system smaller than 4 GiB.
    """

    min_free_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
