"""The newest offsets of a query's sources, if some sources do not know theirs."""

from __future__ import annotations

from riffle_spark.spark.engine.inventory import newest_offsets


class Offset:
    """A stand-in for an offset of the JVM."""

    def __init__(self, text: str) -> None:
        self._text = text

    def json(self) -> str:
        """Return the text of the offset."""
        return self._text


class Source:
    """A stand-in for a source of the JVM. It raises an error until Spark has asked it for offsets."""

    def __init__(self, *answers: Offset | None) -> None:
        self.answers = list(answers)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the newest offset."""
        if not self.answers:
            raise RuntimeError("java.lang.NullPointerException")
        return self.answers[-1]


def test_a_source_without_offsets_is_left_out_of_one_batch_only() -> None:
    """A Kafka source is left out of the interrupted batch that Spark repeats after a restart. Its offsets are known
    from the next batch on.
    """
    kafka, other = Source(), Source(None)
    assert newest_offsets([kafka, other]) == []
    kafka.answers.append(Offset('{"events":{"0":7}}'))
    assert newest_offsets([kafka, other]) == ['{"events":{"0":7}}']
