"""The client before a real etcd of one member, and one of three, some of them killed or stopped."""

from __future__ import annotations

import socket
import threading

import pytest

from moonpool.bench.etcd_server import EtcdServers
from moonpool.core.errors import BadConfig, BadFrame, Closed, DeadlineExceeded, Unreachable
from moonpool.core.etcd import EtcdAddress, EtcdClient, EtcdPair, parse_etcd


def test_addresses() -> None:
    assert parse_etcd("etcd://a,b:1/x/y/") == EtcdAddress((("a", 2379), ("b", 1)), False, "x/y")
    assert parse_etcd("etcds://[::1]:7/") == EtcdAddress((("::1", 7),), True, "")


@pytest.mark.parametrize("text", ["h:1", "etcd://", "etcd://a,,b/x", "etcd://a:x", "etcd://u@h"])
def test_addresses_that_make_no_sense(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_etcd(text)


def test_keys_are_put_read_and_deleted(etcd: str) -> None:
    with EtcdClient(etcd) as client:
        at = client.address.prefix
        client.put(f"{at}/a", b"1")
        client.put(f"{at}/b", b"\xff\x00")
        client.put(f"{at}X", b"beside")
        found = client.range(f"{at}/", prefix=True)
        assert [(p.key, p.value) for p in found] == [
            (f"{at}/a".encode(), b"1"),
            (f"{at}/b".encode(), b"\xff\x00"),
        ]
        assert found[0].mod_revision < found[1].mod_revision
        client.delete(f"{at}/", prefix=True)
        assert client.range(f"{at}/", prefix=True) == []
        assert len(client.range(f"{at}X")) == 1


def test_a_swap_needs_the_revision_it_read(etcd: str) -> None:
    with EtcdClient(etcd) as client:
        key = f"{client.address.prefix}/k"
        first = client.swap({key: 0}, {key: b"a"})
        assert first.succeeded
        late = client.swap({key: 0}, {key: b"b"})
        assert not late.succeeded
        assert late.pairs == [EtcdPair(key.encode(), b"a", first.revision, first.revision, 0)]
        assert client.swap({key: first.revision}, {key: b"c"}).succeeded
        assert client.range(key)[0].value == b"c"


def test_a_lease_takes_its_keys_along(etcd: str) -> None:
    with EtcdClient(etcd) as client:
        key = f"{client.address.prefix}/k"
        lease = client.grant(60)
        client.put(key, b"v", lease=lease)
        assert client.range(key)[0].lease == lease
        assert client.keep_alive(lease)
        client.revoke(lease)
        assert client.range(key) == []
        assert not client.keep_alive(lease)
        with pytest.raises(BadFrame, match="lease not found"):
            client.put(key, b"v", lease=lease)


def test_a_watch_tells_all_changes_from_a_revision_on(etcd: str) -> None:
    with EtcdClient(etcd) as client:
        at = client.address.prefix
        client.put(f"{at}/a", b"1")
        start = client.range(f"{at}/a")[0].mod_revision
        watch = client.watch(f"{at}/", prefix=True, revision=start)
        assert next(watch)[:3] == (f"{at}/a".encode(), b"1", False)
        threading.Timer(0.05, client.delete, [f"{at}/a"]).start()
        change = next(watch)
        assert (change.key, change.deleted) == (f"{at}/a".encode(), True)
        assert change.revision > start
        watch.close()
        with pytest.raises(DeadlineExceeded):
            next(client.watch(f"{at}/", prefix=True, silence_s=0.05))


def test_closing_ends_the_watch_of_another_thread(etcd: str) -> None:
    client = EtcdClient(etcd)
    ended: list[Exception] = []

    def watch() -> None:
        try:
            for _ in client.watch(f"{client.address.prefix}/"):
                begun.set()
        except Unreachable as error:
            ended.append(error)

    begun = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    while not begun.wait(0.02):
        client.put(f"{client.address.prefix}/", b"1")
    client.close()
    thread.join(30)
    assert ended


def test_nobody_there() -> None:
    with EtcdServers() as servers:
        client = EtcdClient(servers.url("x"))
        client.put("x", b"1")
        servers.kill(0)
        with pytest.raises(Unreachable):
            client.range("x")
    with pytest.raises(Unreachable):
        client.range("x")


def test_members_stand_in_for_each_other(etcd_members: EtcdServers) -> None:
    client = EtcdClient(etcd_members.url("x"))
    client.put("x/1", b"1")
    etcd_members.kill(0)
    client.put("x/2", b"2")
    etcd_members.restart(0)
    etcd_members.stop(1)  # it takes connections and does not answer
    client.put("x/3", b"3")
    assert [p.value for p in client.range("x/", prefix=True)] == [b"1", b"2", b"3"]
    etcd_members.kill(0)  # one of three is left awake
    with pytest.raises((DeadlineExceeded, Unreachable)):
        EtcdClient(etcd_members.url("x"), timeout_s=1.5).put("x/4", b"4")
    etcd_members.wake(1)
    client.put("x/4", b"4")
    client.close()


class Member:
    """Says the same thing to everybody, and sees whether they close; no etcd."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"etcd://127.0.0.1:{self._listener.getsockname()[1]}/x"
        self.asked = threading.Event()
        self.accepted = 0
        self.left: list[bool] = []  # whether each that came has closed its connection
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            sock, _ = self._listener.accept()
            self.accepted += 1
            with sock:
                sock.settimeout(60)
                asked = b""
                while not asked.endswith(b"}"):
                    asked += sock.recv(65_536)
                self.asked.set()
                sock.sendall(answer)
                self.left.append(_ended(sock))

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


def _ended(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def _answer(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_a_member_that_refuses_the_first_question_is_left() -> None:
    """Not held by the exception, for as long as somebody keeps that."""
    member = Member(_answer(b"no", "400 Bad Request"), _answer(b"{", "200 OK"))
    client = EtcdClient(member.url)
    kept: list[BadFrame] = []
    for _ in range(2):
        with pytest.raises(BadFrame) as raised:
            client.range("x")
        kept.append(raised.value)
    member.close()
    assert member.left == [True, True]
    client.close()


def test_a_watch_on_a_connection_that_ends_with_its_answer() -> None:
    event = b'{"result":{"events":[{"kv":{"key":"eA==","value":"MQ=="}}]}}\n'
    member = Member(_answer(event, more="Connection: close\r\n"))
    client = EtcdClient(member.url)
    watch = client.watch("x")
    assert next(watch).value == b"1"
    with pytest.raises(Unreachable, match="ended the watch"):
        next(watch)
    member.close()
    assert member.left == [True]
    client.close()


def test_a_connection_that_ends_with_its_answer_is_not_asked_again() -> None:
    once = _answer(b"{}", more="Connection: close\r\n")
    member = Member(once, once)
    with EtcdClient(member.url) as client:
        assert client.range("x") == client.range("x") == []
    member.close()
    assert member.left == [True, True]


def test_a_closed_client_connects_to_nobody(etcd: str) -> None:
    client = EtcdClient(etcd)
    client.close()
    with pytest.raises(Closed):
        client.range("x")
    with pytest.raises(Closed):
        next(client.watch("x"))


def test_closing_does_not_wait_for_a_member_that_does_not_answer() -> None:
    member = Member(b"")
    client = EtcdClient(member.url, timeout_s=60.0, try_s=60.0)
    ended: list[Exception] = []

    def ask() -> None:
        try:
            client.range("x")
        except (Closed, Unreachable) as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert member.asked.wait(30)
    client.close()
    thread.join(15)  # the member would have it wait for a minute
    assert ended and not thread.is_alive()
    member.close()


def test_closing_ends_a_watch_that_is_only_being_asked_for() -> None:
    member = Member(b"")
    client = EtcdClient(member.url, timeout_s=60.0, try_s=60.0)
    ended: list[Exception] = []

    def watch() -> None:
        try:
            next(client.watch("x"))
        except (Closed, Unreachable) as error:
            ended.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    assert member.asked.wait(30)
    client.close()
    thread.join(15)  # the member would have it wait for a minute
    assert ended and not thread.is_alive()
    member.close()
