"""Requests and answers: the front door, the handlers, live readers, what operators ask."""
