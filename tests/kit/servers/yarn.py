"""A YARN cluster of one node: Hadoop's resource manager and node manager, as processes on loopback ports."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from apps.demo.jars import REQUIREMENTS, JarList, java_command, spark_home
from apps.demo.servers import Child, Launch, free_port
from apps.demo.servers.server import Server

__all__ = ["Yarn"]

START_TIMEOUT_SECONDS = 120.0
HOST = "127.0.0.1"
MEMORY_MB = 6_000
JARS = JarList("YARN's jars", REQUIREMENTS / "yarn", "yarn", 50)
# Hadoop's injection framework defines classes by reflection.
JVM_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED")
SERVICES = "org.apache.hadoop.yarn.server"
ADDRESSES = (
    "resourcemanager.address",
    "resourcemanager.scheduler.address",
    "resourcemanager.resource-tracker.address",
    "resourcemanager.admin.address",
    "resourcemanager.webapp.address",
    "nodemanager.address",
    "nodemanager.localizer.address",
    "nodemanager.webapp.address",
)


class Yarn(Server):
    """A resource manager and a node manager with local files as the default file system.

    ``environment`` has the variables for ``spark-submit``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._addresses = {f"yarn.{name}": f"{HOST}:{free_port()}" for name in ADDRESSES}
        self._children: list[Child] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables for ``spark-submit``."""
        return {"HADOOP_CONF_DIR": str(self._folder / "conf")}

    def start(self) -> None:
        """Start both processes without waiting for them.

        The node manager retries until the resource manager answers.
        """
        conf = self._folder / "conf"
        conf.mkdir(parents=True)
        _write(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self._folder / "tmp")})
        _write(conf / "yarn-site.xml", {**self._addresses, **self._limits()})
        queue = {"root.queues": "default", "root.default.capacity": "100", "maximum-am-resource-percent": "0.5"}
        _write(
            conf / "capacity-scheduler.xml", {f"yarn.scheduler.capacity.{name}": value for name, value in queue.items()}
        )
        class_path = os.pathsep.join([str(conf), *map(str, JARS.jars_of("yarn")), f"{spark_home()}/jars/*"])
        for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            command = [java_command(), *JVM_OPTIONS, "-cp", class_path, f"{SERVICES}.{name}"]
            self._children.append(Child(Launch(f"YARN's {name}", command, self._folder / f"{name}.log")))

    def wait_until_ready(self) -> None:
        """Wait until the node is registered."""
        assert self._children, "YARN is not started"
        self._children[1].wait_until(self._has_node, START_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Stop both processes and all containers."""
        for child in self._children:
            child.ask_to_stop()
        for child in self._children:
            child.stop()

    def container_logs(self) -> str:
        """Return the end of the output of each container."""
        logs = sorted((self._folder / "logs").glob("application_*/container_*/std*"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-4_000:]}" for log in logs)

    def _limits(self) -> dict[str, str]:
        return {
            "yarn.resourcemanager.hostname": HOST,
            "yarn.nodemanager.hostname": HOST,
            "yarn.nodemanager.local-dirs": str(self._folder / "local"),
            "yarn.nodemanager.log-dirs": str(self._folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            "yarn.nodemanager.delete.debug-delay-sec": "600",
        }

    def _has_node(self) -> bool:
        address = self._addresses["yarn.resourcemanager.webapp.address"]
        try:
            with urllib.request.urlopen(f"http://{address}/ws/v1/cluster/metrics", timeout=2) as answer:
                return int(json.load(answer)["activeNodes"]) == 1
        except (urllib.error.URLError, OSError, ValueError):
            return False


def _write(path: Path, properties: Mapping[str, str]) -> None:
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in properties.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))
