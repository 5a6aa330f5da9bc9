"""Each command against a server process: its output, its effect, its failures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from streamd.protocol.problems import Problem
from tests.client.running import Shell, heard
from tests.support.ports import unused_port

NOT_FOUND = "stream not found (404 STREAM_NOT_FOUND)"


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


# --- create, append, read


def test_the_first_commands_of_a_new_user_work(streamd: Shell) -> None:
    assert streamd("create", "demo/hello") == b"created demo/hello\n"
    assert streamd("append", "demo/hello", given=b"hi\n") == b""
    assert streamd("read", "demo/hello") == b"hi\n"
    assert streamd("tail", "demo/hello") == b"hi\n"


def test_a_creation_may_be_repeated_with_the_same_settings(streamd: Shell) -> None:
    streamd("create", "again", "--ttl", "60")
    assert streamd("create", "again", "--ttl", "60") == b"again exists with these settings\n"
    told = json.loads(streamd("create", "again", "--ttl", "60", "--json"))
    assert (told["name"], told["created"], told["closed"]) == ("again", False, False)
    sentence = streamd.fails(1, "create", "again", "-t", "json")
    assert sentence == (
        "again: the stream exists with another configuration: its Content-Type is text/plain "
        "(409 STREAM_EXISTS)"
    )


def test_a_stream_is_created_with_the_requested_settings(streamd: Shell) -> None:
    streamd("create", "made", "-t", "json", "--expires-at", "2099-01-01T00:00:00Z", "--closed")
    told = json.loads(streamd("head", "made", "--json"))
    del told["etag"]
    assert told == {
        "name": "made",
        "content_type": "application/json",
        "next_offset": "0000000000000000_0000000000000000",
        "expires_at": "2099-01-01T00:00:00Z",
        "closed": True,
    }
    assert streamd("head", "made").splitlines()[0] == b"content type:    application/json"


def test_large_input_is_appended_in_pieces_and_read_back_byte_for_byte(streamd: Shell) -> None:
    content = bytes(range(256)) * 12_345
    streamd("create", "large", "-t", "bytes")
    told = json.loads(streamd("append", "large", "--close", "--json", given=content))
    assert told["next_offset"].startswith("0000000000000004_"), "one record for each MiB begun"
    assert told["closed"]
    for command in (["read"], ["tail", "-f", "--from-start"]):
        assert _hash(streamd(*command, "large")) == _hash(content)


def test_lines_are_messages_of_a_json_stream(streamd: Shell) -> None:
    streamd("create", "events", "-t", "json")
    given = b'{"n": 1.10}\n\n[2]\n"three"'
    told = json.loads(streamd("append", "events", "--lines", "--json", given=given))
    assert told["next_offset"].startswith("0000000000000003_")
    assert streamd("read", "events") == b'{"n": 1.10}\n[2]\n"three"\n'
    assert streamd("tail", "-n", "1", "events") == b'"three"\n'
    [line] = streamd("read", "--json", "events").splitlines()
    assert json.loads(line)["messages"] == [{"n": 1.1}, [2], "three"]
    assert json.loads(line)["next_offset"] == told["next_offset"]


def test_a_hundred_thousand_lines_arrive_in_order(streamd: Shell) -> None:
    given = b"".join(b"%d\n" % number for number in range(100_000))
    streamd("create", "numbers", "-t", "json")
    streamd("append", "numbers", "--lines", given=given)
    assert _hash(streamd("read", "numbers")) == _hash(given)


def test_lines_of_a_pipe_are_appended_as_they_come(streamd: Shell) -> None:
    streamd("create", "log")
    with (
        streamd.started("append", "log", "--lines") as writer,
        streamd.started("tail", "-f", "log") as reader,
    ):
        assert writer.stdin is not None
        for line in (b"one\n", b"two\n"):
            writer.stdin.write(line)
            assert heard(reader, len(line)) == line


def test_a_read_continues_from_an_offset(streamd: Shell) -> None:
    streamd("create", "parts")
    told = json.loads(streamd("append", "parts", "--json", given=b"one"))
    streamd("append", "parts", given=b"two")
    offset = told["next_offset"]
    assert streamd("read", "parts", "--from-offset", offset) == b"two"
    assert streamd("tail", "parts", "--from-offset", offset) == b"two"
    assert streamd("tail", "parts", "--from-now") == b""
    assert streamd("tail", "parts", "--from-start") == b"onetwo"


def test_a_producer_id_continues_from_an_earlier_run(streamd: Shell) -> None:
    streamd("create", "taken")
    for word in (b"one ", b"two ", b"three"):
        streamd("append", "taken", "--producer-id", "nightly", given=word)
    assert streamd("read", "taken") == b"one two three"


# --- close, fork, delete


def test_a_closed_stream_takes_no_more(streamd: Shell) -> None:
    streamd("create", "done")
    assert streamd("close", "done") == b"closed done\n"
    assert json.loads(streamd("close", "done", "--json"))["closed"]
    assert "409 STREAM_CLOSED" in streamd.fails(1, "append", "done", given=b"more")


def test_a_fork_has_the_records_of_its_source(streamd: Shell) -> None:
    streamd("create", "trunk")
    told = json.loads(streamd("append", "trunk", "--json", given=b"one "))
    streamd("append", "trunk", given=b"two")
    assert streamd("fork", "trunk", "demo/whole") == b"created demo/whole\n"
    streamd("fork", "trunk", "early", "--at", told["next_offset"], "--ttl", "60")
    streamd("fork", "trunk", "inner", "--at", told["next_offset"], "--sub-offset", "1")
    assert streamd("read", "demo/whole") == b"one two"
    assert streamd("read", "early") == b"one "
    assert streamd("read", "inner") == b"one t"


def test_a_deleted_stream_cannot_be_read(streamd: Shell) -> None:
    streamd("create", "brief")
    assert streamd("delete", "brief") == b"deleted brief\n"
    for command in ("delete", "read", "head", "tail", "append", "close"):
        sentence = streamd.fails(1, command, "brief", given=b"x")
        assert sentence == f"brief: {NOT_FOUND}; 'streamd create brief' creates it"


def test_a_follower_whose_stream_was_replaced_ends_with_status_1(streamd: Shell) -> None:
    streamd("create", "demo/swapped")
    offset = json.loads(streamd("append", "demo/swapped", "--json", given=b"one"))["next_offset"]
    streamd("delete", "demo/swapped")
    streamd("create", "demo/swapped")
    sentence = streamd.fails(1, "tail", "-f", "--from-offset", offset, "demo/swapped")
    assert sentence.startswith("demo/swapped: another stream has this name now")
    assert "STREAM_REPLACED" in sentence


# --- failures


@pytest.mark.parametrize(
    ("arguments", "given", "sentence"),
    [
        (["read", "a//b"], b"", "'a//b' has an empty part"),
        (["append", "strict", "--lines"], b"{}\nnope", "line 2 is not JSON"),
        (["append", "strict"], b"", "standard input is empty"),
        (["append", "strict"], b"{}\n{}\n", "for one message a line, use --lines"),
        (["append", "strict"], b" " * (17 << 20), "JSON input exceeds 16 MiB"),
        (["snapshot", "read", "strict"], b"", "name it BUCKET/STREAM"),
        (["fork", "strict", "x", "--at", "a\nb"], b"", "cannot be sent in a request"),
        (["fork", "strict", "x", "--at", "ä"], b"", "cannot be sent in a request"),
        (["append", "strict", "--producer-id", "ä"], b"{}", "cannot be sent in a request"),
        (["append", "strict", "-t", "text/ä"], b"x", "cannot be sent in a request"),
        (["append", "strict"], b"[]", "an empty array appends nothing"),
    ],
)
def test_contradictory_arguments_end_with_status_2(
    streamd: Shell, arguments: list[str], given: bytes, sentence: str
) -> None:
    streamd("create", "strict", "-t", "json")
    assert sentence in streamd.fails(2, *arguments, given=given)


def test_a_wrong_option_ends_with_status_2(streamd: Shell) -> None:
    assert streamd.run("tail", "x", "--from-now", "--from-start").returncode == 2
    for url in ("localhost:4437", "http://", "https:///"):
        assert streamd.run("read", "x", "--url", url).returncode == 2


def test_a_missing_server_ends_with_status_3_at_once_and_names_its_address() -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    sentence = Shell(url).fails(3, "read", "anything")
    assert sentence.startswith(f"{url} cannot be reached:")


def test_any_node_that_answers_is_used(streamd: Shell) -> None:
    streamd("create", "found")
    nobody = f"http://127.0.0.1:{unused_port()}"
    url = streamd.environment["STREAMD_URL"]
    assert streamd("head", "found", "--url", f"{nobody},{url}").startswith(b"content type:")


def test_a_file_that_cannot_be_written_ends_with_status_4(streamd: Shell) -> None:
    streamd("create", "wide")
    streamd("append", "wide", given=b"x" * 100_000)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "streamd", "read", "wide"],
            env=streamd.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 4
    assert b"No space left" in done.stderr


def test_a_token_file_that_cannot_be_read_ends_with_status_4(streamd: Shell) -> None:
    for command in (["read", "x"], ["cluster", "status"]):
        unreadable = ("--token-file", "/proc/self/mem")
        assert "Input/output error" in streamd.fails(4, command[0], *unreadable, *command[1:])


def test_an_empty_snapshot_of_json_is_a_line_of_json(streamd: Shell) -> None:
    streamd("create", "demo/blank", "-t", "json")
    streamd("snapshot", "publish", "demo/blank", "--at", "now", "-t", "json")
    lines = streamd("bootstrap", "demo/blank", "--json").splitlines()
    assert json.loads(lines[1]) == {"content_type": "application/json", "message": None}


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("read", ">&-"),
        pytest.param("tail", ">&-", marks=pytest.mark.long),
        pytest.param("head", ">&-", marks=pytest.mark.long),
        ("append", "<&-"),
        pytest.param("append", "2>&- <&-", marks=pytest.mark.long),
    ],
)
def test_a_standard_stream_that_is_closed_ends_with_status_4(
    command: str, closed: str, streamd: Shell
) -> None:
    streamd("create", "shut")
    streamd("append", "shut", given=b"x")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m streamd {command} shut {closed}', sys.executable],
        env=streamd.environment,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == (0 if "2>" in closed else 1), done.stderr


def test_a_fork_of_an_absent_stream_names_what_is_missing(streamd: Shell) -> None:
    said = streamd.fails(1, "fork", "nothing", "something")
    assert said.startswith("nothing: ")
    assert said.endswith("'streamd create nothing' creates it")


def test_a_closed_pipe_ends_a_command_quietly(streamd: Shell) -> None:
    streamd("create", "piped")
    streamd("append", "piped", given=b"line\n" * 100_000)
    for unbuffered in ("", "1"):
        streamd.environment["PYTHONUNBUFFERED"] = unbuffered
        with streamd.started("read", "piped") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            heard(process, 5)
            process.stdout.close()
            assert process.wait(60) == -signal.SIGPIPE
            assert process.stderr.read() == b""


def test_the_largest_json_message_is_as_large_as_a_body_may_be(streamd: Shell) -> None:
    streamd("create", "demo/largest", "-t", "json")
    message = json.dumps("x" * ((16 << 20) - 2)).encode()
    assert len(message) == 16 << 20
    streamd("append", "demo/largest", given=message)
    assert streamd("read", "demo/largest") == message + b"\n"


def test_a_refusal_shows_while_an_append_waits_for_input(streamd: Shell) -> None:
    """A log that grows slowly must not go to a stream that takes nothing."""
    streamd("create", "refusing", "--closed")
    with streamd.started("append", "refusing") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(bytes(2 * 1024 * 1024 + 1))
        process.stdin.flush()
        assert process.wait(60) == 1
        assert b"STREAM_CLOSED" in process.stderr.read()


def test_ctrl_c_ends_a_command_quietly(streamd: Shell) -> None:
    streamd("create", "interrupted")
    streamd("append", "interrupted", given=b"ready")
    with streamd.started("tail", "-f", "interrupted") as process:
        assert process.stderr is not None
        heard(process, 5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.stderr.read() == b""


# --- start


@pytest.mark.parametrize(
    ("module", "strangers"),
    [
        ("streamd.commands.cli", ["httpx", "rich", "trio", "quart", "streamd.storage.binding"]),
        ("streamd.commands.serve", ["httpx", "minio", "streamd.client"]),
        ("streamd.commands.reading", ["trio", "quart", "streamd.storage.binding"]),
    ],
)
def test_server_and_client_do_not_load_each_others_libraries(
    module: str, strangers: list[str]
) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert module in loaded
    assert not set(strangers) & set(loaded)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(streamd: Shell, shell: str) -> None:
    assert b"_STREAMD_COMPLETE" in streamd("completion", shell)


def test_an_error_is_explained_by_its_code_without_a_server(streamd: Shell) -> None:
    assert streamd("explain", "stream_not_found").decode().splitlines() == [
        f"STREAM_NOT_FOUND (404): {Problem.STREAM_NOT_FOUND.meaning}",
        f"  {Problem.STREAM_NOT_FOUND.cure}",
        "  docs/errors.md#STREAM_NOT_FOUND",
    ]
    both = streamd("explain", "INVALID_OFFSET").decode()
    assert "(400)" in both
    assert "docs/errors.md#INVALID_OFFSET_409" in both
    assert "no error has the code 'NONE'" in streamd.fails(2, "explain", "NONE")


def test_commands_and_options_are_completed(streamd: Shell) -> None:
    words = {"COMP_WORDS": "streamd tail --from-", "COMP_CWORD": "2"}
    done = subprocess.run(
        [Path(sys.executable).with_name("streamd")],
        env={**streamd.environment, **words, "_STREAMD_COMPLETE": "bash_complete"},
        stdout=subprocess.PIPE,
        timeout=60,
    )
    offered = {line.partition(",")[2] for line in done.stdout.decode().splitlines()}
    assert offered == {"--from-offset", "--from-start", "--from-now"}
