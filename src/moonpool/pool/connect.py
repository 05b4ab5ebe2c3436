"""Opening a pool of processes: its settings, and the first connection to its master."""

from __future__ import annotations

import os

from moonpool.core.errors import DeadlineExceeded, Unreachable
from moonpool.core.sections import SCHEMA, ClientConfig
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell


def client_config(
    master: str | None = None,
    token: str | None = None,
    timeout_s: float | None = None,
    **more: str,
) -> ClientConfig:
    """What the caller gives, then the environment, the file, the defaults; of `more` settings an
    empty one is not given. Raises BadConfig."""
    given: dict[str, object] = {
        **{name: value or None for name, value in more.items()},
        "master": master,
        "token": token,
        "timeout_ms": None if timeout_s is None else max(1, int(timeout_s * 1000)),
    }
    return SCHEMA.load(ClientConfig, cli=given, env=os.environ).value


def connect(
    master: str | None = None, *, token: str | None = None, timeout_s: float | None = None
) -> Pool:
    """A client of the pool whose master listens at `master` ("host:port").

    What is not given comes from MOONPOOL_* variables and the configuration file (see
    `moonpool config`). Raises Unreachable, Refused, ProtocolMismatch, BadConfig.
    """
    return connect_with(client_config(master=master, token=token, timeout_s=timeout_s))


def connect_with(config: ClientConfig) -> Pool:
    """The same for who has settings already. Raises Unreachable, Refused, ProtocolMismatch,
    BadConfig (files of TLS that are no good)."""
    shell = _shell_of(config)
    try:
        shell.connect(config.timeout_ms / 1000)
    except BaseException:
        shell.close()
        raise
    return _pool_of(shell, config)


def _shell_of(config: ClientConfig) -> BlockingShell:
    if not config.tracing:
        return BlockingShell(config)
    from moonpool.pool.tracing_client import TracedShell

    return TracedShell(config)


def _pool_of(shell: BlockingShell, config: ClientConfig) -> Pool:
    if not config.tracing:
        return Pool(shell, config)
    from moonpool.pool.tracing_client import TracedPool

    return TracedPool(shell, config)


def connect_or_later(master: str | None = None) -> tuple[Pool, str]:
    """The same where the master may not be there yet: its calls fail until it is. And why it could
    not be reached, "" if it was. Raises Refused, ProtocolMismatch, BadConfig."""
    config = client_config(master=master)
    shell = _shell_of(config)
    try:
        shell.connect(config.timeout_ms / 1000)
    except (Unreachable, DeadlineExceeded) as error:
        return _pool_of(shell, config), str(error)
    except BaseException:
        shell.close()
        raise
    return _pool_of(shell, config), ""
