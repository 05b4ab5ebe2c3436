"""What the demo asks about: a chapter of Python's language reference, which Python itself brings.

So nothing is fetched, and everybody can look up whether an answer is right.
"""

from __future__ import annotations

from typing import Final

TITLE: Final = "Execution model, from Python's language reference"
_TOPIC: Final = "execmodel"
_CHARACTERS: Final = 8800  # about 2,000 tokens
QUESTIONS: Final = (
    "In one or two sentences: which parts of a Python program are blocks, and what is a block"
    " executed in?",
    "What happens when a name is used in a block before it is bound there? Name the exception"
    " and say when it is raised.",
    "According to the document, how does Python find the handler of an exception, and what"
    " happens when there is none at all?",
)


def chapter() -> str:
    """The document."""
    from pydoc_data.topics import topics

    return topics[_TOPIC][:_CHARACTERS]


def messages(document: str, question: str) -> list[dict[str, str]]:
    """A conversation that begins with the document: its tokens are the prefix all share."""
    return [
        {"role": "system", "content": f"Answer briefly, from this document.\n\n{document}"},
        {"role": "user", "content": question},
    ]
