"""The command `riffle ls`."""

import json

import click

from riffle_spark.console.options import check_root, echo, json_option, store_options
from riffle_spark.console.tables import Table, show_table
from riffle_spark.observe.units import show_count, show_duration
from riffle_spark.settings import Settings


@click.command("ls")
@click.argument("prefix", metavar="PREFIX", callback=check_root)
@click.option(
    "--depth", type=click.IntRange(0, 10), default=3, show_default=True, help="Search this many levels of folders."
)
@store_options
@json_option
def ls_command(prefix: str, depth: int, settings: Settings, as_json: bool) -> None:
    """List the queries whose roots are below a prefix, with their age, lag and health.

    HEALTH is `ok`, `paused`, `stopped`, `failed`, or one of these. `behind`: records are unread, and the last commit
    is older than three status intervals. `silent`: the status is older than its interval. `skewed`: the driver's times
    are in the future. `unknown`: there is no status. `damaged`: an object is damaged or missing. `unreadable`: this
    version cannot read it. AGE is the time since the last commit. A folder is a root if its folder `log` has a record
    of a query. Sends one LIST per folder, and four requests per query. Searches at most 1,000 folders, those near
    PREFIX first.

    Exit code 0: all roots were read. 1: a root cannot be read, or the limit of 1,000 folders is reached. 3: the store
    cannot be reached or read.
    """
    from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError
    from riffle_spark.offline.root_search import FOLDERS_MAX, find_roots
    from riffle_spark.offline.root_status import read_status
    from riffle_spark.worker.member_folders import options_of

    options = options_of(settings)
    table = Table("", ("ROOT", "QUERY", "HEALTH", "BATCH", "AGE", "LAG", "MEMBERS"))
    table.right = frozenset({"BATCH", "AGE", "LAG", "MEMBERS"})
    rows_as_json: list[dict[str, object]] = []
    search = find_roots(prefix, options, depth)
    is_whole = search.is_complete
    for root in search.roots:
        try:
            state = read_status(root, options)
        except RefusedError:
            raise
        except (CorruptStateError, ConfigError) as error:
            is_whole = False
            health = "damaged" if isinstance(error, CorruptStateError) else "unreadable"
            rows_as_json.append({"root": root, "health": health, "error": str(error)})
            table.add(root, None, health, None, None, None, None)
            continue
        rows_as_json.append({**state.to_json(), "query_name": state.facts.query_name, "query_id": state.facts.query_id})
        lag = None if state.lag_records is None else f"{show_count(state.lag_records)} records"
        table.add(
            root,
            state.facts.query_name or state.facts.query_id,
            state.health,
            state.record.version,
            None if state.commit_age is None else show_duration(state.commit_age),
            lag,
            len(state.facts.members),
        )
    if as_json:
        echo(json.dumps({"prefix": prefix, "is_complete": search.is_complete, "queries": rows_as_json}))
    elif rows_as_json:
        show_table(table)
    else:
        echo(f"No root of a query was found below {prefix}, within {depth} levels of folders.")
    for query in () if as_json else filter(lambda query: "error" in query, rows_as_json):
        echo(f"{query['root']}: {query['error']}", err=True)
    if not search.is_complete:
        # Cause: The prefix has many folders, for example those of a table with partitions.
        echo(
            f"[RIFFLE-1491] There are more than {FOLDERS_MAX} folders below {prefix}. The others were not "
            "searched.\n  What to do: Name a longer prefix, or reduce --depth.",
            err=True,
        )
    click.get_current_context().exit(0 if is_whole else 1)
