"""A small real decoder whose cache lies in a sparse pool: it proves, to the bit, that placement
changes nothing, and its choices are traces to measure with.

Latent attention with a trained lightning indexer, in numpy. Trained on associative recall by
`python -m moonpool.sparse.training`; the weights come with the package. It is no language model.
"""

from moonpool.sparse.decoder.conversation import (
    Conversation,
    Followed,
    conversation,
    follow,
    record,
)
from moonpool.sparse.decoder.prefill import Prefix, local_reader, prefill, prefix_key, put
from moonpool.sparse.decoder.session import Session, SessionCounts
from moonpool.sparse.decoder.shape import DecoderShape
from moonpool.sparse.decoder.task import Stream, stream
from moonpool.sparse.decoder.weights import Weights, load, packaged

__all__ = [
    "Conversation",
    "DecoderShape",
    "Followed",
    "Prefix",
    "Session",
    "SessionCounts",
    "Stream",
    "Weights",
    "conversation",
    "follow",
    "load",
    "local_reader",
    "packaged",
    "prefill",
    "prefix_key",
    "put",
    "record",
    "stream",
]
