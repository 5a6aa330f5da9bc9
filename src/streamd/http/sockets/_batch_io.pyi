import select
from typing import TypeVar

T = TypeVar("T")

INTERFACE: int

def receive_ready(
    epoll: select.epoll, watched: dict[int, T], paused: set[T], most: int
) -> list[tuple[T, int, bytes | None]]: ...
def send_each(descriptors: list[int], pieces: list[bytes]) -> list[tuple[int, int]]: ...
