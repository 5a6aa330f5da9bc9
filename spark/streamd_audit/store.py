"""A cold store to read from: a directory, or a bucket of S3. Nothing here writes.

A call that fails is tried four times with growing pauses, so that a short interruption does not end
an audit. After that the error says which case it is: the store does not answer or refuses
(`StoreFailed`: nothing can be said about any object), it has no such object (`ObjectMissing`), or
it cannot serve this one although it serves others (`Damaged`), as MinIO does with an object that
its disk has damaged.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials.providers import (
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError, ProtocolError

from streamd_audit.directories import PAGE, DirectoryStore, Listed, Names, Odd, Page
from streamd_audit.errors import TOO_SHORT, UNREADABLE, Damaged, ObjectMissing, StoreFailed

# Before the second, third and fourth attempt.
PAUSES_S = (0.2, 0.8, 2.0)
TIMEOUT_S = 60.0
# The names of the options that `open_store` knows; values are texts.
OPTIONS = ("endpoint", "access_key", "secret_key", "session_token", "region", "ca_file")

_READ_BYTES = 1024 * 1024
_DEFAULT_ENDPOINT = "https://s3.amazonaws.com"
_DEFAULT_REGION = "us-east-1"
_TOKEN = "AWS_SESSION_TOKEN"
# Errors that do not pass by themselves, by the store's own code.
_REFUSALS = {
    "AccessDenied": "the credentials do not allow it",
    "AuthorizationHeaderMalformed": "the region is wrong",
    "ExpiredToken": "the session token has expired",
    "InvalidAccessKeyId": "the access key is unknown",
    "InvalidBucketName": "the bucket's name is not allowed",
    "InvalidToken": "the session token is wrong",
    "InvalidTokenId": "the session token is wrong",
    "MethodNotAllowed": "what answers is not an object store",
    "NoSuchBucket": "the bucket does not exist",
    "PermanentRedirect": "the bucket is in another region",
    "RequestTimeTooSkewed": "the clocks of this machine and the store differ too much",
    "SignatureDoesNotMatch": "the secret key is wrong",
}
# What MinIO answers for an object that its disk has damaged, and others when they are in trouble.
_FAULTS = ("InternalError", "SlowDownRead")

T = TypeVar("T")


class Store(Protocol):
    """Objects by name. Every call raises `StoreFailed` when the store fails."""

    @property
    def place(self) -> str:
        """The directory, or the bucket and prefix, as messages name it."""
        ...

    def list(self, prefix: str = "", after: str = "") -> Iterator[Page]:
        """All objects whose names begin with `prefix` and come after `after`, in the order of
        their names, a page at a time.

        The end of the iteration is the end of the listing: a failure raises.
        """
        ...

    def odd(self, prefix: str) -> Iterator[Odd]:
        """What there is besides objects, with such names, in order."""
        ...

    def folders(self) -> Names:
        """The first parts of all names that have more than one, in order."""
        ...

    def size(self, name: str) -> int:
        """In bytes. Raises `ObjectMissing`."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `start` on, or all bytes from there.

        Raises `ObjectMissing`, and `Damaged` when the object ends before that or only this object
        cannot be read.
        """
        ...

    def close(self) -> None: ...


def open_store(url: str, options: Mapping[str, str] | None = None) -> Store:
    """The store in a directory, or in ``s3://BUCKET/PREFIX``.

    `options` (`OPTIONS`; empty ones count as not given) come before the AWS_ variables of the
    environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
    AWS_REGION), these before the shared credentials file and the machine's role. Raises
    `StoreFailed` for what cannot be a store.
    """
    given = {key: value for key, value in (options or {}).items() if value}
    if not url.startswith("s3://"):
        return DirectoryStore(Path(url.removeprefix("file://").removeprefix("fs:")))
    parts = urlsplit(url)
    if not parts.netloc:
        raise StoreFailed(f"{url}: the form is s3://BUCKET/PREFIX")
    prefix = parts.path.strip("/")
    return S3Store(parts.netloc, f"{prefix}/" if prefix else "", given)


class _Unavailable(Exception):
    """An attempt failed in a way that may pass."""


class _Faulty(_Unavailable):
    """The store answered, with an error of its own or with a body that broke off."""


class S3Store:
    """Objects in a bucket below a prefix, which is empty or ends with a slash."""

    def __init__(self, bucket: str, prefix: str, options: Mapping[str, str]) -> None:
        self._bucket = bucket
        self._prefix = prefix
        endpoint = (
            options.get("endpoint")
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or _DEFAULT_ENDPOINT
        )
        region = (
            options.get("region")
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or _DEFAULT_REGION
        )
        if "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        url = urlsplit(endpoint)
        ca_file = options.get("ca_file")
        _check_ca_file(ca_file)
        self._pool = urllib3.PoolManager(
            num_pools=2,
            maxsize=8,
            retries=False,
            timeout=urllib3.Timeout(total=TIMEOUT_S),
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file,
        )
        try:
            self._client = Minio(
                url.netloc,
                secure=url.scheme == "https",
                region=region,
                credentials=_credentials(options, self._pool),
                http_client=self._pool,
            )
        except ValueError as error:
            raise StoreFailed(f"the endpoint {endpoint} cannot be used: {error}") from error
        self.place = f"s3://{bucket}/{prefix} at {endpoint}"
        # An object that was read: it distinguishes a damaged object from a store in trouble.
        self._good: str | None = None

    def list(self, prefix: str = "", after: str = "") -> Iterator[Page]:
        while True:
            page = self._try(partial(self._page, prefix, after), "listing")
            if not page:
                return
            for name, _ in page:
                if not (name.startswith(prefix) and name > after):
                    raise StoreFailed(f"{self.place}: {name!r} is listed out of order")
                after = name
            yield page

    def odd(self, prefix: str) -> Iterator[Odd]:
        return iter(())  # a bucket holds objects only

    def folders(self) -> Names:
        return self._try(self._folders, "listing")

    def size(self, name: str) -> int:
        try:
            return self._try(lambda: self._stat(name), f"looking at {name}")
        except ObjectMissing:
            # S3 answers a HEAD with 404 for a missing object and a missing bucket: list to know.
            self._try(lambda: self._page("", ""), "listing")
            raise

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        try:
            content = self._try(lambda: self._get(name, start, length), f"reading {name}")
        except StoreFailed as failed:
            if isinstance(failed.__cause__, _Faulty) and self._serves_others(name):
                raise Damaged(UNREADABLE, f"{failed}; other objects are readable") from failed
            raise
        self._good = name
        return content

    def close(self) -> None:
        self._pool.clear()

    def _try(self, call: Callable[[], T], doing: str) -> T:
        """Four attempts; raises `StoreFailed` after the last."""
        has_been_short = False
        for pause_s in (*PAUSES_S, None):
            try:
                return self._once(call)
            except Damaged:
                # A proxy in between may have sent fewer bytes than there are.
                if has_been_short:
                    raise
                has_been_short = True
            except _Unavailable as error:
                if pause_s is None:
                    raise StoreFailed(f"{doing} in {self.place}: {error}") from error
                time.sleep(pause_s)
            except StoreFailed as error:
                raise StoreFailed(f"{doing} in {self.place}: {error}") from error
        raise AssertionError("unreachable")

    def _once(self, call: Callable[[], T]) -> T:
        """One attempt, with whatever the client raises turned into our errors."""
        try:
            return call()
        except S3Error as error:
            if error.code in ("NoSuchKey", "NoSuchObject"):
                name = (error.object_name or "").removeprefix(self._prefix)
                raise ObjectMissing(name) from error
            if error.code == "InvalidRange":
                raise Damaged(TOO_SHORT, "the object ends before the requested bytes") from error
            if error.code in _REFUSALS:
                raise StoreFailed(_REFUSALS[error.code]) from error
            kind = _Faulty if error.code in _FAULTS else _Unavailable
            raise kind(f"{error.code}: {error.message}") from error
        except InvalidResponseError as error:
            raise _Unavailable(f"no answer of an object store: {error}") from error
        except ServerError as error:
            kind = _Faulty if error.status_code == 500 else _Unavailable
            raise kind(f"HTTP status {error.status_code}") from error
        except (HTTPError, MinioException, OSError) as error:
            raise _Unavailable(str(error)) from error
        except (ValueError, SyntaxError, LookupError, TypeError, AttributeError) as error:
            # Raised inside the client by an answer that is not the XML it expects.
            raise _Unavailable(f"malformed response from the object store: {error}") from error

    def _page(self, prefix: str, after: str) -> Page:
        found = self._client.list_objects(
            self._bucket,
            prefix=self._prefix + prefix,
            recursive=True,
            start_after=self._prefix + after if after else None,
        )
        return [
            Listed((item.object_name or "").removeprefix(self._prefix), item.size or 0)
            for item in islice(found, PAGE)
        ]

    def _folders(self) -> Names:
        found = self._client.list_objects(self._bucket, prefix=self._prefix, recursive=False)
        return sorted(
            (item.object_name or "").removeprefix(self._prefix).rstrip("/")
            for item in found
            if item.is_dir
        )

    def _stat(self, name: str) -> int:
        return self._client.stat_object(self._bucket, self._prefix + name).size or 0

    def _get(self, name: str, start: int, length: int | None) -> bytes:
        response = self._client.get_object(
            self._bucket, self._prefix + name, offset=start, length=length or 0
        )
        try:
            told = int(response.headers.get("content-length", -1))
            wanted = told if length is None else length
            content = _receive(response, wanted)
            response.release_conn()
        except BaseException as error:
            response.close()  # no other request may reuse the rest of the connection
            if isinstance(error, ProtocolError):
                raise _Faulty(str(error)) from error
            raise
        if len(content) == wanted:
            return content
        if len(content) == told:
            raise Damaged(TOO_SHORT, f"{name} ends at byte {start + told}")
        raise _Faulty(f"the body broke off after {len(content)} of {told} bytes")

    def _serves_others(self, name: str) -> bool:
        """Whether another object can be read now, although this one could not."""
        others = [] if self._good in (None, name) else [str(self._good)]
        try:
            listed = self._once(partial(self._page, "", ""))
            others += [each.name for each in listed if each.name != name]
        except (_Unavailable, StoreFailed):
            return False
        return any(self._serves(other) for other in others[:3])

    def _serves(self, name: str) -> bool:
        try:
            self._once(partial(self._get, name, 0, 1))
        except (_Unavailable, StoreFailed, ObjectMissing, Damaged):
            return False
        return True


def _receive(response: urllib3.BaseHTTPResponse, size: int) -> bytes:
    """Up to `size` bytes of the body, or all of it; not longer than the time limit."""
    deadline = time.monotonic() + TIMEOUT_S
    parts: list[bytes] = []
    left = size
    while left and (part := response.read(min(_READ_BYTES, left) if size >= 0 else _READ_BYTES)):
        parts.append(part)
        left -= len(part)
        if time.monotonic() > deadline:
            raise _Unavailable("the body did not come in time")
    return b"".join(parts)


def _check_ca_file(ca_file: str | None) -> None:
    """Raises `StoreFailed` if it has no certificates: every connection would fail."""
    if ca_file is not None:
        try:
            ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise StoreFailed(f"the CA file {ca_file} cannot be used: {error}") from error


def _credentials(options: Mapping[str, str], pool: urllib3.PoolManager) -> Provider:
    """Given options come before the environment, each by itself: a secret is better kept there."""
    key, token = options.get("access_key"), options.get("session_token")
    if not key:
        # A token belongs to its key.
        key, token = os.environ.get("AWS_ACCESS_KEY_ID"), token or os.environ.get(_TOKEN)
    secret = options.get("secret_key") or os.environ.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return StaticProvider(key, secret, token)
    return _UsualPlaces([EnvAWSProvider(), AWSConfigProvider(), IamAwsProvider(http_client=pool)])


class _UsualPlaces(ChainedProvider):
    def retrieve(self):  # type: ignore[no-untyped-def]
        try:
            return super().retrieve()
        except ValueError as error:
            raise StoreFailed(
                "no credentials: give access_key and secret_key, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from error
