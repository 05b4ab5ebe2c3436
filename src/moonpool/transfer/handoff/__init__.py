"""Prefill on one engine, decode on another: KV blocks pushed layer by layer into reserved memory.

`PrefillNode` and `DecodeNode` are the two ends, one for each tensor-parallel rank of an engine;
the machines behind them are pure. Knows no engine and no tensor library: `KVMemory` is buffers.
"""

from moonpool.transfer.handoff.actions import Release, Settled, Times
from moonpool.transfer.handoff.decode import DecodeNode
from moonpool.transfer.handoff.decode_machine import DecodeMachine
from moonpool.transfer.handoff.layout import KVLayout, check_fit, sources_of
from moonpool.transfer.handoff.mapping import BlockMap, Ranges
from moonpool.transfer.handoff.memory import KVMemory, PartMemory
from moonpool.transfer.handoff.prefill import PrefillNode
from moonpool.transfer.handoff.prefill_machine import PrefillMachine

__all__ = [
    "BlockMap",
    "DecodeMachine",
    "DecodeNode",
    "KVLayout",
    "KVMemory",
    "PartMemory",
    "PrefillMachine",
    "PrefillNode",
    "Ranges",
    "Release",
    "Settled",
    "Times",
    "check_fit",
    "sources_of",
]
