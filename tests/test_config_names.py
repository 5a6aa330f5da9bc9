"""Names with a slip, in files and in the environment, and the names that they may have meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from streamd.config.loading import load
from streamd.config.names import injected_variables, unknown_variable
from streamd.config.settings import Config, ConfigError


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "streamd.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("STREAMD_DATA_DIR", "STREAMD_SERVER_DATA_DIR"),
        ("STREAMD_SEVER_LISTEN", "STREAMD_SERVER_LISTEN"),
        ("STREAMD_SERVER_LISSEN", "STREAMD_SERVER_LISTEN"),
        ("STREAMD_NODE_ID", "STREAMD_SERVER_NODE_ID"),
        ("STREAMD_S3_BUCKET", "STREAMD_COLD_S3_BUCKET"),
        ("STREAMD_ISSUER", "STREAMD_AUTH_JWT_ISSUER"),
        ("STREAMD_ROOT_TOKENS", "STREAMD_ROOT_TOKEN"),
        (
            "STREAMD_LISTEN",
            "STREAMD_SERVER_LISTEN, STREAMD_CLUSTER_LISTEN or STREAMD_ADMIN_LISTEN",
        ),
    ],
)
def test_a_variable_that_nothing_uses_is_refused_with_the_nearest(name: str, meant: str) -> None:
    expected = f"the environment: unknown variable {name}; did you mean {meant}?"
    with pytest.raises(ConfigError) as refused:
        load(None, {name: "x"}, {})
    assert str(refused.value) == expected


def test_a_variable_unlike_all_others_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"unknown variable STREAMD_QQQ$"):
        load(None, {"STREAMD_QQQ": "x"}, {})


def test_variables_of_other_parts_are_no_slips() -> None:
    """Each that this project reads, sets or names is a key's, or known to be another's."""
    root = Path(__file__).parents[1]
    files = [root / "Makefile", root / "README.md"]
    for folder in ("src", "tests", "spark", "bench", "docs", "man", "config", "examples", ".ci"):
        for directory, folders, names in os.walk(root / folder):
            folders[:] = [name for name in folders if name not in ("node_modules", "__pycache__")]
            files += [Path(directory, name) for name in names if not name.endswith((".so", ".gz"))]
    slips = {Path(__file__), Path(__file__).with_name("test_config.py")}
    named = {
        name
        for file in set(files) - slips
        for name in re.findall(
            r"(?<![A-Z0-9_$])STREAMD_[A-Z0-9_]+[A-Z0-9]\b", file.read_text(errors="replace")
        )
    }
    assert {"STREAMD_URL", "STREAMD_SERVER_LISTEN", "STREAMD_PURE_PYTHON"} <= named
    faults = {name: unknown_variable({name: ""}, {}, Config) for name in named}
    assert {name for name, fault in faults.items() if fault is not None} <= {
        # Sections' names alone, and examples of secrets that a file names as $NAME.
        "STREAMD_SERVER",
        "STREAMD_CLUSTER",
        "STREAMD_S3_ACCESS_KEY_ID",
        "STREAMD_S3_SECRET_ACCESS_KEY",
        "STREAMD_S3_SESSION_TOKEN",
    }


def test_a_variable_that_the_file_names_may_have_any_name(tmp_path: Path) -> None:
    file = toml(tmp_path, '[server]\nadvertise = "$STREAMD_PUBLIC_NAME"\n')
    config = load(file, {"STREAMD_PUBLIC_NAME": "a:1"}, {})
    assert config.server.advertise == "a:1"


KUBERNETES = {
    "STREAMD_SERVICE_HOST": "10.0.0.1",
    "STREAMD_SERVICE_PORT": "4437",
    "STREAMD_SERVICE_PORT_HTTP": "4437",
    "STREAMD_PORT": "tcp://10.0.0.1:4437",
    "STREAMD_PORT_4437_TCP": "tcp://10.0.0.1:4437",
    "STREAMD_PORT_4437_TCP_PROTO": "tcp",
    "STREAMD_PORT_4437_TCP_PORT": "4437",
    "STREAMD_PORT_4437_TCP_ADDR": "10.0.0.1",
    # Of a service streamd-server, and of one streamd-0.
    "STREAMD_SERVER_SERVICE_HOST": "10.0.0.2",
    "STREAMD_SERVER_PORT": "tcp://10.0.0.2:4437",
    "STREAMD_0_PORT_4438_TCP": "tcp://10.0.0.3:4438",
}


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_configuration() -> None:
    assert load(None, KUBERNETES, {}) == load(None, {}, {})
    assert injected_variables({**KUBERNETES, "STREAMD_SERVER_LISTEN": "a:1"}) == sorted(KUBERNETES)


@pytest.mark.parametrize("name", ["STREAMD_PORT", "STREAMD_SERVER_PORT"])
def test_a_port_that_is_a_number_is_a_slip(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown variable {name}"):
        load(None, {name: "4437"}, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[server]\nlissen = 1", "unknown key server.lissen; did you mean server.listen?"),
        ("[sever]\n", "unknown key sever; did you mean server?"),
        ('data_dir = "x"', "unknown key data_dir; did you mean server.data_dir?"),
        ('[server]\nname = "x"', "unknown key server.name; did you mean cluster.name?"),
        (
            '[server]\nhttp = "http2"',
            "Invalid enum value 'http2'; use front-door or hypercorn",
        ),
        ('[auth]\nmode = "on"', "Invalid enum value 'on'; use none or required"),
        ("version = 2", "version: Invalid enum value 2; use 1"),
        (
            '[log]\nlevel = "loud"',
            "log.level: Invalid enum value 'loud'; use debug, info, warning or error",
        ),
        (
            '[auth.jwt]\nalgorithms = ["HS256"]',
            "auth.jwt.algorithms[0]: Invalid enum value 'HS256'; use EdDSA, ES256",
        ),
    ],
)
def test_the_message_of_a_mistake_has_what_would_be_right(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(toml(tmp_path, text), {}, {})


def test_the_message_of_a_wrong_variable_has_what_would_be_right() -> None:
    with pytest.raises(ConfigError, match=r"STREAMD_LOG_FORMAT: .*; use console or json"):
        load(None, {"STREAMD_LOG_FORMAT": "xml"}, {})
