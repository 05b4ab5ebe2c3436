"""Settings of TLS, the same in every section that connects or listens."""

from typing import Annotated

from moonpool.core.config import Section, setting
from moonpool.core.errors import BadConfig


class TlsSection(Section, frozen=True, kw_only=True):
    """Who listens needs a certificate and its key; who connects needs the authority that signed
    it. All of a pool uses TLS or none of it."""

    tls_cert: Annotated[
        str,
        setting(
            "PEM file of our certificate and what it hangs on: with it all ports but UNIX sockets "
            "speak TLS, and it is shown where the other end asks for one.",
            env="MOONPOOL_TLS_CERT",
        ),
    ] = ""
    tls_key: Annotated[str, setting("PEM file of its key.", env="MOONPOOL_TLS_KEY")] = ""
    tls_ca: Annotated[
        str,
        setting(
            "PEM file of the authorities we believe: with it we connect by TLS, and only to whom "
            "one of them has named so.",
            env="MOONPOOL_TLS_CA",
        ),
    ] = ""
    tls_mutual: Annotated[
        bool,
        setting(
            "Let in only who shows a certificate of these authorities, too.",
            env="MOONPOOL_TLS_MUTUAL",
        ),
    ] = False

    def check(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise BadConfig(
                f"{self.SECTION}.tls_cert and tls_key belong together; "
                f"{'tls_key' if self.tls_cert else 'tls_cert'} is missing"
            )
        if self.tls_mutual and not self.tls_ca:
            raise BadConfig(
                f"{self.SECTION}.tls_mutual asks for certificates; tls_ca says whose are believed"
            )
