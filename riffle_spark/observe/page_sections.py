"""The sections of the status page."""

from collections.abc import Sequence
from typing import Final

from riffle_spark.observe.categories import OTHER, Categories
from riffle_spark.observe.markup import Markup, Part, element, join_parts
from riffle_spark.observe.page_parts import (
    NOTHING,
    Column,
    bytes_part,
    count_part,
    dollars_part,
    duration_part,
    percent_part,
    rows_part,
    scrolled_table,
    section,
    swatch,
    table,
    time_part,
)
from riffle_spark.observe.rates import rates_of
from riffle_spark.observe.status import Status
from riffle_spark.observe.units import show_count
from riffle_spark.protocol.facts import GroupFacts, MemberFacts

_PHASES: Final = {"enter": 4, "assign": 3, "run": 0, "deliver": 1, "commit": 2, "upkeep": 5}
"""The phases in the order in which they run, and their colours."""


def summary_section(status: Status) -> Markup:
    """Return the figures that show whether the query is healthy."""
    facts = status.facts
    commit_age = None if facts.commit_ms is None else (facts.time_ms - facts.commit_ms) / 1000
    # Spark's watermark is 0 in a query without one, and before the first row.
    delay = (facts.time_ms - facts.watermark_ms) / 1000 if facts.watermark_ms else None
    rates = rates_of(status)
    per_minute = rates.batches_per_minute
    rows_per_second = rates.rows_per_second
    owned = count_part(sum(member.owned for member in facts.members))
    figures = [
        _figure("commit", "Since last commit", duration_part(commit_age), ["version ", count_part(facts.version)]),
        _figure(
            "rate",
            "Batches",
            _with_unit(count_part(per_minute), "a minute"),
            "" if rows_per_second is None else [count_part(rows_per_second), " rows/s"],
        ),
        _lag_figure(status),
        _figure(
            "watermark",
            "Watermark delay",
            duration_part(delay),
            time_part(facts.watermark_ms, facts.time_ms) if facts.watermark_ms else "",
        ),
        _members_figure(status),
        _figure(
            "owned",
            "Key-groups",
            _with_unit(owned, "owned"),
            [count_part(sum(member.standbys for member in facts.members)), " standbys"],
        ),
        _warmups_figure(status),
        _figure(
            "state",
            "State",
            bytes_part(sum(store.bytes for store in facts.stores)),
            [rows_part(sum(s.rows for s in facts.stores), all(s.has_exact_rows for s in facts.stores)), " rows"],
        ),
        _figure(
            "cost",
            "Requests",
            _with_unit(count_part(rates.requests_per_hour), "an hour"),
            "" if rates.dollars_per_hour is None else ["about ", dollars_part(rates.dollars_per_hour), " an hour"],
        ),
    ]
    return section("summary", "Summary", element("dl", figures, class_="figures"))


def _lag_figure(status: Status) -> Markup:
    source = status.facts.source
    seconds = [partition.seconds for partition in source if partition.seconds is not None]
    records = _with_unit(count_part(sum(part.records for part in source)), "records") if source else NOTHING
    return _figure("lag", "Source lag", records, [duration_part(max(seconds)), " behind"] if seconds else "")


def _members_figure(status: Status) -> Markup:
    states = [member.state for member in status.facts.members]
    inactive = sorted(set(states) - {"active"})
    detail = ", ".join(f"{states.count(state)} {state}" for state in inactive) or f"of {len(states)}"
    return _figure("members", "Members", _with_unit(count_part(states.count("active")), "active"), detail)


def _warmups_figure(status: Status) -> Markup:
    members = [member for member in status.facts.members if member.warmups]
    seconds = [member.warmup_seconds for member in members if member.warmup_seconds is not None]
    bytes_left = bytes_part(sum(member.warmup_bytes for member in members))
    ready = [", ready in ", duration_part(max(seconds))] if seconds else ""
    number = count_part(sum(member.warmups for member in members))
    return _figure("warmups", "Warm-ups", number, [bytes_left, " left", ready] if members else "")


