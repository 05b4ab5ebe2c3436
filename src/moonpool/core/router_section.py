"""The `[router]` section of the configuration."""

from typing import Annotated, ClassVar, Literal

import msgspec

from moonpool.core.config import Section, setting
from moonpool.core.errors import BadConfig
from moonpool.core.open_door import refuse_open_door

_HOUR_MS = 3_600_000


def _ms(text: str, minimum: int = 1) -> msgspec.Meta:
    return setting(text, unit="ms", minimum=minimum, maximum=_HOUR_MS)


def _bytes(text: str, minimum: int, maximum: int) -> msgspec.Meta:
    return setting(text, unit="bytes", minimum=minimum, maximum=maximum)


def _count(text: str) -> msgspec.Meta:
    return setting(text, minimum=1, maximum=2**20)


class RouterConfig(Section, frozen=True, kw_only=True):
    """The process that sends each request to the worker with the most of its prefix."""

    SECTION: ClassVar[str] = "router"

    host: Annotated[
        str, setting("Interface to listen on; anything but loopback needs a token.")
    ] = "127.0.0.1"
    port: Annotated[int, setting("TCP port; 0 takes any free one.", minimum=0, maximum=65535)] = (
        8000
    )
    token: Annotated[
        str,
        setting(
            "Bearer token of clients. Better given as MOONPOOL_TOKEN: command lines are seen by"
            " others.",
            env="MOONPOOL_TOKEN",
            secret=True,
        ),
    ] = ""
    worker_token: Annotated[
        str,
        setting(
            "Bearer token that workers want; without it, and without `token`, the client's is"
            " passed on.",
            secret=True,
        ),
    ] = ""
    workers: Annotated[
        str,
        setting(
            "Workers that prefill and decode, separated by blanks, each 'URL,key=value,...' with"
            " keys id, model, block, context, blocks, ranks, events, replay, transfer, taint; other"
            " keys are labels."
        ),
    ] = ""
    prefill: Annotated[
        str, setting("Workers that only prefill, written the same; they need transfer=HOST:PORT.")
    ] = ""
    decode: Annotated[str, setting("Workers that decode and prefill what is short.")] = ""
    discovery: Annotated[
        str,
        setting(
            "Where workers are found besides: 'dns:NAME:PORT', 'etcd:URL/PREFIX' or"
            " 'kubernetes:NAMESPACE/SELECTOR', separated by blanks."
        ),
    ] = ""
    discovery_ms: Annotated[int, _ms("Time between two looks there.", minimum=100)] = 5000
    peers: Annotated[
        str, setting("URLs of the other routers in front of the same workers, by blanks.")
    ] = ""
    pool_events: Annotated[
        str,
        setting(
            "Where a pool's events are published ('tcp://host:port', `moonpool admin --events`):"
            " what it holds then counts for every worker."
        ),
    ] = ""
    pool_replay: Annotated[
        str, setting("Where that pool's missed events are asked for, 'tcp://host:port'.")
    ] = ""
    tokenizer: Annotated[
        str,
        setting(
            "The workers' tokenizer: a Hugging Face directory or a GGUF file. Without it texts are"
            " compared by bytes, token ids as they are."
        ),
    ] = ""
    cost: Annotated[
        Literal["seconds", "dynamo"], setting("How workers are compared: ours, or Dynamo's.")
    ] = "seconds"
    temperature: Annotated[
        float, setting("0 takes the cheapest worker; more spreads requests.")
    ] = 0.0
    affinity: Annotated[
        Literal["off", "soft", "hard"],
        setting("Whether requests with the same X-Session-Id stay on one worker."),
    ] = "soft"
    remote_prefill_tokens: Annotated[
        int,
        setting(
            "Prompts with fewer uncached tokens are prefilled on their decode worker.",
            minimum=0,
            maximum=2**31 - 1,
        ),
    ] = 2048
    busy_requests: Annotated[
        int,
        setting("Requests a worker gets at once; 0: no limit.", minimum=0, maximum=2**31 - 1),
    ] = 0
    digest_ms: Annotated[
        int,
        _ms(
            "Time between two comparisons of what a worker says it holds with what its events said;"
            " 0: never. For workers that keep such an account, `moonpool engine` does.",
            minimum=0,
        ),
    ] = 60_000
    retries: Annotated[
        int,
        setting("Other workers tried before the first byte of an answer.", minimum=0, maximum=100),
    ] = 2
    connect_ms: Annotated[int, _ms("Deadline of a connection to a worker.")] = 2000
    first_byte_ms: Annotated[int, _ms("A worker's first byte comes within it.")] = 300_000
    idle_ms: Annotated[int, _ms("And every later one within this.")] = 60_000
    client_ms: Annotated[
        int, _ms("A client sends its request, and takes of an answer, within it.")
    ] = 60_000
    drain_ms: Annotated[
        int, _ms("After SIGTERM running answers may end for so long.", minimum=0)
    ] = 30_000
    health_path: Annotated[str, setting("Path that a worker in order answers.")] = "/health"
    health_ms: Annotated[int, _ms("Time between two looks at a worker.", minimum=10)] = 1000
    health_timeout_ms: Annotated[int, _ms("Deadline of such a look.")] = 2000
    health_failures: Annotated[
        int, setting("Looks that fail in a row before it is down.", minimum=1, maximum=1000)
    ] = 3
    clients_max: Annotated[int, _count("Connections of clients at most.")] = 16_384
    running_max: Annotated[int, _count("Requests under way at most.")] = 8192
    running_bytes_max: Annotated[int, _bytes("Bytes of their bodies at most.", 4096, 2**40)] = (
        1 << 30
    )
    worker_connections_max: Annotated[int, _count("Connections to one worker at most.")] = 1024
    head_bytes_max: Annotated[int, _bytes("A request's headers at most.", 256, 2**24)] = 32 << 10
    body_bytes_max: Annotated[int, _bytes("A request's body at most.", 1024, 2**31)] = 64 << 20
    prompt_tokens_max: Annotated[
        int, setting("Tokens of a prompt at most.", minimum=1, maximum=2**24)
    ] = 1 << 21

    def check(self) -> None:
        refuse_open_door(self.SECTION, self.host, self.token)
        if not self.health_path.startswith("/"):
            raise BadConfig(f"router.health_path = {self.health_path!r} must begin with '/'")
        if not 0 <= self.temperature <= 1000:
            raise BadConfig(f"router.temperature = {self.temperature} is not within 0..1000")
