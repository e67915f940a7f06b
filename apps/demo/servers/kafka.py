"""A Kafka broker in KRaft mode, alone or in a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from apps.demo.jars import broker_jars, java_command
from apps.demo.servers.child import Child, Launch, free_port, listens
from apps.demo.servers.server import Server

__all__ = ["KafkaBroker"]

START_TIMEOUT_SECONDS = 60.0
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
JVM_OPTIONS = "-Xms128m -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

# Formatting and serving in one command, so that starting does not wait for the first.
SCRIPT = """set -e
"$1" $3 -cp "$2" kafka.tools.StorageTool format --ignore-formatted --cluster-id "$4" --config "$5"
exec "$1" $3 -cp "$2" kafka.Kafka "$5"
"""

PROPERTIES = """
process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
log.dirs={folder}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes=33554432
"""


class KafkaBroker(Server):
    """A broker on a free loopback port, with its own folder for logs and data, and optionally a rack.

    ``joins`` is the previous broker of the same cluster: ids count up from 1, and the first broker is the controller.
    ``secured`` maps the names of further listeners to protocols, and ``properties`` are further lines of their
    settings.
    """

    def __init__(
        self,
        folder: Path,
        rack: str | None = None,
        joins: KafkaBroker | None = None,
        secured: Mapping[str, str] = MappingProxyType({}),
        properties: str = "",
    ) -> None:
        self._rack = rack
        self._secured = dict(secured)
        self._properties = properties
        self._ports = {name: free_port() for name in secured}
        self._port = free_port()
        self._controller: int = joins._controller if joins else free_port()
        self._node: int = joins._node + 1 if joins else 1
        self._folder = folder
        self._child: Child | None = None

    @property
    def bootstrap(self) -> str:
        """The value of ``bootstrap.servers`` for clients."""
        return f"127.0.0.1:{self._port}"

    def bootstrap_of(self, listener: str) -> str:
        """Return the address of a further listener."""
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        """Start without waiting."""
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "server.properties"
        is_first = self._node == 1
        ports = {"PLAINTEXT": self._port, **self._ports}
        clients = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        text = PROPERTIES.format(
            controller=self._controller,
            node=self._node,
            folder=self._folder / "kafka-data",
            roles="broker,controller" if is_first else "broker",
            listeners=f"{clients},CONTROLLER://127.0.0.1:{self._controller}" if is_first else clients,
            advertised=clients,
            protocols="".join(f",{name}:{protocol}" for name, protocol in self._secured.items()),
        )
        text += f"broker.rack={self._rack}\n" if self._rack else ""
        properties.write_text(text + self._properties)
        class_path = os.pathsep.join(map(str, broker_jars()))
        command = ["sh", "-c", SCRIPT, "kafka", java_command(), class_path, JVM_OPTIONS, CLUSTER_ID, str(properties)]
        self._child = Child(Launch("the Kafka broker", command, self._folder / "kafka.log", grace_seconds=2))

    def wait_until_ready(self) -> None:
        """Wait until the broker answers an admin client."""
        assert self._child is not None, "start it first"
        self._child.wait_until(self._answers, START_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Stop the process. Its topics stay in the folder."""
        if self._child is not None:
            self._child.stop()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, and wait until the broker leads its partitions."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True)
        finally:
            admin.close()

    def _answers(self) -> bool:
        if not listens(self._port):
            return False
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.list_topics()
        except KafkaError:
            return False
        finally:
            admin.close()
        return True
