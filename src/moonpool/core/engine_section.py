"""The section of the engine. A file of its own: only the engine's room and the CLI read it."""

from typing import Annotated, ClassVar, Literal

from moonpool.core.address import is_loopback, parse_address
from moonpool.core.config import Section, setting
from moonpool.core.errors import BadConfig
from moonpool.core.units import BYTES_MAX


class EngineConfig(Section, frozen=True, kw_only=True):
    """A model served over its own paged cache and the pool."""

    SECTION: ClassVar[str] = "engine"

    role: Annotated[
        Literal["none", "both", "prefill", "decode"],
        setting(
            "What of prompts it computes for others or has computed by others, see [handoff]; "
            "none: it answers by itself."
        ),
    ] = "none"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        setting("Element type of the cache; auto: that of the weights. Part of the pool's keys."),
    ] = "auto"
    compute: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        setting(
            "Type that is calculated in; auto: the cache's, but float32 on processors without "
            "bfloat16 arithmetic, which are several times faster so. Part of the pool's keys."
        ),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "sdpa"],
        setting("auto: FlashInfer on CUDA where it is installed, else torch's own, as with sdpa."),
    ] = "auto"
    sparse: Annotated[
        Literal["none", "quest", "recency", "oracle"],
        setting(
            "Answers attend to chosen tokens only, by an indexer that needs no training; they are "
            "approximate beyond top_k tokens. Prompts are computed as always."
        ),
    ] = "none"
    top_k: Annotated[
        int,
        setting(
            "Tokens that a step of an answer attends to with `sparse`, for each layer and KV head; "
            "at least block_size.",
            minimum=0,
            maximum=1 << 24,
        ),
    ] = 0
    device: Annotated[str, setting("Where the model runs, as 'cpu' or 'cuda:0'.")] = "cpu"
    threads: Annotated[
        int, setting("Threads of the arithmetic; 0: torch's own choice.", minimum=0, maximum=4096)
    ] = 0
    block_size: Annotated[
        int,
        setting(
            "Tokens a page and a pool object. Engines share a pool's blocks only with the same.",
            minimum=1,
            maximum=4096,
        ),
    ] = 64
    chunk_tokens: Annotated[
        int,
        setting(
            "Tokens of a prompt computed in one pass, a multiple of block_size. Prefixes are "
            "reused in whole chunks, so answers are equal to the bit wherever they came from.",
            minimum=1,
            maximum=65_536,
        ),
    ] = 64
    kv_memory: Annotated[
        int,
        setting("Memory of the engine's own pages.", unit="bytes", minimum=4096, maximum=BYTES_MAX),
    ] = 1 << 30
    running_max: Annotated[
        int, setting("Requests computed at a time.", minimum=1, maximum=65_536)
    ] = 32
    decode_rows: Annotated[
        int,
        setting(
            "Answers that go on in one pass; fewer are padded to it, so that no answer depends on "
            "who else is served.",
            minimum=1,
            maximum=1024,
        ),
    ] = 4
    step_chunks: Annotated[
        int,
        setting(
            "Chunks of prompts computed before running answers get their next token.",
            minimum=1,
            maximum=1024,
        ),
    ] = 2
    reserve_percent: Annotated[
        int,
        setting(
            "Of the tokens a request may still generate, how many have pages kept free for them; "
            "below 100 a request may be preempted and computed again later.",
            minimum=0,
            maximum=100,
        ),
    ] = 50
    queue_max: Annotated[
        int, setting("Requests that may wait; more are refused.", minimum=1, maximum=1_000_000)
    ] = 256
    queue_ms: Annotated[
        int,
        setting(
            "A request that has waited so long for pages is refused.",
            unit="ms",
            minimum=1,
            maximum=86_400_000,
        ),
    ] = 30_000

    pool: Annotated[
        str, setting("Address of a pool's master, as '127.0.0.1:7400'; empty: no pool.")
    ] = ""
    lookup_ms: Annotated[
        int,
        setting(
            "A pool that has not said so long what it has is left alone for a while.",
            unit="ms",
            minimum=1,
            maximum=60_000,
        ),
    ] = 300
    load_ms: Annotated[
        int,
        setting(
            "Blocks that have not come from the pool in so long are computed.",
            unit="ms",
            minimum=1,
            maximum=60_000,
        ),
    ] = 2000

    events: Annotated[
        bool,
        setting(
            "Publish what the cache stores and evicts, over ZeroMQ as vLLM does, so that a router "
            "knows it. The events have the tokens of prompts."
        ),
    ] = False
    events_host: Annotated[
        str,
        setting("Interface to publish at; anything but loopback needs events_open."),
    ] = "127.0.0.1"
    events_port: Annotated[
        int,
        setting("Port of the events; 0 takes any free one.", minimum=0, maximum=65535),
    ] = 0
    replay_port: Annotated[
        int,
        setting(
            "Port where missed events are asked for; 0 takes any free one.",
            minimum=0,
            maximum=65535,
        ),
    ] = 0
    events_kept: Annotated[
        int,
        setting(
            "Messages kept for those who missed some; then the whole cache is told anew.",
            minimum=1,
            maximum=1_000_000,
        ),
    ] = 10_000
    events_open: Annotated[
        bool,
        setting(
            "Let other machines read the events: whoever reaches the port can, ZeroMQ asks for "
            "no token."
        ),
    ] = False

    def check(self) -> None:
        if self.chunk_tokens % self.block_size:
            raise BadConfig(
                f"engine.chunk_tokens = {self.chunk_tokens} is no multiple of engine.block_size "
                f"({self.block_size}): a chunk is made of whole blocks"
            )
        self._check_sparse()
        if self.pool:
            parse_address(self.pool)
        if self.events and not self.events_open and not is_loopback(self.events_host):
            raise BadConfig(
                f"engine.events_host = {self.events_host!r} lets other machines read the tokens of "
                "prompts, and asks nobody for a token; set engine.events_open where that is "
                "wanted, or use 127.0.0.1"
            )

    def _check_sparse(self) -> None:
        if self.sparse == "none":
            if self.top_k:
                raise BadConfig(
                    f"engine.top_k = {self.top_k} needs engine.sparse: quest, recency or oracle"
                )
            return
        if self.top_k < self.block_size:
            raise BadConfig(
                f"engine.top_k = {self.top_k} is less than a page of engine.block_size "
                f"({self.block_size}) tokens: the newest page is always attended to"
            )
        if not self.device.startswith("cpu"):
            raise BadConfig(
                f"engine.sparse = {self.sparse} works on the CPU, engine.device is {self.device!r}"
            )