def _figure(name: str, label: str, value: Part, detail: Part) -> Markup:
    content = (element("dt", label), element("dd", value, class_="value"), element("dd", detail))
    return element("div", *content, id=f"figure-{name}")


def _with_unit(number: Part, unit: str) -> Part:
    """Return a number and its unit in small letters, without the unit if the number is not known."""
    return NOTHING if number is NOTHING else [number, " ", element("span", unit, class_="unit")]


def warnings_section(status: Status) -> Markup:
    """Return the newest warnings, the newest first."""
    if not status.warnings:
        return section("warnings", "Warnings", element("p", "No warnings.", class_="quiet"))
    shown = [
        element(
            "li",
            time_part(warning.time_ms, status.facts.time_ms),
            element("code", warning.id),
            element("span", warning.text),
        )
        for warning in reversed(status.warnings)
    ]
    return section("warnings", "Warnings", element("ol", shown, class_="warnings"))


def phases_of(status: Status) -> list[str]:
    """Return the phases of the batches in the order in which they run, unknown ones last."""
    present = {phase: None for batch in status.batches for phase in batch.seconds if phase != "total"}
    return [phase for phase in _PHASES if phase in present] + [phase for phase in present if phase not in _PHASES]


def phase_colour(phase: str) -> int:
    """Return the category of a phase's colour."""
    return _PHASES.get(phase, OTHER)


def batches_section(status: Status) -> Markup:
    """Return the charts of the batches with their table."""
    if not status.batches:
        return section("batches", "Batches", element("p", "No batch was committed since the start.", class_="quiet"))
    has_lag = any(batch.lag_records is not None for batch in status.batches)
    phases = phases_of(status)
    keys = [
        element("li", swatch(phase_colour(phase)), phase, element("output", "", data_series=number, aria_hidden="true"))
        for number, phase in enumerate(phases)
    ]
    lag_key = element("li", element("output", "", data_series=0, aria_hidden="true"))
    columns = [Column("Version"), Column("Committed"), Column("Rows", True), Column("Lag, records", True)]
    columns += [Column(name, True) for name in [*phases, "total"]]
    rows = [
        [
            count_part(batch.version),
            time_part(batch.time_ms, status.facts.time_ms),
            count_part(batch.rows),
            count_part(batch.lag_records),
            *[duration_part(batch.seconds.get(phase)) for phase in [*phases, "total"]],
        ]
        for batch in reversed(status.batches)
    ]
    return section(
        "batches",
        "Batches",
        element(
            "div",
            _chart("phases", "Seconds by phase, per batch", keys),
            _chart("lag", "Source lag after each batch, in records", [lag_key]) if has_lag else "",
            class_="pair",
        ),
        _details("Batches as a table", table("batches-table", "Batches, the newest first", columns, rows)),
    )


def _chart(name: str, caption: str, keys: Sequence[Part]) -> Markup:
    """Return the place of a chart, which the script draws. The table next to it has its numbers."""
    return element(
        "figure",
        element("figcaption", caption, element("span", "", class_="at", aria_hidden="true")),
        element("div", class_="chart", id=f"chart-{name}", role="img", aria_label=f"Chart: {caption}"),
        element("ul", keys, class_="keys"),
    )


def _details(summary: str, *parts: Part) -> Markup:
    return element("details", element("summary", summary), *parts)


def key_groups_section(status: Status, categories: Categories) -> Markup:
    """Return the maps of key-groups, and the controls to find one."""
    facts = status.facts
    count = max((len(group.owners) for group in facts.groups), default=0)
    if not count:
        return section("key-groups", "Key-groups", element("p", "No key-groups are assigned.", class_="quiet"))
    members = [
        element("option", f"{member.id}, executor {member.executor}", value=number)
        for number, member in enumerate(facts.members)
    ]
    number_input = element("input", id="key-group", type="number", min=0, max=count - 1, value=0)
    choices = [element("option", "no member", value=-1), members]
    controls = element(
        "div",
        element("label", "Key-group ", number_input),
        element("label", "Order ", element("select", *_orders(), id="order")),
        element("label", "Highlight ", element("select", choices, id="member")),
        _legend(categories),
        class_="controls",
    )
    columns = [Column("Co-location group"), Column("Owner"), Column("Standbys"), Column("Warm-ups")]
    selected = element("div", table("selected", "Selected key-group", columns, []), aria_live="polite")
    maps = [_map(number, group) for number, group in enumerate(facts.groups)]
    return section("key-groups", "Key-groups", controls, selected, element("div", maps, class_="maps"))


def _orders() -> list[Markup]:
    return [element("option", f"by {order}", value=order) for order in ("owner", "number")]


def _legend(categories: Categories) -> Markup:
    keys = [element("li", swatch(number), name) for number, name in enumerate(categories.names)]
    return element(
        "ul",
        keys,
        element("li", element("span", class_="swatch stripe", aria_hidden="true"), "standbys"),
        element("li", element("span", class_="swatch dot", aria_hidden="true"), "warm-up"),
        element("li", element("span", class_="swatch hollow", aria_hidden="true"), "no owner"),
        class_="keys",
        aria_label=f"Colours by {categories.kind}",
    )


def _map(number: int, group: GroupFacts) -> Markup:
    """Return the place of a map, which the script draws, and of its table, which the script fills when it is opened."""
    name = group.name or "default"
    stores = ", ".join(group.stores)
    unowned = sum(owner < 0 for owner in group.owners)
    canvas = element(
        "canvas",
        class_="map",
        data_group=number,
        tabindex=0,
        role="slider",
        aria_label=f"Key-group in the map of group {name}",
        aria_valuemin=0,
        aria_valuemax=len(group.owners) - 1,
        aria_valuenow=0,
    )
    caption = [
        element("strong", name),
        f" {stores}",
        element(
            "span",
            count_part(len(group.owners)),
            " key-groups",
            [", ", count_part(unowned), " without owner"] if unowned else "",
            class_="quiet",
        ),
    ]
    columns = [Column("Member"), Column("Owns"), Column("Standby of"), Column("Warms up")]
    by_member = table(f"map-table-{number}", f"Key-groups of group {name} by member", columns, [])
    return element("figure", element("figcaption", caption), canvas, _details("Map as a table", by_member))


def members_section(status: Status, categories: Categories) -> Markup:
    """Return the members by rack."""
    limit = status.facts.disk_limit
    columns = [
        Column("Member"),
        Column("Executor"),
        Column("Host"),
        Column("State"),
        Column("Slots", True),
        Column("Owned", True),
        Column("State", True),
        Column("Rows in parts", True),
        Column("Standbys", True),
        Column("Lag, records", True),
        Column("Trend", True),
        Column("Warm-ups", True),
        Column("Left", True),
        Column("Ready in", True),
        Column("Disk" if limit is None else f"Disk of {limit:.0%}", True),
        Column("Memory", True),
    ]
    by_rack: dict[str | None, list[tuple[int, MemberFacts]]] = {}
    for number, member in enumerate(status.facts.members):
        by_rack.setdefault(member.rack, []).append((number, member))
    largest = max((member.owned for member in status.facts.members), default=0)
    bodies = [
        element(
            "tbody",
            element("tr", _rack_heading(rack, by_rack[rack], len(columns), categories), class_="rack"),
            [_member_row(categories.of_members[number], member, largest) for number, member in by_rack[rack]],
        )
        for rack in sorted(by_rack, key=lambda rack: (rack is None, rack or ""))
    ]
    return section("members", "Members", scrolled_table("members-table", "Members by rack", columns, *bodies))


def _rack_heading(
    rack: str | None, members: Sequence[tuple[int, MemberFacts]], columns: int, categories: Categories
) -> Markup:
    owned = sum(member.owned for _, member in members)
    colour = swatch(categories.of_members[members[0][0]]) if categories.kind == "rack" else ""
    standbys = sum(member.standbys for _, member in members)
    counts = (
        f"{len(members)} member{'s' * (len(members) != 1)}, {show_count(owned)} owned, {show_count(standbys)} standbys"
    )
    name = "No rack" if rack is None else f"Rack {rack}"
    return element("th", colour, name, element("span", counts, class_="quiet"), colspan=columns, scope="rowgroup")


