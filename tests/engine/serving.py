"""The engine's server in a thread of the test's process, on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from moonpool.engine import Engine
from moonpool.engine.server import Application, Served, listen
from moonpool.engine.server.serving import server_of
from moonpool.engine.tokenizer import Tokenizer

UP_S = 30.0


@dataclass(frozen=True)
class Running:
    url: str
    engine: Engine

    def until(self, name: str, value: float) -> None:
        """Wait until the engine's figure `name` is `value`; at most UP_S."""
        deadline = time.monotonic() + UP_S
        while self.engine.figures().get(name, 0) != value:
            assert time.monotonic() < deadline, (name, value, self.engine.figures())
            time.sleep(0.01)


@contextmanager
def serving(
    engine: Engine, tokenizer: Tokenizer, name: str = "tiny", api_key: str = ""
) -> Iterator[Running]:
    application = Application(engine, tokenizer, Served(name, api_key))
    with listen("127.0.0.1", 0) as listening:
        server = server_of(application)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", engine)
        finally:
            server.should_exit = True
            thread.join(UP_S)
            assert not thread.is_alive()
