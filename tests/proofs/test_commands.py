"""`streamd verify` and `spark/verify.py` tell by their exit status whether something is proved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.running import Shell
from tests.proofs.corpus import MadeLog
from tests.support.ports import unused_port

LOG = MadeLog(11)
TEXT = next(one for one in LOG.proofs() if one.content_type == "image/png")
JSON = next(one for one in LOG.proofs() if one.content_type == "application/json")
SCRIPT = Path(__file__).parents[2] / "spark" / "verify.py"
streamd = Shell(f"http://127.0.0.1:{unused_port()}")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with proofs, heads, and the key to trust."""
    (tmp_path / "proof.json").write_bytes(TEXT.content)
    (tmp_path / "json.json").write_bytes(JSON.content)
    old, new = LOG.grown(21, 40)
    (tmp_path / "old.json").write_bytes(old)
    (tmp_path / "new.json").write_bytes(new)
    (tmp_path / "key").write_text(f"{LOG.public(0)}\n")
    (tmp_path / "record").write_bytes(TEXT.record)
    (tmp_path / "json").write_bytes(JSON.record + b"\n")
    document = json.loads(TEXT.content)
    document["entry"]["index"] += 1
    (tmp_path / "forged.json").write_text(json.dumps(document))
    return tmp_path


def test_what_is_proved_is_printed(files: Path) -> None:
    said = streamd("verify", str(files / "json.json"), "--key", LOG.public(0)).decode()
    proved, record, head = said.splitlines()
    assert proved == (
        f"PROVED: entry {JSON.entry} appends this record to {JSON.stream!r}, with the content type "
        "'application/json':"
    )
    assert record == JSON.record.decode()
    last = LOG.first_index + 39
    expected = f"group 0, entries {LOG.first_index} to {last}, at 2025-11-24 16:00:00.040+00:00"
    assert head == f"the log of {LOG.public(0).partition('+')[0]}, {expected}"


def test_a_record_shows_no_control_characters(files: Path) -> None:
    made = next(one for one in LOG.proofs() if not one.record.isascii())
    (files / "proof.json").write_bytes(made.content)
    said = streamd("verify", str(files / "proof.json"), "--key", LOG.public(0)).decode()
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize(("proof", "record"), [("proof.json", "record"), ("json.json", "json")])
def test_a_proof_is_compared_with_the_record_that_is_at_hand(
    files: Path, proof: str, record: str
) -> None:
    given = ["verify", str(files / proof), "--key", str(files / "key"), "--record"]
    streamd(*given, str(files / record))
    said = streamd.fails(1, *given, str(files / "key"))
    assert said == f"NOT PROVED: the proof is of another record than {files / 'key'} holds"


def test_a_forged_proof_ends_with_1(files: Path) -> None:
    said = streamd.fails(1, "verify", str(files / "forged.json"), "--key", LOG.public(0))
    assert said == "NOT PROVED: the entry is not in the log that the head is of"
    assert streamd.fails(1, "verify", str(files / "proof.json"), "--key", MadeLog(12).public(0))


def test_heads_are_verified(files: Path) -> None:
    old, new = str(files / "old.json"), str(files / "new.json")
    said = streamd("verify", "--heads", old, new, "--key", str(files / "key")).decode()
    assert said.startswith("PROVED: the first log is the beginning of the second\n")
    said = streamd.fails(1, "verify", "--heads", new, old, "--key", LOG.public(0))
    assert said == "NOT PROVED: the second head's log is shorter than the first head's"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["proof.json"],
        ["proof.json", "--key", "record"],
        ["nothing.json", "--key", "key"],
        ["proof.json", "--key", "key", "--heads", "old.json", "new.json"],
        ["--key", "key", "--record", "record"],
        ["--key", "key", "--heads", "old.json"],
        ["--key", "key", "--heads", "old.json", "new.json", "--record", "record"],
    ],
)
def test_a_wrong_use_ends_with_2(files: Path, arguments: list[str]) -> None:
    given = [one if one.startswith("--") else str(files / one) for one in arguments]
    assert streamd.run("verify", *given).returncode == 2


def test_the_script_of_the_audit_says_the_same(files: Path) -> None:
    proof, old, new = (str(files / name) for name in ("proof.json", "old.json", "new.json"))
    key = ["--key", LOG.public(0)]
    for arguments in ([proof], ["--heads", old, new]):
        assert script(*arguments, *key) == (0, streamd("verify", *arguments, *key).decode())
    status, said = script(str(files / "forged.json"), *key)
    assert (status, said) == (1, "NOT PROVED: the entry is not in the log that the head is of\n")
    assert script(str(files / "nothing.json"), *key)[0] == 2
    assert script(*key)[0] == 2


def script(*arguments: str) -> tuple[int, str]:
    """The status and the output of the script, by itself as a stranger has it."""
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout
