"""Receives webhooks, signed as standardwebhooks.com has it, and stores each delivery once."""

import base64
import hmac
import os
import time

from quart import Quart, abort, request

from streamd.client import AsyncClient

STREAMD = AsyncClient(os.environ["STREAMD_URL"], token=os.environ.get("STREAMD_TOKEN"))
DELIVERIES = STREAMD.stream("webhooks/deliveries")
KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
TOLERANCE_S = 300
app = Quart(__name__)
app.config["MAX_CONTENT_LENGTH"] = 1024 * 1024


@app.post("/webhook")
async def receive() -> tuple[str, int]:
    headers, body = request.headers, await request.data
    delivery, sent_s = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    digest = hmac.digest(KEY, f"{delivery}.{sent_s}.".encode() + body, "sha256")
    expected = f"v1,{base64.b64encode(digest).decode()}".encode()
    signatures = headers.get("webhook-signature", "").split()
    if not any(hmac.compare_digest(expected, given.encode()) for given in signatures):
        abort(401)
    if not sent_s.isdecimal() or abs(time.time() - int(sent_s)) > TOLERANCE_S:
        abort(400)
    event = {"id": delivery, "payload": await request.get_json(force=True)}
    await DELIVERIES.create("application/json")
    await DELIVERIES.append_json(event, once=delivery)
    return "", 204
