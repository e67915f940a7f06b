"""Real servers as child processes. They end with this process, even if it is killed."""

from apps.demo.servers.child import Child, Launch, free_port
from apps.demo.servers.cluster import JVM_OPTIONS, StandaloneCluster, WorkerSize
from apps.demo.servers.kafka import KafkaBroker
from apps.demo.servers.s3 import DiskS3Server, S3Server
from apps.demo.servers.server import Server

__all__ = [
    "JVM_OPTIONS",
    "Child",
    "DiskS3Server",
    "KafkaBroker",
    "Launch",
    "S3Server",
    "Server",
    "StandaloneCluster",
    "WorkerSize",
    "free_port",
]
