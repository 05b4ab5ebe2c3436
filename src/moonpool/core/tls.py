"""TLS contexts out of settings, and what a failed handshake means in words.

TLS 1.3 only: both ends are ours. Names are checked: a certificate must name the host, or the IP
address, that was dialled.
"""

from __future__ import annotations

import ssl
from typing import Final

from moonpool.core.errors import BadConfig, Refused, TransferError, Unreachable
from moonpool.core.tls_section import TlsSection

HANDSHAKE_S: Final = 5.0

_WHY: Final = (
    ("CERTIFICATE_REQUIRED", "it wants a certificate of ours; set tls_cert and tls_key"),
    ("UNKNOWN_CA", "it does not know the authority that signed our certificate"),
    ("certificate has expired", "its certificate has expired"),
    ("CERTIFICATE_EXPIRED", "our certificate has expired"),
    ("not yet valid", "its certificate is not valid yet; are the clocks right?"),
    ("mismatch", "its certificate names another host than the one dialled"),
    ("self-signed", "its certificate is signed by none of the authorities in tls_ca"),
    (
        "get local issuer",
        "its certificate is signed by none of the authorities in tls_ca",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("HTTP_REQUEST", "it does not speak TLS"),
    ("RECORD_LAYER_FAILURE", "it does not speak TLS"),
)


def server_context(settings: TlsSection) -> ssl.SSLContext | None:
    """For who listens; None: without TLS. Raises BadConfig."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, settings)
    if settings.tls_mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(settings: TlsSection) -> ssl.SSLContext | None:
    """For who connects; None: without TLS. Raises BadConfig."""
    if not settings.tls_ca:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, settings)
    return context


def _load(context: ssl.SSLContext, settings: TlsSection) -> None:
    names = f"{settings.SECTION}.tls_cert, tls_key and tls_ca"
    try:
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
        if settings.tls_ca:
            context.load_verify_locations(settings.tls_ca)
    except (OSError, ValueError) as error:
        raise BadConfig(f"{names} cannot be used: {error}") from None


def _no_password() -> bytes:
    raise ValueError("the key needs a password; give one that needs none, readable by us only")


def tls_error(what: str, error: OSError) -> TransferError:
    """A handshake that failed, or an alert that came in its place, as an error of our tree. An end
    without a word says nothing of why: it is Unreachable, as without TLS."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Unreachable(f"{what}: the other end closed the connection")
    if not isinstance(error, ssl.SSLError):
        return Unreachable(f"{what}: {error}")
    text = str(error)
    for word, why in _WHY:
        if word in text:
            return Refused(f"{what}: {why} ({error.reason or text})")
    return Refused(f"{what}: TLS: {text}")
