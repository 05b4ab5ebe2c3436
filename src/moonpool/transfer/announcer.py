"""Keeps one engine in the directory, under a lease: what dies is gone from there by itself.

The first time is the caller's, who hears of errors. Later ones are a thread's: while etcd cannot be
reached nothing is lost but the entry, and it is written again when etcd is back.
"""

import threading
from collections.abc import Callable

from moonpool.core.errors import BadFrame, MoonpoolError
from moonpool.transfer.directory import EngineEntry, EtcdDirectory, decode_entry, encode_entry


class Announcer:
    """`look` gives the entry as it should be now."""

    def __init__(
        self, directory: EtcdDirectory, look: Callable[[], EngineEntry], ttl_s: int
    ) -> None:
        self.error = ""
        self._directory = directory
        self._look = look
        self._ttl_s = ttl_s
        self._beat_s = ttl_s / 3
        self._lease = 0
        self._written: EngineEntry | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def announce(self) -> None:
        """Writes the entry, over that of an earlier life or of anybody who had the name, and keeps
        it from now on. Raises Unreachable, DeadlineExceeded, BadFrame."""
        with self._lock:
            self._write()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="moonpool-directory", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """The entry goes, unless another engine has the name now, or etcd does not answer."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join()
        try:
            with self._directory.client(self._beat_s) as client:
                client.revoke(self._lease)
        except MoonpoolError:
            # The lease ends by itself.
            return

    def _run(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                with self._lock:
                    if not self._beat():
                        return
                self.error = ""
            except MoonpoolError as error:
                self.error = str(error)

    def _beat(self) -> bool:
        """False when the name is another engine's now."""
        entry = self._look()
        with self._directory.client(self._beat_s) as client:
            kept = client.keep_alive(self._lease)
            pairs = client.range(self._directory.key(entry.name))
        if pairs and _epoch(pairs[0].value) != entry.epoch:
            self.error = f"another engine is announced as '{entry.name}' now"
            return False
        if not kept or not pairs or entry != self._written:
            self._write()
        return True

    def _write(self) -> None:
        entry = self._look()
        with self._directory.client(max(1.0, self._beat_s)) as client:
            if not self._lease or not client.keep_alive(self._lease):
                self._lease = client.grant(self._ttl_s)
            client.put(self._directory.key(entry.name), encode_entry(entry), lease=self._lease)
        self._written = entry


def _epoch(raw: bytes) -> int:
    try:
        return decode_entry(raw).epoch
    except BadFrame:
        return 0
