"""Who may speak: right and wrong tokens, replays, frames out of turn, random frames."""

import random

import msgspec
import pytest

from moonpool.core.errors import BadFrame, MoonpoolError, PoolFull, ProtocolMismatch, Refused
from moonpool.core.handshake import (
    ClientHandshake,
    Proof,
    ServerHandshake,
    Welcome,
    prove,
    refusal,
)
from moonpool.core.wire import Frame, Kind

GOLDEN_PROOF = "536716b05779bf49bfccce7ddba43fdfb2867abd30258bdb3649a9d49eee81a6"

# As the release before sent them, which knew of no versions.
OLD_PAYLOADS = [
    "95c4206363636363636363636363636363636363636363636363636363636363636363a6636c6965"
    "6e74a26d65a5302e312e30a6686f73742d31",
    "91c4207373737373737373737373737373737373737373737373737373737373737373",
    "91c4207fb7aa2dc54313c34866290c0d6ad93e757fe578542c32dd7c2b7ee4f6c04a08",
    "95c420814351bc22377e500486980f019e5d88e0d499b53b1e3a2147fe5b7076c1d1aca66d617374"
    "6572a5302e312e30a0c400",
    "92a772656675736564a26e6f",
]

GOLDEN_PAYLOADS = [
    "96c4206363636363636363636363636363636363636363636363636363636363636363a6636c6965"
    "6e74a26d65a5302e312e30a6686f73742d31920102",
    "91c4207373737373737373737373737373737373737373737373737373737373737373",
    "91c42004e65f35404e59bd2683792f533a503eff36e9a4ec1dee71248681f4a0f5b020",
    "96c420e42deb27d80c129f090dd4017be662e5025290c35d2da22756c5ed0de813c6d4a66d617374"
    "6572a5302e312e30a0c40002",
    "92a772656675736564a26e6f",
]


def client(
    token: str = "t", nonce: bytes = b"c" * 32, versions: tuple[int, int] = (1, 2)
) -> ClientHandshake:
    return ClientHandshake(token, "client", "me", "0.1.0", nonce, "host-1", versions)


def server(
    token: str = "t", nonce: bytes = b"s" * 32, versions: tuple[int, int] = (1, 2)
) -> ServerHandshake:
    return ServerHandshake(token, "master", "0.1.0", nonce, versions=versions)


def shake(left: ClientHandshake, right: ServerHandshake) -> None:
    frame: Frame | None = left.start()
    while frame is not None:
        frame = left.receive(right.receive(frame))


@pytest.mark.parametrize("token", ["", "t", "ключ"])
def test_the_same_token(token: str) -> None:
    left, right = client(token), server(token)
    shake(left, right)
    assert right.accepted
    assert right.hello is not None
    assert (right.hello.role, right.hello.name, right.hello.host_id) == ("client", "me", "host-1")
    assert left.welcome is not None and left.welcome.name == "master"


@pytest.mark.parametrize(("ours", "theirs"), [("a", "b"), ("", "b"), ("a", "")])
def test_another_token(ours: str, theirs: str) -> None:
    right = server(theirs)
    with pytest.raises(Refused, match="MOONPOOL_TOKEN"):
        shake(client(ours), right)
    assert not right.accepted


def test_golden_payloads() -> None:
    left, right = client(), server()
    hello = left.start()
    challenge = right.receive(hello)
    proof = left.receive(challenge)
    assert proof is not None
    frames = [hello, challenge, proof, right.receive(proof), refusal(Refused("no"))]
    assert [frame.payload.hex() for frame in frames] == GOLDEN_PAYLOADS


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [((1, 2), (1, 2), 2), ((1, 2), (1, 1), 1), ((2, 3), (1, 2), 2), ((1, 1), (1, 2), 1)],
)
def test_the_newest_version_that_both_speak(
    ours: tuple[int, int], theirs: tuple[int, int], agreed: int
) -> None:
    left, right = client(versions=ours), server(versions=theirs)
    shake(left, right)
    assert right.version == agreed
    assert left.welcome is not None and left.welcome.version == agreed