def _member_row(category: int, member: MemberFacts, largest: int) -> Markup:
    """Return the row of a member. The bar next to its owned key-groups compares it with the ``largest`` number."""
    width = f"{member.owned / max(largest, 1) * 100:.4g}%"
    load = element("svg", element("rect", width=width, height="100%"), class_=f"bar c{category}", aria_hidden="true")
    bytes_left = bytes_part(member.warmup_bytes) if member.warmups else NOTHING
    numbers: list[Part] = [
        count_part(member.slots),
        [load, count_part(member.owned)],
        NOTHING if member.state_bytes is None else bytes_part(member.state_bytes),
        count_part(member.state_rows),
        count_part(member.standbys),
        count_part(member.lag_records),
        join_parts("+" if member.lag_trend > 0 else "", count_part(member.lag_trend)),
        count_part(member.warmups),
        bytes_left,
        duration_part(member.warmup_seconds if member.warmups else None),
        percent_part(member.disk_used),
        percent_part(member.memory_used),
    ]
    return element(
        "tr",
        element("th", member.id, scope="row"),
        element("td", member.executor),
        element("td", member.host),
        element("td", element("span", member.state, class_=f"state {member.state}")),
        [element("td", number, class_="number") for number in numbers],
    )


def stores_section(status: Status) -> Markup:
    """Return the stores with their sizes."""
    columns = [Column("Store"), Column("Rows", True), Column("Size", True), Column("Deltas", True)]
    rows = [
        [
            store.store,
            rows_part(store.rows, store.has_exact_rows),
            bytes_part(store.bytes),
            count_part(store.chain_parts),
        ]
        for store in status.facts.stores
    ]
    return section("stores", "Stores", table("stores-table", "Stored state per store", columns, rows))


def source_section(status: Status) -> Markup:
    """Return the lag of each partition of the source, the largest first."""
    if not status.facts.source:
        return section("source", "Source", element("p", "The lag is not known.", class_="quiet"))
    columns = [
        Column("Topic"),
        Column("Partition", True),
        Column("Records behind", True),
        Column("Time behind", True),
    ]
    rows = [
        [part.topic, count_part(part.partition), count_part(part.records), duration_part(part.seconds)]
        for part in sorted(status.facts.source, key=lambda part: (-part.records, part.topic, part.partition))
    ]
    return section("source", "Source", table("source-table", "Lag per partition, the largest first", columns, rows))


def _requests_table(status: Status) -> Markup:
    """Return the requests of operators that are in effect, nothing if there are none."""
    facts = status.facts
    rows: list[list[Part]] = [["drained", name] for name in facts.drained]
    rows += [[f"key-group {task} pinned", f"to {member}"] for task, member in facts.pins.items()]
    if facts.paused_since_ms is not None:
        rows.append(["paused", ["since ", time_part(facts.paused_since_ms)]])
    if facts.slot_limit is not None:
        rows.append(["slots", [count_part(facts.slot_limit), " per executor at most"]])
    if not rows:
        return Markup("")
    return table("requests-table", "Requests of operators in effect", [Column("Request"), Column("Value")], rows)


def settings_section(status: Status) -> Markup:
    """Return the settings and the totals since the driver started."""
    settings = [[name, element("code", value)] for name, value in status.settings.items()]
    counters = [
        [name.replace("_", " ").replace("/", ", "), count_part(number)]
        for name, number in status.facts.counters.items()
    ]
    return section(
        "settings",
        "Settings and totals",
        _requests_table(status),
        table("settings-table", "Settings in effect", [Column("Setting"), Column("Value")], settings),
        table("counters-table", "Totals since the driver started", [Column("Total"), Column("Value", True)], counters),
    )
