"""Racks are asked for with the security settings of Kafka's source: what is made of them, and a real broker."""

from __future__ import annotations

import datetime
import gc
import ipaddress
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from apps.demo.servers import KafkaBroker
from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine.kafka import partition_racks
from riffle_spark.spark.engine.kafka_security import security_of

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def sasl(mechanism: str, jaas: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    """Return the options of a source that logs in."""
    return {
        "kafka.security.protocol": protocol,
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": jaas,
    }


class TestMapping:
    """What is made of a source's options."""

    @pytest.mark.parametrize(
        ("mechanism", "jaas", "user", "password"),
        [
            ("PLAIN", f'{PLAIN} required username="riffle" password="a secret";', "riffle", "a secret"),
            ("PLAIN", f"{PLAIN} required\n  username='o\"k' password='it is';", 'o"k', "it is"),
            ("SCRAM-SHA-512", f'{SCRAM} required password="a\\"b\\\\c=;d" username=riffle ;', "riffle", 'a"b\\c=;d'),
            ("scram-sha-256", f'kafkashaded.{SCRAM} required username = "r" password = "";', "r", ""),
        ],
    )
    def test_user_and_password_are_those_of_the_login_module(
        self, mechanism: str, jaas: str, user: str, password: str
    ) -> None:
        """With quotes and escapes as Java reads them."""
        found = security_of(sasl(mechanism, jaas))
        assert found["sasl_mechanism"] == mechanism.upper()
        assert (found["sasl_plain_username"], found["sasl_plain_password"]) == (user, password)

    def test_mechanisms_without_a_password_are_passed_on(self) -> None:
        """A ticket cache, and AWS's own credentials."""
        kerberos = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.kerberos.service.name": "brokers"}
        found = security_of(kerberos)
        assert (found["sasl_mechanism"], found["sasl_kerberos_service_name"]) == ("GSSAPI", "brokers")
        assert security_of({**kerberos, "kafka.sasl.mechanism": "AWS_MSK_IAM"})["sasl_mechanism"] == "AWS_MSK_IAM"

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (sasl("OAUTHBEARER", ""), "OAUTHBEARER"),
            (sasl("PLAIN", ""), "kafka.sasl.jaas.config"),
            (sasl("PLAIN", f'{PLAIN} required username="riffle" password="x'), "kafka.sasl.jaas.config"),
            (sasl("SCRAM-SHA-256", f'{SCRAM} required username="t" password="h" tokenauth="true";'), "tokenauth"),
        ],
    )
    def test_what_only_java_can_do_is_refused(self, options: Mapping[str, str], named: str) -> None:
        """By the option, and with what to give instead. No secret is repeated."""
        with pytest.raises(ConfigError, match=named):
            security_of(options)

    def test_a_store_in_javas_own_format_is_refused(self, tmp_path: Path) -> None:
        """It is told by its first bytes, for a store may have any name."""
        (tmp_path / "trust.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
        options = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": str(tmp_path / "trust.jks")}
        with pytest.raises(ConfigError, match="RIFFLE-0281") as caught:
            security_of(options)
        assert "PEM" in caught.value.remedy

    def test_a_store_with_another_password_is_refused(self, tmp_path: Path, authority: Authority) -> None:
        """The password is not repeated."""
        store = tmp_path / "trust.p12"
        store.write_bytes(authority.trust_store("right"))
        options = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": str(store)}
        with pytest.raises(ConfigError, match="RIFFLE-0281") as caught:
            security_of({**options, "kafka.ssl.truststore.password": "hunter2"})
        assert "hunter2" not in str(caught.value)


@dataclass(frozen=True)
class Signed:
    """A private key and the certificate that the authority signed, both in PEM."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> tuple[str, str]:
        """Key and certificate as text."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key.decode(), self.certificate.public_bytes(serialization.Encoding.PEM).decode()


class Authority:
    """Who signs the certificates of broker and client."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed("authority", self._key, is_authority=True)

    @property
    def pem(self) -> str:
        """Its certificate as text."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, name: str) -> Signed:
        """Return a new key with its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Signed(key, self._signed(name, key, is_authority=False))

    def trust_store(self, password: str) -> bytes:
        """Return a store as keytool makes one."""
        entry = pkcs12.PKCS12Certificate(self.certificate, b"authority")
        sealing = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_java_truststore([entry], sealing)

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=1),
            not_valid_after=now + datetime.timedelta(days=2),
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        return builder.add_extension(loopback, critical=False).sign(self._key, hashes.SHA256())


@pytest.fixture(scope="module")
def authority() -> Authority:
    """One for all tests."""
    return Authority()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[KafkaBroker]:
    """A broker in a rack, with a listener for each way to connect."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "broker.pem").write_text("".join(authority.sign("broker").pem))
    (folder / "trusted.pem").write_text(authority.pem)
    properties = f"""
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config={PLAIN} required user_riffle="it's a secret";
listener.name.both.plain.sasl.jaas.config={PLAIN} required user_riffle="it's a secret";
ssl.keystore.type=PEM
ssl.keystore.location={folder / "broker.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={folder / "trusted.pem"}
listener.name.mutual.ssl.client.auth=required
"""
    secured = {"LOGIN": "SASL_PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "BOTH": "SASL_SSL"}
    with KafkaBroker(folder, rack="zone-a", secured=secured, properties=properties) as broker:
        broker.create_topic("clicks", 2)
        yield broker


LOGIN = sasl("PLAIN", f'{PLAIN} required username="riffle" password="it\'s a secret";')
RACKS = {("clicks", 0): ("zone-a",), ("clicks", 1): ("zone-a",)}


@pytest.mark.cluster
class TestRealBroker:
    """A broker that lets nobody in without them."""

    def test_racks_are_known_with_user_and_password(self, broker: KafkaBroker) -> None:
        """As the source's own, over a plain connection."""
        assert partition_racks(broker.bootstrap_of("LOGIN"), ["clicks"], LOGIN) == RACKS

    def test_racks_are_known_over_tls(self, broker: KafkaBroker, authority: Authority, tmp_path: Path) -> None:
        """With a PKCS12 trust store, and with user and password too."""
        store = tmp_path / "trust"
        store.write_bytes(authority.trust_store("changeit"))
        trust = {"kafka.ssl.truststore.location": str(store), "kafka.ssl.truststore.password": "changeit"}
        options = {**LOGIN, "kafka.security.protocol": "SASL_SSL", **trust}
        assert partition_racks(broker.bootstrap_of("BOTH"), ["clicks"], options) == RACKS

    @pytest.mark.parametrize("kind", ["inline", "pkcs12"])
    def test_racks_are_known_with_a_clients_certificate(
        self, broker: KafkaBroker, authority: Authority, tmp_path: Path, kind: str
    ) -> None:
        """The broker asks for one that the authority signed."""
        client = authority.sign("client")
        key, certificate = client.pem
        store = tmp_path / "store"
        options = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.certificates": authority.pem}
        if kind == "inline":
            options |= {"kafka.ssl.keystore.certificate.chain": certificate, "kafka.ssl.keystore.key": key}
        else:
            options |= {"kafka.ssl.keystore.location": str(store), "kafka.ssl.keystore.password": "changeit"}
            encryption = serialization.BestAvailableEncryption(b"changeit")
            store.write_bytes(
                pkcs12.serialize_key_and_certificates(b"client", client.key, client.certificate, None, encryption)
            )
        assert partition_racks(broker.bootstrap_of("MUTUAL"), ["clicks"], options) == RACKS

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that Kafka's client drops
    @pytest.mark.parametrize("wrong", ["password", "authority", "none"])
    def test_a_refusal_is_one_warning(self, broker: KafkaBroker, caplog: pytest.LogCaptureFixture, wrong: str) -> None:
        """Without a secret in it, and without a thread that is left behind."""
        options, listener = LOGIN, "LOGIN"
        if wrong == "password":
            options = sasl("PLAIN", f'{PLAIN} required username="riffle" password="hunter2";')
        elif wrong == "authority":
            listener = "TLS"
            options = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.certificates": Authority().pem}
        else:
            options = {}
        threads = set(threading.enumerate())
        with caplog.at_level(logging.INFO):
            assert partition_racks(broker.bootstrap_of(listener), ["clicks"], options, seconds=3) == {}
        gc.collect()
        assert "hunter2" not in caplog.text
        warnings = [r for r in caplog.records if r.name == "riffle_spark" and r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "clicks" in warnings[0].message
        assert set(threading.enumerate()) <= threads
