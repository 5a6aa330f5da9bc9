"""HTTP/2 by Hypercorn: its servers, what we bound in it, and the adapter to our requests.

`hypercorn_server` runs it; its limits and `http2_frames` bound what one connection can make it
hold, `http2_protocol` refuses malformed requests alone, and `asgi` makes the same `Request` of a
request as the front door does.
"""
