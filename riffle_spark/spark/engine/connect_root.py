"""The session of the user in the process that runs ``foreachBatch`` for Spark Connect.

Spark Connect pickles the job and calls it in a separate process for each query. Up to Spark 4.2 the batches belong to
the session of the user. Since 4.3 each batch belongs to a copy of that session, which does not list queries. While the
job is unpickled, the active session is that of the user.
"""

from pyspark.sql import SparkSession

from riffle_spark.spark.engine.jvm import is_classic

_sessions: list[SparkSession] = []
"""The session of the user, if this process runs batches for Spark Connect."""


def remember_session() -> None:
    """Remember the active session, if it is one of Spark Connect. Call this while the job is unpickled."""
    active = SparkSession.getActiveSession()
    if active is not None and not is_classic(active):
        _sessions[:] = [active]


def session_of_user(batch_session: SparkSession) -> SparkSession:
    """Return the session that has the query of a batch, given the session of the batch."""
    return _sessions[-1] if _sessions else batch_session
