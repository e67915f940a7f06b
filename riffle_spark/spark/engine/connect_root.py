"""The session of the user in the process that runs ``foreachBatch`` for Spark Connect.

Spark Connect pickles the job and calls it in a process of its own, one for each query. Up to Spark 4.2 its batches
belong to the session of the user. From 4.3 on each batch belongs to a copy of that session, which knows no queries.
While the job is unpickled, the active session is the one of the user.
"""

from pyspark.sql import SparkSession

from riffle_spark.spark.engine.jvm import is_classic

__all__ = ["remember_session", "session_of_user"]

_sessions: list[SparkSession] = []
"""The session of the user, if this process runs batches for Spark Connect."""


def remember_session() -> None:
    """Keep the active session. Call it while the job is unpickled. Without Spark Connect it does nothing."""
    active = SparkSession.getActiveSession()
    if active is not None and not is_classic(active):
        _sessions[:] = [active]


def session_of_user(batch_session: SparkSession) -> SparkSession:
    """Return the session that has the query of a batch, given the session of the batch."""
    return _sessions[-1] if _sessions else batch_session
