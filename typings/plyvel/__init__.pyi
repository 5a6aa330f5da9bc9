from types import TracebackType
from typing import Literal, overload

class Error(Exception): ...
class IOError(Error, OSError): ...
class CorruptionError(Error): ...

class WriteBatch:
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def write(self) -> None: ...

class _Iterator[Row]:
    def __enter__(self) -> _Iterator[Row]: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __iter__(self) -> _Iterator[Row]: ...
    def __next__(self) -> Row: ...

class DB:
    def __init__(
        self,
        name: str,
        *,
        create_if_missing: bool = ...,
        error_if_exists: bool = ...,
        paranoid_checks: bool | None = ...,
        write_buffer_size: int | None = ...,
        max_open_files: int | None = ...,
        lru_cache_size: int | None = ...,
        block_size: int | None = ...,
        compression: str | None = ...,
        bloom_filter_bits: int = ...,
    ) -> None: ...
    def get(self, key: bytes, *, verify_checksums: bool = ...) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, sync: bool = ...) -> None: ...
    def write_batch(self, *, transaction: bool = ..., sync: bool = ...) -> WriteBatch: ...
    @overload
    def iterator(
        self,
        *,
        start: bytes = ...,
        stop: bytes = ...,
        include_value: Literal[False],
        verify_checksums: bool = ...,
        fill_cache: bool = ...,
    ) -> _Iterator[bytes]: ...
    @overload
    def iterator(
        self,
        *,
        start: bytes = ...,
        stop: bytes = ...,
        verify_checksums: bool = ...,
        fill_cache: bool = ...,
    ) -> _Iterator[tuple[bytes, bytes]]: ...
    def close(self) -> None: ...
