"""The newest offsets of sources, of which some cannot be asked at first or at all."""

from __future__ import annotations

from riffle_spark.spark.engine.inventory import newest_offsets


class Offset:
    """An offset of the JVM, as Python sees it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def json(self) -> str:
        """Return the text of the offset."""
        return self._text


class Source:
    """A source of the JVM, as Python sees it. It raises an error until Spark has asked for its offsets."""

    def __init__(self, *answers: Offset | None) -> None:
        self.answers = list(answers)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the newest offset."""
        if not self.answers:
            raise RuntimeError("java.lang.NullPointerException")
        return self.answers[-1]


def test_a_source_without_offsets_is_left_out_of_one_batch_only() -> None:
    """After a restart Spark runs the interrupted batch again without asking Kafka. The lag is known from the next."""
    kafka, other = Source(), Source(None)
    assert newest_offsets([kafka, other]) == []
    kafka.answers.append(Offset('{"events":{"0":7}}'))
    assert newest_offsets([kafka, other]) == ['{"events":{"0":7}}']
