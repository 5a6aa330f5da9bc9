"""Operations: the handlers of tokens, limits, backups and debugging, and the bodies they take.

They belong to an ordinary Quart application (`http.ops`), which `asgi_bridge` calls; `answers`
turns what a handler raises into the errors of every route.

Read on in docs/operations.md.
"""
