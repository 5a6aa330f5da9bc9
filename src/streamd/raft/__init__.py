"""Consensus, pure: told what happened, it tells what to store, to send and to apply."""
