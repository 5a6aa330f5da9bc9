"""What can go wrong with a cold store, distinguished by the remedy."""

from __future__ import annotations


class ColdError(Exception):
    """A call to the cold store did not do what was asked; the message says what and where."""


class ColdUnavailable(ColdError):
    """The store did not answer, answered with garbage, or asked to try later.

    The request may have taken effect all the same. The same call may succeed later.
    """


class StoreFaulty(ColdUnavailable):
    """The store did answer: with an error of its own, or with bytes that broke off.

    A store in trouble does that, and so does one whose disk has damaged the requested object; other
    objects tell the two cases apart.
    """


class ColdRefused(ColdError):
    """The store refuses until an operator changes something; the message says what."""


class ObjectMissing(ColdError):
    """There is no object of that name."""


class ObjectCorrupt(ColdError):
    """An object is not what was written: its bytes must not be used."""
