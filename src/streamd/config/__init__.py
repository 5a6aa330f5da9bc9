"""Configuration: defaults, then a TOML file, the environment, and flags.

`settings` has the whole configuration, reads it from its sources and checks it; `auth`
is a section of its own, and `names` says what a misspelt key or variable may have meant.

Invariants:

- A value is checked before anything is opened: a node with a wrong configuration changes nothing.
- An error names the key, the file or variable that gave it, and the values that are valid.

It must never act: what a section configures is built in `streamd.app`.

Read on in docs/operations.md and man/streamd-serve.1.
"""
