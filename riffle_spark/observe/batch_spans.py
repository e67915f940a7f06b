"""Make the spans of a batch's trace from its report."""

from collections.abc import Iterator, Mapping
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts

_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000
_RUN: Final = "run"
_TOTAL: Final = "total"


class _Trace:
    """Makes the spans of one trace. Each has a random id and the resource and scope of the query."""

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        self._resource = resource
        self._scope = scope
        self._ids = RandomIdGenerator()
        self._trace_id = self._ids.generate_trace_id()

    def span(
        self, name: str, parent: SpanContext | None, start_ns: int, end_ns: int, attributes: Mapping[str, str | float]
    ) -> ReadableSpan:
        """Return an ended span. Times are nanoseconds since the epoch."""
        context = SpanContext(
            self._trace_id, self._ids.generate_span_id(), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        return ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )


def spans_of_batch(
    report: BatchReport, facts: DriverFacts, resource: Resource, scope: InstrumentationScope
) -> Iterator[ReadableSpan]:
    """Yield the span of a batch, those of its phases, and below ``run`` one per executor that ran slots.

    Phases follow each other. An executor's span has the times of ``run``, because the report has no start times of
    slots. The seconds of its slots by step are attributes.
    """
    trace = _Trace(resource, scope)
    start_ns = report.started_ms * _NS_PER_MS
    end_ns = start_ns + _nanoseconds(report.seconds.get(_TOTAL, 0.0))
    attributes: dict[str, str | float] = {
        "riffle.query": facts.query_name or facts.query_id,
        "riffle.batch": report.version,
        "riffle.decision": report.decision,
        "riffle.epoch": report.epoch,
        "riffle.rows": report.rows,
        "riffle.output_rows": report.output_rows,
        "riffle.runs": report.runs,
        "riffle.moves": len(report.moves),
    }
    batch = trace.span("batch", None, start_ns, end_ns, attributes)
    yield batch
    for phase, seconds in report.seconds.items():
        if phase == _TOTAL:
            continue
        phase_end_ns = start_ns + _nanoseconds(seconds)
        span = trace.span(phase, batch.context, start_ns, phase_end_ns, {})
        yield span
        if phase == _RUN:
            for executor, steps in sorted(report.executor_steps.items()):
                figures: dict[str, str | float] = {f"riffle.{step}_seconds": value for step, value in steps.items()}
                figures["riffle.executor"] = executor
                figures["riffle.slots"] = report.ran_on.get(executor, 0)
                yield trace.span("slots", span.context, start_ns, phase_end_ns, figures)
        start_ns = phase_end_ns


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NS_PER_SECOND)
