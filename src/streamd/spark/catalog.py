"""Tables of Spark's catalog: ``CREATE TABLE … USING streamd OPTIONS (…)``.

Spark asks the format for the columns of a table that is created without any, and passes the
options, with a prefix, among the table's properties. When the table is read it passes the columns
on, but none of the options. So the columns keep the options, as metadata of the first of them. Of
a table that is created with columns they are lost: Spark asks the format for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from streamd.spark.options import BadOption, Options

# In the metadata of the first column.
_KEPT = "streamd.options"
# Spark's names: of the property with the format, and what its options begin with.
_PROVIDER, _OPTION = "provider", "option."
_SECRETS = ("token", "secret_key", "session_token")
_PLACES = ("url", "store")


Infer = Callable[[Options], T.StructType]


def columns_of(options: Options, name: str, infer: Infer) -> T.StructType:
    """The columns that the format `name` infers from options: of a frame, or of a table that is
    being created. Raises `BadOption`."""
    if options.get(_PROVIDER, "").lower() != name:
        return infer(options)
    table = _of_table(options)
    first, *others = infer(table).fields
    kept = T.StructField(first.name, first.dataType, metadata={_KEPT: dict(table)})
    return T.StructType([kept, *others])


def _of_table(properties: Options) -> Options:
    """The options among the properties of a table. Raises `BadOption` for a secret."""
    found = {
        key.lower().removeprefix(_OPTION): value
        for key, value in properties.items()
        if key.lower().startswith(_OPTION)
    }
    for secret in _SECRETS:
        if secret in found:
            raise BadOption(
                f"a table keeps its options where all who use it see them: leave out {secret}, and "
                f"give it to each query, SELECT … WITH ({secret} = '…'), or create a TEMPORARY VIEW"
            )
    if "@" in found.get("url", ""):
        raise BadOption(
            "a table keeps its options where all who use it see them: leave the password out of url"
        )
    return CaseInsensitiveDict(found)


def asked(options: Options, schema: T.StructType) -> Options:
    """The options of a query: its own and, if it reads a table, those that the columns keep.

    With a place among its own, those are all. Raises `BadOption` without any.
    """
    if any(place in options for place in _PLACES):
        return options
    found = CaseInsensitiveDict()
    for field in schema:
        found.update(field.metadata.get(_KEPT, {}))
    found.update(options)
    if not found:
        raise BadOption(
            "there are no options: name servers with url, and what to read with stream or bucket. "
            "Spark forgets the options of a table that has columns of yours: create the table "
            "without columns, and they are inferred"
        )
    return found
