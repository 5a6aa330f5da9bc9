"""``streamd sign``: URLs that permit what they name to anyone who has them."""

from __future__ import annotations

import time

import click

from streamd.auth import signed_urls
from streamd.auth.signed_urls import METHODS
from streamd.auth.tokens import ROOT_ID, parse_token
from streamd.commands.options import given_token, seconds, token_file_option


@click.command()
@click.argument("url")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("GET",),
    show_default=True,
    type=click.Choice(METHODS, case_sensitive=False),
    help="What the URL permits; may be repeated. GET permits HEAD.",
)
@click.option("--prefix", is_flag=True, help="Also permit all paths below the URL's.")
@click.option(
    "--expires",
    "expires_in_s",
    metavar="TIME",
    default="1h",
    show_default=True,
    callback=seconds,
    help="How long it is valid: 90s, 15m, 12h, at most 7d.",
)
@token_file_option
def sign(
    url: str, methods: tuple[str, ...], prefix: bool, expires_in_s: int, token_file: str | None
) -> None:
    """Print the URL, signed with a token: anyone who has it may use it as the token may.

    No server is asked. The URL is valid at its own host only, and ends with the token.
    """
    token = (given_token(token_file) or "").encode()
    parsed = parse_token(token)
    if parsed is None:
        raise click.UsageError(
            "signing needs a token of streamd's own (sd_…), in STREAMD_TOKEN or --token-file"
        )
    if parsed.token_id == ROOT_ID:
        raise click.UsageError(
            "a root token signs no URLs, because only one node knows it; sign with a token that "
            "'streamd token create' makes"
        )
    if expires_in_s > signed_urls.MAX_LIFE_S:
        raise click.BadParameter("a signed URL is valid for 7d at most", param_hint="--expires")
    expires_s = int(time.time()) + expires_in_s
    try:
        signed = signed_urls.signed_url(token, url, methods, expires_s, prefix=prefix)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="URL") from None
    print(signed)