@pytest.mark.parametrize(("ours", "theirs"), [((1, 1), (2, 3)), ((3, 4), (1, 2))])
def test_two_that_have_no_version_in_common(ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    with pytest.raises(ProtocolMismatch, match="upgrade one release at a time"):
        shake(client(versions=ours), server(versions=theirs))


def test_a_recorded_client_of_the_release_before_is_welcome() -> None:
    right = server()
    hello, challenge, proof, _, _ = (bytes.fromhex(text) for text in OLD_PAYLOADS)
    assert right.receive(Frame(Kind.HELLO, hello)).payload == challenge
    welcome = right.receive(Frame(Kind.PROOF, proof))
    assert right.accepted and right.version == 1
    assert msgspec.msgpack.decode(welcome.payload, type=Welcome).version == 1


def test_a_server_of_the_release_before_is_understood() -> None:
    """Its welcome tells no version; it passes over what it does not know of a hello."""
    left = client()
    challenge = bytes.fromhex(OLD_PAYLOADS[1])
    left.receive(Frame(Kind.CHALLENGE, challenge))
    mac = prove("t", "server", left.start().payload, challenge)
    told = msgspec.msgpack.encode([mac, "master", "0.1.0", "", b""])
    assert left.receive(Frame(Kind.WELCOME, told)) is None
    assert left.welcome is not None and left.welcome.version == 1


def test_golden_proof() -> None:
    assert prove("token", "client", b"hello", b"challenge").hex() == GOLDEN_PROOF


def test_a_recorded_proof_does_not_open_another_connection() -> None:
    left, first = client(), server(nonce=b"1" * 32)
    proof = left.receive(first.receive(left.start()))
    second = server(nonce=b"2" * 32)
    second.receive(left.start())
    assert proof is not None
    with pytest.raises(Refused):
        second.receive(proof)


def test_a_reflected_proof_does_not_convince_the_client() -> None:
    left, right = client(), server()
    proof = left.receive(right.receive(left.start()))
    assert proof is not None
    mac = msgspec.msgpack.decode(proof.payload, type=Proof).mac
    welcome = msgspec.msgpack.encode(Welcome(mac, "impostor", "0.1.0"))
    with pytest.raises(Refused, match="does not know the token"):
        left.receive(Frame(Kind.WELCOME, welcome))


def test_a_welcome_without_a_challenge() -> None:
    with pytest.raises(BadFrame, match="WELCOME out of turn"):
        client().receive(Frame(Kind.WELCOME, b""))


def test_a_message_before_the_proof() -> None:
    with pytest.raises(BadFrame, match="MESSAGE out of turn"):
        server().receive(Frame(Kind.MESSAGE, b""))


def test_a_second_hello() -> None:
    right = server()
    right.receive(client().start())
    with pytest.raises(BadFrame, match="HELLO out of turn"):
        right.receive(client().start())


def test_the_refusal_names_its_reason() -> None:
    with pytest.raises(ProtocolMismatch, match="speaks 2"):
        client().receive(refusal(ProtocolMismatch("speaks 2")))


def test_a_stranger_cannot_raise_what_it_likes() -> None:
    with pytest.raises(Refused, match="refused the connection: no room"):
        client().receive(refusal(PoolFull("no room")))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_nonces_have_one_size(size: int) -> None:
    with pytest.raises(BadFrame, match="nonce"):
        client(nonce=b"x" * size)
    with pytest.raises(BadFrame, match="nonce"):
        server(nonce=b"x" * size)


def test_an_endless_name_is_refused() -> None:
    left = ClientHandshake("t", "client", "n" * 300, "0.1.0", b"c" * 32)
    with pytest.raises(BadFrame, match="name"):
        server().receive(left.start())


@pytest.mark.parametrize("seed", range(100))
def test_random_frames_end_in_typed_errors(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    left, right = client(), server()
    right.receive(left.start())
    frame = Frame(rng.choice(list(Kind)), rng.randbytes(rng.randrange(60)))
    for end in (left, right):
        with pytest.raises(MoonpoolError):
            end.receive(frame)
    assert not right.accepted and left.welcome is None
