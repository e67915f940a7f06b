"""An authority of one's own, and the certificate of a loopback server that it signed."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["write_certificates"]


def write_certificates(folder: Path) -> Path:
    """Write ``ca.pem``, ``server.pem`` and ``server.key`` for 127.0.0.1, and return the folder."""
    authority = ec.generate_private_key(ec.SECP256R1())
    server = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("riffle's own authority")
    root = _builder(issuer, issuer, authority.public_key()).add_extension(x509.BasicConstraints(True, None), True)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = _builder(issuer, _name("127.0.0.1"), server.public_key()).add_extension(address, False)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "server.key").write_bytes(
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=2))
    )
