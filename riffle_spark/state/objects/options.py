"""The options that stores are opened with: a part per store, and the limits of every call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of ``file://`` roots."""

    mode: str | None = Settings.root_file_mode
    """Octal mode of files. ``None``: the umask decides."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of ``s3://`` roots."""

    endpoint: str | None = Settings.s3_endpoint
    """Base URL of an S3-compatible server (path-style requests). ``None``: AWS, or as its own tools are set."""
    region: str | None = Settings.s3_region
    """``None``: the region of AWS's environment variables and files."""
    kms_key: str | None = Settings.s3_kms_key
    """The KMS key that encrypts objects on the server, ``aws/s3`` for the account's own."""
    server_side_encryption: str | None = Settings.s3_server_side_encryption
    """The algorithm of every put, ``AES256`` or ``aws:kms``. ``None``: that of ``kms_key``, or none."""
    requester_pays: bool = Settings.s3_requester_pays
    """Whether every request accepts that the requester pays."""

    def __post_init__(self) -> None:
        if self.kms_key is not None and self.server_side_encryption not in {None, "aws:kms"}:
            raise ConfigError(
                f"s3_kms_key is set, but s3_server_side_encryption = {self.server_side_encryption!r} uses no key.",
                remedy="Unset `s3_kms_key`, or set `s3_server_side_encryption` to aws:kms.",
                where="s3_server_side_encryption",
                id="RIFFLE-0457",
            )
        _check_line(self.endpoint, "s3_endpoint")
        _check_line(self.kms_key, "s3_kms_key")


@dataclass(frozen=True, slots=True)
class GcsOptions:
    """Options of ``gs://`` roots."""

    endpoint: str | None = Settings.gcs_endpoint
    """Base URL of Google Cloud Storage. ``None``: the public one."""

    def __post_init__(self) -> None:
        _check_line(self.endpoint, "gcs_endpoint")


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """Options of ``abfss://`` and ``az://`` roots."""

    endpoint: str | None = Settings.azure_endpoint
    """Base URL of the Blob service, up to the account. ``None``: that of the account in the root's URL."""

    def __post_init__(self) -> None:
        _check_line(self.endpoint, "azure_endpoint")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of all stores. Stores with equal options share one client in each process."""

    file: FileOptions = field(default_factory=FileOptions)
    s3: S3Options = field(default_factory=S3Options)
    gcs: GcsOptions = field(default_factory=GcsOptions)
    azure: AzureOptions = field(default_factory=AzureOptions)
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 20.0
    max_attempts: int = 4
    """Attempts per call, the first included."""
    patience_seconds: float = Settings.s3_patience
    """How long a call is retried in any case, if a retry can help."""
    max_connections: int = 16
    """Open connections per process. More threads wait for a connection."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "StoreOptions":
        """Return the options from the fields of ``dataclasses.asdict``."""
        parts = {"file": FileOptions, "s3": S3Options, "gcs": GcsOptions, "azure": AzureOptions}
        return cls(**{**fields, **{name: part(**fields[name]) for name, part in parts.items()}})


def _check_line(value: str | None, name: str) -> None:
    """Raise ``ConfigError`` for an empty text, such as an unset variable's value, and for more than a line."""
    if value is not None and not (value.strip() and value.isprintable()):
        raise ConfigError(
            f"{name} is empty or contains unprintable characters.",
            remedy="Set a value, or remove the setting.",
            where=name,
            id="RIFFLE-0458",
        )
