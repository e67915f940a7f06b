"""Configure Python's Kafka client from the options of Spark's Kafka source, so that it connects as the source does.

Java's client and Python's share mechanisms and protocols. They do not share login modules, key stores in Java's own
format, or tokens of Spark. What only Java can do is refused with the name of the option.
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
    """Return the arguments of a client of kafka-python for a source's options, with their names in lower case.

    Raises ``ConfigError`` that names an option that this client does not support.

    >>> security_of({"kafka.security.protocol": "SSL"})["security_protocol"]
    'SSL'
    """
    protocol = options.get("kafka.security.protocol", "PLAINTEXT").strip().upper()
    found: dict[str, object] = {"security_protocol": protocol}
    if protocol.startswith("SASL_"):
        found |= _sasl(options)
    if protocol.endswith("SSL"):
        found["ssl_context"] = _context(options)
    return found


def _sasl(options: Mapping[str, str]) -> dict[str, object]:
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
    raise _refused(f"kafka.sasl.mechanism = {mechanism}", "PLAIN, SCRAM, GSSAPI with a ticket cache, or AWS_MSK_IAM")


def _login(jaas: str) -> Mapping[str, str]:
    """Return the options of the one login module of ``kafka.sasl.jaas.config``: ``Module required name="value";``."""
    words = _words(jaas)
    given = {words[at - 1]: words[at + 1] for at in range(2, len(words) - 1) if words[at] == "="}
    if not {"username", "password"} <= given.keys():
        raise _refused("kafka.sasl.jaas.config without username and password", "both in its login module")
    if given.get("tokenauth", "false").lower() == "true":
        raise _refused("kafka.sasl.jaas.config with tokenauth", "username and password")
    return given


def _words(jaas: str) -> list[str]:
    """Return the words of a JAAS entry, without quotes and escapes, ``=`` and ``;`` as words of their own."""
    words: list[str] = []
    at = 0
    text = jaas.strip()
    while at < len(text):
        word = _JAAS_WORD.match(text, at)
        if word is None:
            raise _refused("a kafka.sasl.jaas.config that is not one entry", 'Module required name="value" ...;')
        quoted = word[1] if word[1] is not None else word[2]
        words.append((word[3] or word[4]) if quoted is None else _ESCAPED.sub(r"\1", quoted))
        at = word.end()
    return words


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(options.get("kafka.ssl.endpoint.identification.algorithm", "https").strip())
    trusted = _store(options, "truststore", "kafka.ssl.truststore.certificates")
    if trusted is None:
        context.load_default_certs()
    else:
        certificates, _ = _opened(trusted, options, "truststore")
        context.load_verify_locations(cadata=certificates.decode())
    own = _store(options, "keystore", "kafka.ssl.keystore.certificate.chain")
    if own is not None:
        chain, key = _opened(own, options, "keystore")
        key = key or options.get("kafka.ssl.keystore.key", "").encode()
        password = options.get("kafka.ssl.key.password") or options.get("kafka.ssl.keystore.password")
        with tempfile.NamedTemporaryFile() as file:  # Python reads a client's key from a file alone; its mode is 0600
            Path(file.name).write_bytes(key + b"\n" + chain)
            context.load_cert_chain(file.name, password=password or "")
    return context


def _store(options: Mapping[str, str], kind: str, inline: str) -> bytes | None:
    """Return the bytes of a trust store or key store, ``None`` if the options name none."""
    if inline in options:
        return options[inline].encode()
    location = options.get(f"kafka.ssl.{kind}.location")
    return None if location is None else Path(location).read_bytes()


def _opened(data: bytes, options: Mapping[str, str], kind: str) -> tuple[bytes, bytes]:
    """Return certificates and private key of a store, both in PEM. The key is empty if the store has none."""
    if _PEM in data:
        return data, data if b"PRIVATE KEY-----" in data else b""
    if data.startswith(_JKS):
        raise _refused(f"kafka.ssl.{kind}.location in Java's own format (JKS)", "a PKCS12 or PEM store")
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise _refused(
            f"kafka.ssl.{kind}.location in PKCS12 without the package cryptography",
            "a PEM store, or pip install 'cryptography>=42' in the driver's Python",
        ) from None
    password = options.get(f"kafka.ssl.{kind}.password")
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        problem = f"kafka.ssl.{kind}.location, which does not open"
        raise _refused(problem, "a PKCS12 or PEM store, and its password") from None
    entries = [store.cert, *store.additional_certs]
    encoding = serialization.Encoding.PEM
    certificates = b"".join(each.certificate.public_bytes(encoding) for each in entries if each is not None)
    if store.key is None:
        return certificates, b""
    secret = options.get("kafka.ssl.key.password") or password or ""
    sealing = serialization.BestAvailableEncryption(secret.encode()) if secret else serialization.NoEncryption()
    return certificates, store.key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, sealing)


def _refused(problem: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"Python's Kafka client cannot use {problem}",
        remedy=f"give the source {remedy}",
        where="kafka",
        id="RIFFLE-0281",
    )
