"""Decision D15: nothing listens beyond this machine without a token."""

from moonpool.core.address import is_loopback
from moonpool.core.errors import BadConfig


def refuse_open_door(section: str, host: str, token: str) -> None:
    """Raises BadConfig for a public `host` without a token."""
    if not token and not is_loopback(host):
        raise BadConfig(
            f"{section}.host = {host!r} is reachable from other machines but there is no token; "
            "set MOONPOOL_TOKEN (a long random text, the same everywhere) or use 127.0.0.1"
        )
