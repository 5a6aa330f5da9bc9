"""What `streamd serve` prints once it serves: one line, or a few for a person at a terminal."""

from __future__ import annotations

from pathlib import Path

from streamd import __version__
from streamd.config.settings import Config, ServerConfig

_NO_AUTH = "none: anyone who reaches the address may read, write and operate everything"
_AUTH = "required: requests need a token"


def line(config: Config, url: str, operators: str | None, directory: Path) -> str:
    """The line for logs and scripts. `operators` is the URL of their listener, if they have one."""
    server = config.server
    text = f"streamd {__version__} node {server.node_id} serves {url} from {directory}"
    if server.workers > 1:
        text += f" with {server.workers} workers"
    if operators is not None:
        text += f", and operations at {operators}"
    return text


def lines(config: Config, url: str, operators: str | None, directory: Path) -> str:
    """The same for a terminal, with how requests are authorized and a first command."""
    server, cluster = config.server, config.cluster
    rows = [
        ("address", url + (f"  ({server.workers} workers)" if server.workers > 1 else "")),
        ("operators", operators),
        ("data", str(directory)),
        ("auth", _AUTH if config.auth.mode == "required" else _NO_AUTH),
        ("cluster", cluster.name and f"{cluster.name}, peers at {cluster.address}"),
        ("try", _first_command(config, url)),
    ]
    head = f"streamd {__version__}, node {server.node_id}. Ctrl-C ends it."
    return "\n".join([head, *(f"  {name:<11}{text}" for name, text in rows if text)])


def _first_command(config: Config, url: str) -> str:
    """A command to try first, complete but for the operator's token and CA file."""
    # A node that listens on all addresses does so on the loopback, too.
    here = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    command = "streamd create demo/hello"
    if here != f"http://{ServerConfig().listen}":
        command += f" --url {here}"
    if config.server.tls_cert is not None:
        command += " --cacert AUTHORITY.pem"
    return f"STREAMD_TOKEN=TOKEN {command}" if config.auth.mode == "required" else command
