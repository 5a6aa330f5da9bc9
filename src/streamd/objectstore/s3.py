"""Objects in a bucket of S3, or of any compatible store, through the minio client.

Each call is one attempt within a time limit; the caller decides whether to try again. The client's
own retries are off: they would hold a thread while they wait, and know nothing of our limits.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

import urllib3
from minio import Minio
from minio.commonconfig import COMPLIANCE
from minio.credentials.credentials import Credentials
from minio.credentials.providers import (
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from minio.retention import Retention
from urllib3.exceptions import HTTPError, ProtocolError, SSLError

from streamd.objectstore.errors import (
    ColdError,
    ColdRefused,
    ColdUnavailable,
    ObjectCorrupt,
    ObjectMissing,
    StoreFaulty,
)
from streamd.objectstore.objects import (
    MAX_OBJECT_BYTES,
    MAX_PAGE,
    ObjectInfo,
    check_name,
    check_put,
)

_READ_BYTES = 256 * 1024

# What an operator must correct, by the store's own error code.
_REFUSALS = {
    "AccessDenied": "the credentials do not allow it",
    "AccountProblem": "the account has a problem",
    "AllAccessDisabled": "the account has a problem",
    "AuthorizationHeaderMalformed": "the region is wrong (cold.s3_region)",
    "ExpiredToken": "the session token has expired (cold.s3_session_token)",
    "InvalidAccessKeyId": "the access key is unknown (cold.s3_access_key_id)",
    "InvalidBucketName": "the bucket's name is not allowed (cold.s3_bucket)",
    "InvalidToken": "the session token is wrong (cold.s3_session_token)",
    "InvalidTokenId": "the session token is wrong (cold.s3_session_token)",
    "MethodNotAllowed": "the server is not an object store (cold.s3_endpoint)",
    "NoSuchBucket": "the bucket does not exist (cold.s3_bucket)",
    "PermanentRedirect": "the bucket is in another region (cold.s3_region)",
    "RequestTimeTooSkewed": "the clocks of this machine and the store differ too much",
    "SignatureDoesNotMatch": "the secret key is wrong (cold.s3_secret_access_key)",
}


class S3Store:
    """An `ObjectStore` in a bucket, under a prefix (empty, or ending with a slash)."""

    def __init__(
        self,
        *,
        bucket: str,
        region: str,
        endpoint: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        ca_file: str | None = None,
        prefix: str = "",
        timeout_s: float = 30.0,
        connections: int = 8,
        lock_days: int | None = None,
    ) -> None:
        """`endpoint` is a URL; without one it is Amazon's. Without an access key the usual places
        are tried: AWS_ variables, the shared credentials file, the machine's role. `ca_file` (PEM)
        replaces the system's certificates. With `lock_days` nobody can
        delete an object for so long; the bucket must have been made with object lock.

        `timeout_s` bounds connecting and waiting for an answer together, each wait while an object
        is sent, and a whole read from its first step to its last byte. Raises `ColdRefused` for
        settings that cannot work.
        """
        pool = urllib3.PoolManager(
            num_pools=4,
            maxsize=connections,
            block=True,
            retries=False,
            timeout=urllib3.Timeout(total=timeout_s),
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file,
        )
        try:
            url = urllib3.util.parse_url(endpoint or "https://s3.amazonaws.com")
            self._client = Minio(
                url.netloc or "",
                secure=url.scheme == "https",
                region=region,
                credentials=_provider(access_key_id, secret_access_key, session_token, pool),
                http_client=pool,
            )
        except ValueError as error:
            raise ColdRefused(f"the endpoint {endpoint} cannot be used: {error}") from error
        self._pool = pool
        self._bucket = bucket
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._lock_days = lock_days
        at = f" at {endpoint}" if endpoint else ""
        self.place = f"the bucket {bucket}{'/' + prefix if prefix else ''}{at}"

    def put(self, name: str, content: bytes) -> None:
        """See `ObjectStore.put`."""
        check_put(name, content)
        with self._calling(f"writing {name} to"):
            # The request carries a digest of the body, so the store keeps no damaged one.
            # One request: no listing shows the remains of a multipart upload whose client died.
            self._client.put_object(
                self._bucket,
                self._prefix + name,
                io.BytesIO(content),
                len(content),
                part_size=MAX_OBJECT_BYTES,
                retention=self._retention(),
            )

    def _retention(self) -> Retention | None:
        if self._lock_days is None:
            return None
        return Retention(COMPLIANCE, datetime.now(UTC) + timedelta(days=self._lock_days))

    def get(self, name: str, offset: int, length: int) -> bytes:
        """See `ObjectStore.get`."""
        check_name(name)
        if length == 0:
            return b""
        deadline = time.monotonic() + self._timeout_s
        with self._calling(f"reading {name} from"):
            response = self._client.get_object(
                self._bucket, self._prefix + name, offset=offset, length=length
            )
            try:
                content = self._receive(response, length, deadline)
            except ProtocolError as error:
                response.close()
                raise StoreFaulty(f"reading {name} from {self.place}: {error}") from error
            except BaseException:
                response.close()  # no other request may reuse the rest of the connection
                raise
            response.release_conn()
            told = int(response.headers.get("content-length", length))
        if len(content) == length:
            return content
        if len(content) == told:
            raise ObjectCorrupt(f"{name} in {self.place} ends before {offset + length}")
        raise StoreFaulty(f"reading {name} from {self.place}: {len(content)} of {length} bytes")

    def stat(self, name: str) -> ObjectInfo:
        """See `ObjectStore.stat`."""
        check_name(name)
        try:
            with self._calling(f"looking at {name} in"):
                found = self._client.stat_object(self._bucket, self._prefix + name)
                return self._info(name, found.size, found.last_modified)
        except ObjectMissing:
            # The answer to a HEAD has no body to say whether it is the bucket that is missing.
            with self._calling(f"looking at {name} in"):
                if not self._client.bucket_exists(self._bucket):
                    raise ColdRefused(f"{self.place}: {_REFUSALS['NoSuchBucket']}") from None
            raise

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        """See `ObjectStore.page`."""
        with self._calling("listing"):
            found = self._client.list_objects(
                self._bucket,
                prefix=self._prefix + prefix,
                recursive=True,
                start_after=self._prefix + after if after else None,
            )
            return [
                self._info(
                    (item.object_name or "").removeprefix(self._prefix),
                    item.size,
                    item.last_modified,
                )
                for item in islice(found, limit)
            ]

    def delete(self, names: Sequence[str]) -> None:
        assert len(names) <= MAX_PAGE
        doomed = [DeleteObject(self._prefix + check_name(name)) for name in names]
        with self._calling("deleting from"):
            for failure in self._client.remove_objects(self._bucket, doomed):
                if failure.code != "NoSuchKey":
                    raise _refused_or_unavailable(
                        failure.code, failure.message, f"deleting {failure.name} from {self.place}"
                    )

    def close(self) -> None:
        self._pool.clear()

    def _receive(self, response: urllib3.BaseHTTPResponse, length: int, deadline: float) -> bytes:
        """The body, up to `length` bytes; a slow trickle ends at the deadline."""
        parts: list[bytes] = []
        size = 0
        while size < length:
            part = response.read1(min(_READ_BYTES, length - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
            if time.monotonic() > deadline:
                raise ColdUnavailable(f"{self.place} sent {size} of {length} bytes in time")
        return b"".join(parts)

    def _info(self, name: str, size: int | None, modified: object) -> ObjectInfo:
        stamp = getattr(modified, "timestamp", lambda: 0.0)()
        return ObjectInfo(name, size or 0, int(stamp * 1000))

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        """Turn the client's exceptions into ours."""
        what = f"{doing} {self.place}"
        try:
            yield
        except ColdError:
            raise
        except S3Error as error:
            raise _from_code(error, what) from error
        except InvalidResponseError as error:
            # The answer comes from a proxy or web server, not from the store itself.
            status = error._code
            kind = ColdRefused if status in (401, 403, 404, 405) else ColdUnavailable
            raise kind(f"{what}: HTTP status {status} without an explanation") from error
        except ServerError as error:
            kind = StoreFaulty if error.status_code == 500 else ColdUnavailable
            raise kind(f"{what}: HTTP status {error.status_code}") from error
        except SSLError as error:
            kind = ColdRefused if "CERTIFICATE" in str(error).upper() else ColdUnavailable
            raise kind(f"{what}: TLS: {error}") from error
        except (HTTPError, MinioException, OSError) as error:
            raise ColdUnavailable(f"{what}: {error}") from error
        except (ValueError, SyntaxError, LookupError, TypeError, AttributeError) as error:
            # The client parses answers without checking them first.
            raise ColdUnavailable(
                f"{what}: malformed response from the object store: {error}"
            ) from error


