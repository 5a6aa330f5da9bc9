"""What can go wrong with a cold store, told apart by what helps."""

from __future__ import annotations


class ColdError(Exception):
    """A call to the cold store did not do what was asked; the message says what and where."""


class ColdUnavailable(ColdError):
    """The store did not answer, answered with garbage, or said to come later.

    What was asked may have been done all the same. The same call may succeed later.
    """


class StoreFaulty(ColdUnavailable):
    """The store did answer: with an error of its own, or with bytes that broke off.

    A store in trouble does that, and one whose disk has damaged the object asked for; what it does
    with other objects tells the two apart.
    """


class ColdRefused(ColdError):
    """The store will not do it until an operator changes something; the message says what."""


class ObjectMissing(ColdError):
    """There is no object of that name."""


class ObjectCorrupt(ColdError):
    """An object is not what was written: its bytes must not be used."""
