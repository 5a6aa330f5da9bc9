"""``streamd keys``: the key with which a cluster signs webhooks."""

from __future__ import annotations

import click

from streamd.commands.operating import Operator, server_group


@server_group
def keys() -> None:
    """Administer the key with which the cluster signs webhooks and tokens of wakes."""


@keys.command()
@click.option(
    "--revoke",
    is_flag=True,
    help="After a theft: publish no earlier key any longer, and take no token that one has made.",
)
@click.pass_obj
def rotate(operator: Operator, revoke: bool) -> None:
    """Replace the key by a new one; the one before stays published.

    With subscriptions.secret_file the new key is sealed with that secret.
    """
    answer = operator.post("/cluster/subscription-keys/rotate", {"revoke": True} if revoke else {})
    others = ", ".join(one for one in answer["published"] if one != answer["kid"])
    print(f"{answer['kid']} is the key in use" + (f"; also published: {others}" if others else ""))
