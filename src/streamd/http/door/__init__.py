"""The front door: HTTP/1.1 connections without a task for each request.

`listeners` accepts connections and `front_door` owns them. `reactor` watches their sockets and
passes bytes to `connection`, which takes requests from them; `arrivals` begins those that came
together, and sends their answers. `connection_task` takes over where a request must wait
(`continuations` says with what), and `parking` keeps connections whose long-polls or SSE streams
wait for news. `states` draws the states of a connection and which may follow which.
`shared` is what the connections have in common; each knows its server only as a `Host`.

It must never know a handler: it calls an `Application` (`protocol.application`).

Read on in docs/front-door.md.
"""