class _UsualPlaces(ChainedProvider):
    """Credentials from the environment, the shared file, or the machine's role."""

    def retrieve(self) -> Credentials:
        try:
            return super().retrieve()
        except ValueError as error:
            raise ColdRefused(
                "no credentials: set cold.s3_access_key_id and cold.s3_secret_access_key, or "
                "provide them where AWS tools look for them"
            ) from error


def _provider(
    access_key_id: str | None,
    secret_access_key: str | None,
    session_token: str | None,
    pool: urllib3.PoolManager,
) -> Provider:
    if access_key_id and secret_access_key:
        return StaticProvider(access_key_id, secret_access_key, session_token)
    return _UsualPlaces([EnvAWSProvider(), AWSConfigProvider(), IamAwsProvider(http_client=pool)])


def _from_code(error: S3Error, what: str) -> ColdError:
    if error.code in ("NoSuchKey", "NoSuchObject"):
        return ObjectMissing(f"{what}: the object does not exist")
    if error.code == "InvalidRange":
        return ObjectCorrupt(f"{what}: the object ends before the requested bytes")
    if error.code == "InternalError":
        return StoreFaulty(f"{what}: {error.code}: {error.message}")
    return _refused_or_unavailable(error.code, error.message, what)


def _refused_or_unavailable(code: str | None, message: str | None, what: str) -> ColdError:
    reason = _REFUSALS.get(code or "")
    if reason is not None:
        return ColdRefused(f"{what}: {reason}")
    return ColdUnavailable(f"{what}: {code}: {message}")
