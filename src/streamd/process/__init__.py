"""What every part needs of the process it runs in.

`threads` is the only way for blocking work to leave the event loop, and lets all threads share a
heap. `logs` and `metrics` report; `diagnostics` lists tasks and profiles threads; `cures` turns
errors of the operating system into advice. `privacy` keeps files private, `redaction` hides
credentials in addresses, and `addresses` groups IP addresses by client. `service_manager` speaks to
systemd.

It must never know a part that uses it: modules here import each other only.

Read on in docs/operations.md.
"""
