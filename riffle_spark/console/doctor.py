"""The command `riffle doctor`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from riffle_spark.console.options import check_root, conf_file_option, echo, json_option, usage_errors
from riffle_spark.settings import CONF_PREFIX, Settings, from_sources


def _parse_conf(_context: click.Context, _parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, str]:
    parsed = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError(f"--conf {pair} has no '='.\n  What to do: Write --conf name=value.")
        parsed[name.strip()] = value.strip()
    return parsed


@click.command("doctor")
@click.option(
    "--root", callback=check_root, help="Check the access rights below this root. By default the configured root."
)
@click.option("--bootstrap-servers", metavar="HOST:PORT,...", help="Connect to these Kafka brokers.")
@click.option(
    "--conf",
    "conf_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_conf,
    help="A setting of Spark, as for spark-submit. May be given several times.",
)
@click.option("--s3-endpoint", help="Base URL of an S3-compatible server.")
@conf_file_option("A settings file, with the endpoint, region and time-outs of the object store.")
@json_option
def doctor_command(
    root: str | None,
    bootstrap_servers: str | None,
    conf_options: Mapping[str, str],
    s3_endpoint: str | None,
    conf_file: Path,
    as_json: bool,
) -> None:
    """Check this machine, the object store and the configuration before a query starts. Starts no Spark.

    Below the root one object is written and deleted. Exit code 0: a query can start, perhaps with warnings. 1: a check
    failed. 2: the command was called wrongly. 3: the store or Kafka did not answer.
    """
    from riffle_spark.offline.doctor.diagnosis import diagnose, read_conf
    from riffle_spark.offline.doctor.facts import exit_code

    conf = read_conf(conf_options)
    with usage_errors():
        code = Settings() if s3_endpoint is None else Settings(s3_endpoint=s3_endpoint)
        settings = from_sources(
            code.but(rack_aware_assignment_strategy="none"),
            {name: value for name, value in conf.items() if name.startswith(CONF_PREFIX)},
            conf_file,
        )
    settings = settings if root is None else settings.but(root=root)
    servers = [server.strip() for server in (bootstrap_servers or "").split(",") if server.strip()]
    results = diagnose(settings, servers, conf)
    code_of_exit = exit_code(results)
    if as_json:
        echo(json.dumps({"exit_code": code_of_exit, "checks": [asdict(result) for result in results]}))
    else:
        for result in results:
            echo(str(result))
    click.get_current_context().exit(code_of_exit)
