"""A checkpointer for LangGraph that keeps each thread in a stream of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from threading import Lock
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from examples.langgraph.history import History, Record, decoded, encoded
from streamd.client import Client, Producer, Stream, StreamNotFound


class StreamSaver(BaseCheckpointSaver[int]):
    """Saves checkpoints for one run, or for runs that follow each other in one process.

    Its first write to a thread takes the thread over: a saver that wrote to it before, and may
    still live, gets `ProducerFenced`. So make one for each run, and close it (`with`). Reading
    takes nothing over. What it raises is the client's `StreamdError`.
    """

    def __init__(self, client: Client, bucket: str = "threads") -> None:
        super().__init__()
        self._client = client
        self._bucket = bucket
        self._lock = Lock()
        self._open = ExitStack()
        self._producers: dict[str, Producer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._open.__exit__(kind, error, traceback)

    def take_over(self, thread_id: str) -> None:
        """Fence other savers now. What is read from then on is all that they will have written."""
        self._append(thread_id, {"taken": "over"})

    # -- what LangGraph calls --

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that is asked for, or the last one; None if there is none."""
        thread_id, namespace = _place(config)
        history = self._history(thread_id)
        checkpoint = get_checkpoint_id(config) or history.latest(namespace)
        if checkpoint is None or (namespace, checkpoint) not in history.checkpoints:
            return None
        return self._tuple(thread_id, history, history.checkpoints[namespace, checkpoint])

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads, the latest of each first."""
        wanted = config["configurable"] if config else {}
        earlier_than = get_checkpoint_id(before) if before else None
        for thread_id in [wanted["thread_id"]] if config else self._threads():
            history = self._history(thread_id)
            for namespace, checkpoint in sorted(
                history.checkpoints, key=lambda key: key[1], reverse=True
            ):
                if wanted.get("checkpoint_ns", namespace) != namespace:
                    continue
                if wanted.get("checkpoint_id", checkpoint) != checkpoint:
                    continue
                if earlier_than is not None and checkpoint >= earlier_than:
                    continue
                found = self._tuple(thread_id, history, history.checkpoints[namespace, checkpoint])
                if any(found.metadata.get(key) != value for key, value in (filter or {}).items()):
                    continue
                if limit is not None and limit <= 0:
                    return
                limit = None if limit is None else limit - 1
                yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, with the values that are new with it."""
        thread_id, namespace = _place(config)
        state = dict(checkpoint)
        values = state.pop("channel_values")
        dumps = self.serde.dumps_typed
        record = {
            "ns": namespace,
            "checkpoint": checkpoint["id"],
            "parent": get_checkpoint_id(config),
            "state": encoded(dumps(state)),
            "metadata": encoded(dumps(get_checkpoint_metadata(config, metadata))),
            "values": [
                [channel, version, encoded(dumps(values[channel]))]
                for channel, version in new_versions.items()
                if channel in values
            ],
        }
        self._append(thread_id, record)
        return _config(thread_id, namespace, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written, so that it is not repeated when another task fails."""
        thread_id, namespace = _place(config)
        dumps = self.serde.dumps_typed
        record = {
            "ns": namespace,
            "checkpoint": get_checkpoint_id(config),
            "task": task_id,
            "path": task_path,
            "writes": [
                [WRITES_IDX_MAP.get(channel, number), channel, encoded(dumps(value))]
                for number, (channel, value) in enumerate(writes)
            ],
        }
        self._append(thread_id, record)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread; harmless if there is none."""
        with self._lock:
            self._producers.pop(thread_id, None)
        try:
            self._stream(thread_id).delete()
        except StreamNotFound:
            return

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Give a thread's history to another thread: a fork, which copies no bytes."""
        self._stream(source_thread_id).fork(self._stream(target_thread_id).name)

    # In threads: a producer for asyncio belongs to one task, and LangGraph saves from several.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    # -- streams --

    def _append(self, thread_id: str, record: Record) -> None:
        """Append a record, and return when it is stored."""
        with self._lock:
            producer = self._producers.get(thread_id)
            if producer is None:
                stream = self._stream(thread_id)
                stream.create("application/json")
                producer = self._open.enter_context(stream.producer("saver", max_in_flight=1))
                self._producers[thread_id] = producer
        producer.append_json(record)
        producer.flush()

    def _history(self, thread_id: str) -> History:
        try:
            return History(self._stream(thread_id).read_json())
        except StreamNotFound:
            return History([])

    def _threads(self) -> Iterator[str]:
        for listed in self._client.bucket(self._bucket).streams():
            yield listed.stream_id

    def _stream(self, thread_id: str) -> Stream:
        return self._client.stream(f"{self._bucket}/{thread_id}")

    def _tuple(self, thread_id: str, history: History, record: Record) -> CheckpointTuple:
        namespace, checkpoint, parent = record["ns"], record["checkpoint"], record["parent"]
        loads = self.serde.loads_typed
        state = loads(decoded(record["state"]))
        values = history.values(namespace, state["channel_versions"])
        state["channel_values"] = {channel: loads(value) for channel, value in values.items()}
        return CheckpointTuple(
            config=_config(thread_id, namespace, checkpoint),
            checkpoint=state,
            metadata=loads(decoded(record["metadata"])),
            parent_config=_config(thread_id, namespace, parent) if parent else None,
            pending_writes=[
                (write.task, write.channel, loads(write.value))
                for write in history.writes(namespace, checkpoint)
            ],
        )


def _place(config: RunnableConfig) -> tuple[str, str]:
    return config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")


def _config(thread_id: str, namespace: str, checkpoint: str) -> RunnableConfig:
    place = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}
    return {"configurable": place}
