"""NIXL's Python package: found at run time, set up so that it keeps quiet and ends well."""

import importlib
import logging
import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from moonpool.core.errors import BadConfig, missing_extra

# The meta package chooses by the CUDA release; one of the two wheels alone will do, too.
_MODULES: Final = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api")
_INFINIBAND: Final = Path("/sys/class/infiniband")


class Library:
    """The package, loaded. `errors` is all that its calls raise."""

    def __init__(self, api: Any) -> None:
        self.api = api
        bindings = api.nixlBind
        self.errors: tuple[type[Exception], ...] = tuple(
            getattr(bindings, name)
            for name in dir(bindings)
            if name.startswith("nixl") and name.endswith("Error")
        ) + (RuntimeError,)  # for a status that the binding has no name for, or C++'s own errors
        self.disconnected: type[Exception] = bindings.nixlRemoteDisconnectError
        self.not_found: type[Exception] = bindings.nixlNotFoundError

    def agent(self, name: str, beyond_host: bool) -> Any:
        """A `nixl_agent` with UCX behind it, and POSIX for files. Raises BadConfig.

        Its connections know no token: only with `beyond_host` it listens elsewhere than on
        loopback. It has no thread of its own, which would spin on a core: who has it calls
        `get_new_notifs` now and then.
        """
        api = self.api
        config = api.nixl_agent_config(
            enable_prog_thread=False,
            backends=[],
            sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        )
        options = {} if beyond_host else {"engine_config": "NET_DEVICES=lo"}
        try:
            agent = api.nixl_agent(name, config)
            agent.create_backend("UCX", options)
            # Tearing down Linux' aio waits for what the kernel has, as it must.
            agent.create_backend("POSIX", {"use_aio": "true"})
        except self.errors + (KeyError,) as error:
            raise BadConfig(
                f"transfer.nixl: NIXL has no UCX that works here ({error}); UCX_LOG_LEVEL=info "
                f"says more"
            ) from None
        return agent


@cache
def load() -> Library:
    """NIXL. Raises MissingExtra."""
    _prepare(os.environ, _INFINIBAND)
    for name in _MODULES:
        try:
            api = importlib.import_module(name)
        except ImportError:
            continue
        _hush()
        return Library(api)
    raise missing_extra("the nixl transport", "nixl")


def installed() -> bool:
    """Whether `load` would find the package; loads nothing."""
    return any(find_spec(name.partition(".")[0]) is not None for name in _MODULES)


def has_rdma(folder: Path = _INFINIBAND) -> bool:
    """Whether this machine has a card that UCX could use."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _prepare(environment: Any, folder: Path) -> None:
    """UCX reads its settings as it is loaded; what is set already stays."""
    environment.setdefault("UCX_LOG_FILE", "stderr")  # stdout belongs to the program
    environment.setdefault("UCX_LOG_LEVEL", "error")  # what we tear down it would warn of
    if not has_rdma(folder):
        # With these modules loaded, the wheel's processes end with SIGSEGV in a destructor.
        environment.setdefault("UCX_MODULES", "^ib")


def _hush() -> None:
    logger = logging.getLogger("nixl")
    logger.setLevel(logging.WARNING)
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
