"""The state's view of the cold store: the log alone says what is in it.

`packing` applies the commands that say which records are in which slice of which pack, and which
packs are dead. `packs` lists those that a state refers to. `scrubs` is how far the reading of all
objects has come. The objects themselves are the business of `streamd.tiering`.

Read on: docs/cold-store.md.
"""
