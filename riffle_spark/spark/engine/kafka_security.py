"""Configure Python's Kafka client from the options of Spark's Kafka source, so that it connects as the source does.

Both clients have the same mechanisms and protocols. Java's login modules, its own key-store format and Spark's
delegation tokens are refused with the name of the option.
"""

import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from riffle_spark.errors import ConfigError

__all__ = ["security_of"]

_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_JAAS_WORD = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PEM, _JKS = b"-----BEGIN", b"\xfe\xed\xfe\xed"


def security_of(options: Mapping[str, str]) -> dict[str, object]:
    """Return the client arguments of kafka-python for the options of a source, with names in lower case.

    Raise ``ConfigError`` for an option that this client does not support.

    >>> security_of({"kafka.security.protocol": "SSL"})["security_protocol"]
    'SSL'
    """
    protocol = options.get("kafka.security.protocol", "PLAINTEXT").strip().upper()
    arguments: dict[str, object] = {"security_protocol": protocol}
    if protocol.startswith("SASL_"):
        arguments |= _sasl(options)
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _ssl_context(options)
    return arguments


def _sasl(options: Mapping[str, str]) -> dict[str, object]:
    """Return the client's arguments for the login. Raise ``ConfigError`` for an unsupported mechanism."""
    mechanism = options.get("kafka.sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism in _PASSWORDS:
        login = _login(options.get("kafka.sasl.jaas.config", ""))
        return {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": login["username"],
            "sasl_plain_password": login["password"],
        }
    if mechanism == "GSSAPI":
        service = options.get("kafka.sasl.kerberos.service.name", "kafka")
        return {"sasl_mechanism": mechanism, "sasl_kerberos_service_name": service}
    if mechanism == "AWS_MSK_IAM":
        return {"sasl_mechanism": mechanism}
    raise _refusal(f"kafka.sasl.mechanism = {mechanism}", "PLAIN, SCRAM, GSSAPI with a ticket cache, or AWS_MSK_IAM")


def _login(jaas: str) -> Mapping[str, str]:
    """Return the options of the login module in ``kafka.sasl.jaas.config``: ``Module required name="value";``.

    Raise ``ConfigError`` unless they have a user name and a password.
    """
    words = _words(jaas)
    options = {words[index - 1]: words[index + 1] for index in range(2, len(words) - 1) if words[index] == "="}
    if not {"username", "password"} <= options.keys():
        raise _refusal("kafka.sasl.jaas.config without username and password", "both in its login module")
    if options.get("tokenauth", "false").lower() == "true":
        raise _refusal("kafka.sasl.jaas.config with tokenauth", "username and password")
    return options


def _words(jaas: str) -> list[str]:
    """Return the words of a JAAS entry without quotes and escapes. ``=`` and ``;`` are separate words."""
    words: list[str] = []
    position = 0
    text = jaas.strip()
    while position < len(text):
        word = _JAAS_WORD.match(text, position)
        if word is None:
            raise _refusal("a kafka.sasl.jaas.config that is not one entry", 'Module required name="value" ...;')
        quoted = word[1] if word[1] is not None else word[2]
        words.append((word[3] or word[4]) if quoted is None else _ESCAPED.sub(r"\1", quoted))
        position = word.end()
    return words


def _ssl_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for the options. Raise ``ConfigError`` for an unsupported store."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(options.get("kafka.ssl.endpoint.identification.algorithm", "https").strip())
    truststore = _read_store_content(options, "truststore", "kafka.ssl.truststore.certificates")
    if truststore is None:
        context.load_default_certs()
    else:
        certificates, _ = _parse_store(truststore, options, "truststore")
        context.load_verify_locations(cadata=certificates.decode())
    keystore = _read_store_content(options, "keystore", "kafka.ssl.keystore.certificate.chain")
    if keystore is not None:
        chain, key = _parse_store(keystore, options, "keystore")
        key = key or options.get("kafka.ssl.keystore.key", "").encode()
        password = options.get("kafka.ssl.key.password") or options.get("kafka.ssl.keystore.password")
        with tempfile.NamedTemporaryFile() as file:  # Python reads a client's key only from a file; its mode is 0600
            Path(file.name).write_bytes(key + b"\n" + chain)
            context.load_cert_chain(file.name, password=password or "")
    return context


def _read_store_content(options: Mapping[str, str], store_type: str, content_option: str) -> bytes | None:
    """Return the bytes of the trust store or key store that the options name, ``None`` if they name none.

    ``store_type`` is ``truststore`` or ``keystore``. The option ``content_option`` holds the store's content itself;
    otherwise the option ``kafka.ssl.<store_type>.location`` names a file.
    """
    if content_option in options:
        return options[content_option].encode()
    location = options.get(f"kafka.ssl.{store_type}.location")
    return None if location is None else Path(location).read_bytes()


def _parse_store(data: bytes, options: Mapping[str, str], store_type: str) -> tuple[bytes, bytes]:
    """Return the certificates and the private key of a store in PEM. The key is empty if the store has none.

    ``store_type`` is ``truststore`` or ``keystore``. Raise ``ConfigError`` for an unsupported format or a wrong
    password.
    """
    if _PEM in data:
        return data, data if b"PRIVATE KEY-----" in data else b""
    if data.startswith(_JKS):
        raise _refusal(f"kafka.ssl.{store_type}.location in the JKS format", "a PKCS12 or PEM store")
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise _refusal(
            f"kafka.ssl.{store_type}.location in PKCS12 without the package cryptography",
            "a PEM store, or pip install 'cryptography>=42' in the driver's Python",
        ) from None
    password = options.get(f"kafka.ssl.{store_type}.password")
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        problem = f"kafka.ssl.{store_type}.location, which is not a PKCS12 store, or has another password"
        raise _refusal(problem, "a PKCS12 or PEM store, and its password") from None
    entries = [store.cert, *store.additional_certs]
    encoding = serialization.Encoding.PEM
    certificates = b"".join(entry.certificate.public_bytes(encoding) for entry in entries if entry is not None)
    if store.key is None:
        return certificates, b""
    key_password = options.get("kafka.ssl.key.password") or password or ""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if key_password:
        encryption = serialization.BestAvailableEncryption(key_password.encode())
    return certificates, store.key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, encryption)


def _refusal(problem: str, remedy: str) -> ConfigError:
    """Return the error for options that Python's client does not support."""
    # Cause: riffle reads the racks of partitions with Python's client, which connects with the options of the source.
    return ConfigError(
        f"Python's Kafka client does not support {problem}.",
        remedy=f"Configure the source with {remedy}.",
        where="kafka",
        id="RIFFLE-0281",
    )
