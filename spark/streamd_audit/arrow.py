"""Python functions over Arrow batches, without pandas."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

# Tasks hold many small objects and no cycles of them: the garbage collector's search at every 700
# took a sixth of their time.
_GC_THRESHOLD = 100_000

ArrowMap = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: ArrowMap, schema: str) -> DataFrame:
    """`DataFrame.mapInArrow`: `function` gets the batches of a partition, one after the other, and
    makes those of the result, which have the columns of `schema`.

    PySpark's own method demands pandas, although nothing it does uses pandas, which would cost each
    worker half a second and some 50 MB.
    """

    def mapped_rarely_collected(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc.set_threshold(_GC_THRESHOLD)
        return function(batches)

    udf = UserDefinedFunction(
        mapped_rarely_collected, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = udf(*[frame[name] for name in frame.columns])
    mapped = frame._jdf.mapInArrow(column._jc, False, None)
    return DataFrame(mapped, frame.sparkSession)
